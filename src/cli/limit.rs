//! `dripd limit`: ask a limiter at a key whether something may be done now, in one call, without a daemon.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use clap::Args;

use super::args::whole;
use super::{Exit, Failure, connect, say, say_json};
use crate::config::{BadConfig, Config};
use crate::model::duration::count_per_period;
use crate::model::limiter::Kind;
use crate::operate::limit::{LimitRequest, LimiterVerdict, describe, never_passes};
use crate::store::acl::Role;
use crate::store::jobs::limit::Verdict;

/// Ask a limiter whether something may be done now; needs no daemon.
#[derive(Debug, Args)]
pub(super) struct Limit {
    /// fixed-window, sliding-window, sliding-counter, token-bucket, leaky-meter or throttle
    limiter: Kind,
    /// The key that holds its state: any key you like, used as it is
    key: OsString,
    /// How many in how long: 5/60s, 100/h. For token-bucket, leaky-meter and throttle the long-run rate
    #[arg(value_name = "LIMIT/PERIOD", value_parser = rate)]
    rate: (u32, Duration),
    /// How many this call stands for; 0 only looks
    #[arg(long, value_name = "N", default_value = "1", value_parser = number())]
    quantity: u32,
    /// How many may pass at once, for token-bucket and leaky-meter [default: as many as LIMIT]
    #[arg(long, value_name = "N", value_parser = number())]
    capacity: Option<u32>,
    /// How many may pass at once beyond the first, for throttle [default: LIMIT - 1]
    #[arg(long, value_name = "N", value_parser = number())]
    burst: Option<u32>,
    /// Windows begin at multiples of the period since 1970, for fixed-window
    #[arg(long)]
    aligned: bool,
    /// Sleep for as long as it says, and ask again, until it is allowed
    #[arg(long)]
    wait: bool,
    /// The verdict as JSON
    #[arg(long)]
    json: bool,
}

/// A parser of any number; the limiter itself says which numbers it takes.
fn number() -> impl Fn(&str) -> Result<u32, String> + Clone {
    whole(0, u64::from(u32::MAX))
}

fn rate(text: &str) -> Result<(u32, Duration), &'static str> {
    count_per_period(text).ok_or("write limit/period, as in 5/60s, 100/h or 1/500ms")
}

impl Limit {
    pub(super) fn action(&self) -> String {
        format!("ask the {} {}", self.limiter, String::from_utf8_lossy(self.key.as_bytes()))
    }

    pub(super) async fn run(self, load: impl FnOnce() -> Result<Config, BadConfig>) -> Result<Exit, Failure> {
        let request = LimitRequest {
            kind: self.limiter,
            rate: self.rate,
            quantity: self.quantity,
            capacity: self.capacity,
            burst: self.burst,
            aligned: self.aligned,
        };
        let limiter = request.limiter().map_err(|why| Failure::new(Exit::Usage, why))?;
        let key = self.key.as_bytes().to_vec();
        let config = load()?;
        loop {
            // A new connection after each sleep: one that was idle for so long may have been closed on the way.
            let verdict = connect(&config).await?.of_key(&key).limit(&limiter, &key, self.quantity).await;
            let verdict = verdict.map_err(|why| match why.code() {
                Some("WRONGTYPE") => Failure::new(
                    Exit::Failed,
                    format!(
                        "{}: {}; use another key, or delete this one",
                        key.escape_ascii(),
                        why.in_words(Role::Submitter)
                    ),
                ),
                _ => why.into(),
            })?;
            let never = verdict.limited && verdict.retry_after.is_none();
            if never || !verdict.limited || !self.wait {
                return self.say(&verdict, never);
            }
            let retry_after = verdict.retry_after.unwrap_or_default();
            // With redis-cell's rounding a wait of less than a millisecond is 0.
            tokio::time::sleep(retry_after.max(Duration::from_millis(1))).await;
        }
    }

    /// Report the verdict, by the exit code too. A call that can never pass is an error, not a matter of trying later.
    fn say(&self, verdict: &Verdict, never: bool) -> Result<Exit, Failure> {
        if self.json {
            say_json(&LimiterVerdict::of(verdict, self.quantity));
        } else if !never {
            say(&describe(verdict, self.quantity));
        }
        if never {
            return Err(Failure::new(Exit::Failed, never_passes(verdict, self.quantity)));
        }
        Ok(if verdict.limited { Exit::Rejected } else { Exit::Done })
    }
}
