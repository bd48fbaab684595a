//! `slow`: slow a bucket or a budget down by hand, before the other side tells a worker to wait; or end a slow-down.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::node_request::NodeRequest;
use crate::model::duration;
use crate::store::change::SlowDown;
use crate::store::{Partitions, StoreError};

/// Slow a bucket or a budget down for so long, or end that.
pub type SlowRequest = NodeRequest<Duration>;

/// What became of a slow-down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Slowed {
    /// The bucket or the budget.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Whether it is a budget.
    pub budget: bool,
    /// When it goes on.
    pub goes_on_in_ms: u64,
    /// Whether that is earlier than asked for: a policy says how long a slow-down may be.
    pub capped: bool,
    /// That no job waits in a bucket of this name, which may be misspelt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl SlowRequest {
    /// Slow the bucket or budget down, in the name of `by`.
    ///
    /// # Errors
    ///
    /// A call to Redis fails, or the functions refuse it: there is no such budget, or it is not above the bucket.
    pub async fn run(&self, store: &mut Partitions, by: &str) -> Result<Slowed, StoreError> {
        let subject = self.target.subject();
        let ms = self.what.map(|lasts| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
        let slow_down = self.change(SlowDown { ms }, store, by).await;
        let note = self.note(store).await; // not later: then something is known of the bucket
        let goes_on = store.slow(&slow_down).await?;
        Ok(Slowed {
            pattern: subject.pattern.to_owned(),
            budget: subject.is_budget,
            goes_on_in_ms: u64::try_from(goes_on.as_millis()).unwrap_or(u64::MAX),
            capped: self.what.is_some_and(|lasts| goes_on < lasts),
            note,
        })
    }

    /// The outcome for people. A slow-down is only ever extended, and lasts no longer than its policy allows.
    pub fn describe(&self, slowed: &Slowed) -> String {
        let subject = self.node();
        let note = slowed.note.as_ref().map_or_else(String::new, |note| format!("; {note}"));
        let Some(lasts) = self.what else { return format!("{subject}: slowed down no more{note}") };
        let goes_on = Duration::from_millis(slowed.goes_on_in_ms);
        let why = if slowed.capped {
            "; slow.cap allows no more"
        } else if goes_on > lasts + Duration::from_millis(1) {
            "; the slow-down in force lasts longer"
        } else {
            ""
        };
        format!("{subject}: goes on in {}{why}{note}", duration::say(goes_on))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::bucket::BucketName;
    use crate::operate::target::Target;

    #[test]
    fn the_outcome_says_what_was_not_done_as_asked() {
        let twilio = BucketName::parse(b"twilio").expect("a name");
        let request = |lasts: Option<u64>| SlowRequest {
            target: Target::named(true, &twilio),
            what: lasts.map(Duration::from_secs),
            within: None,
            reason: None,
        };
        let say = |lasts: Option<u64>, goes_on_s: u64| {
            let capped = lasts.is_some_and(|lasts| goes_on_s < lasts);
            let slowed = Slowed {
                pattern: "twilio".to_owned(),
                budget: true,
                goes_on_in_ms: goes_on_s * 1_000,
                capped,
                note: None,
            };
            request(lasts).describe(&slowed)
        };
        assert_eq!(say(Some(30), 30), "budget twilio: goes on in 30.0 s");
        assert_eq!(say(Some(7_200), 3_600), "budget twilio: goes on in 60 m; slow.cap allows no more");
        assert_eq!(say(Some(30), 45), "budget twilio: goes on in 45.0 s; the slow-down in force lasts longer");
        assert_eq!(say(None, 0), "budget twilio: slowed down no more");
    }
}
