//! `dripd limit`: whether X may do Y now, asked of a limiter at a key: one call, no daemon.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::{Exit, Failure, connect, say};
use crate::config::{BadConfig, Config};
use crate::store::reply::Verdict;
use crate::words::duration::{self, count_per_period};
use crate::words::limiter::{Kind, Limiter};

/// Ask a limiter whether something may be done now; needs no daemon.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 allowed, 1 failed, or --wait for what will never pass, 69 no Redis, 75 refused: try later\n\n\
                        dripd limit sliding-window login:alice 5/60s && login alice"
)]
pub(super) struct Limit {
    /// fixed-window, sliding-window, sliding-counter, token-bucket, leaky-meter or throttle
    limiter: Kind,
    /// The key that holds its state: any key you like, used as it is
    key: OsString,
    /// How many in how long: 5/60s, 100/h. For token-bucket, leaky-meter and throttle the long-run rate
    #[arg(value_name = "LIMIT/PERIOD", value_parser = rate)]
    rate: (u32, Duration),
    /// How many this call stands for; 0 only looks
    #[arg(long, value_name = "N", default_value_t = 1)]
    quantity: u32,
    /// How many may pass at once, for token-bucket and leaky-meter [default: as many as LIMIT]
    #[arg(long, value_name = "N")]
    capacity: Option<u32>,
    /// How many may pass at once beyond the first, for throttle [default: LIMIT - 1]
    #[arg(long, value_name = "N")]
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

fn rate(text: &str) -> Result<(u32, Duration), &'static str> {
    count_per_period(text).ok_or("write limit/period, as in 5/60s, 100/h or 1/500ms")
}

impl Limit {
    pub(super) async fn run(self, load: impl FnOnce() -> Result<Config, BadConfig>) -> Result<Exit, Failure> {
        let limiter = self.limiter().map_err(|why| Failure::new(Exit::Usage, why))?;
        let key = self.key.into_vec();
        let config = load()?;
        loop {
            // Anew after each sleep: what lies between may have closed a connection that was idle for so long.
            let verdict = connect(&config).await?.limit(&limiter, &key, self.quantity).await;
            let verdict = verdict.map_err(|why| match why.code() {
                Some("WRONGTYPE") => Failure::new(Exit::Failed, format!("{}: {why}", key.escape_ascii())),
                _ => why.into(),
            })?;
            if !verdict.limited || !self.wait {
                say(&if self.json { as_json(&verdict) } else { in_words(&verdict) });
                return Ok(if verdict.limited { Exit::Rejected } else { Exit::Done });
            }
            let Some(retry_after) = verdict.retry_after else {
                let (quantity, limit) = (self.quantity, verdict.limit);
                return Err(Failure::new(Exit::Failed, format!("{quantity} at once never pass: the limit is {limit}")));
            };
            // Less than a millisecond counts as none with redis-cell's rounding.
            tokio::time::sleep(retry_after.max(Duration::from_millis(1))).await;
        }
    }

    /// The limiter that the words describe; the error says what does not belong together.
    fn limiter(&self) -> Result<Limiter, String> {
        let kind = self.limiter;
        if self.capacity.is_some() && kind.size_name() != Some("capacity") {
            return Err(format!("--capacity is for token-bucket and leaky-meter, not for {kind}"));
        }
        if self.burst.is_some() && kind.size_name() != Some("max_burst") {
            return Err(format!("--burst is for throttle, not for {kind}"));
        }
        if self.quantity > kind.most_at_once() {
            return Err(format!("the quantity of a {kind} is 0 to {}, not {}", kind.most_at_once(), self.quantity));
        }
        let limiter = Limiter::new(kind, self.rate.0, self.rate.1, self.capacity.or(self.burst))?;
        if self.aligned { limiter.aligned() } else { Ok(limiter) }
    }
}

fn in_words(verdict: &Verdict) -> String {
    let (left, limit, reset) = (verdict.remaining, verdict.limit, duration::show(verdict.reset_after));
    match (verdict.limited, verdict.retry_after) {
        (false, _) if verdict.reset_after.is_zero() => format!("allowed: {left} of {limit} left"),
        (false, _) => format!("allowed: {left} of {limit} left, all again in {reset}"),
        (true, Some(retry)) => format!("refused: {left} of {limit} left, try again in {}", duration::show(retry)),
        (true, None) => format!("refused: {left} of {limit} left, and so many will never pass at once"),
    }
}

fn as_json(verdict: &Verdict) -> String {
    let ms = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    json!({
        "limited": verdict.limited,
        "limit": verdict.limit,
        "remaining": verdict.remaining,
        "retry_after_ms": verdict.retry_after.map_or(-1, |wait| ms(wait).cast_signed()),
        "reset_after_ms": ms(verdict.reset_after),
    })
    .to_string()
}
