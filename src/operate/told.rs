//! `told`: say how much more the other side lets through, where no worker does; or forget what was said.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::node_request::NodeRequest;
use crate::model::duration;
use crate::store::jobs::work::LimitReport;
use crate::store::{Partitions, StoreError};

/// A reset that is further ahead is doubted (`pace/told` of the functions).
const DAY_MS: u64 = 86_400_000;

/// Say how much more is let through a bucket or a budget until a reset, or forget what was told.
pub type ToldRequest = NodeRequest<LimitReport>;

/// What became of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct TakenReport {
    /// The bucket or the budget.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Whether it is a budget.
    pub budget: bool,
    /// Whether it counts: a lower report, a later one or `told = "off"` may make it change nothing.
    pub counts: bool,
    /// That no job waits in a bucket of this name, which may be misspelt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl ToldRequest {
    /// Say it, in the name of `by`.
    ///
    /// # Errors
    ///
    /// A call to Redis fails, or the functions refuse it: there is no such budget, or it is not above the bucket.
    pub async fn run(&self, store: &mut Partitions, by: &str) -> Result<TakenReport, StoreError> {
        let subject = self.target.subject();
        let tell = self.change(self.what, store, by).await;
        let note = self.note(store).await; // not later: then something is known of the bucket
        let counts = store.tell_limit(&tell).await?;
        Ok(TakenReport { pattern: subject.pattern.to_owned(), budget: subject.is_budget, counts, note })
    }

    /// The outcome for people.
    pub fn describe(&self, taken: &TakenReport) -> String {
        let subject = self.node();
        let note = taken.note.as_ref().map_or_else(String::new, |note| format!("; {note}"));
        let Some(report) = self.what else {
            let what = if taken.counts { "what was told is forgotten" } else { "nothing was told" };
            return format!("{subject}: {what}{note}");
        };
        if !taken.counts {
            return format!(
                "{subject}: it changes nothing: less was told before, its reset has passed, or told = \"off\"{note}"
            );
        }
        let (left, units) = (report.remaining, report.units);
        let reset = duration::say(Duration::from_millis(report.reset_ms));
        let asked = if report.reset_ms > DAY_MS {
            "; one job leaves after a day all the same, in case that is a mistake"
        } else {
            ""
        };
        format!("{subject}: {left} more {} until its limit resets in {reset}{asked}{note}", units.counted())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::bucket::BucketName;
    use crate::model::node::Units;
    use crate::operate::target::Target;

    #[test]
    fn the_outcome_says_what_counts() {
        let name = BucketName::parse(b"openai").expect("a name");
        let request = |what| ToldRequest { target: Target::named(true, &name), what, within: None, reason: None };
        let report =
            LimitReport { remaining: 12, reset_ms: 30_000, resets_at_ms: None, limit: None, units: Units::Job };
        let say = |report, counts| {
            request(report).describe(&TakenReport { pattern: "openai".to_owned(), budget: true, counts, note: None })
        };
        assert_eq!(say(Some(report), true), "budget openai: 12 more jobs until its limit resets in 30.0 s");
        let far = LimitReport { reset_ms: 20 * DAY_MS, ..report };
        let doubted = say(Some(far), true);
        assert!(doubted.ends_with("; one job leaves after a day all the same, in case that is a mistake"), "{doubted}");
        assert!(say(Some(report), false).starts_with("budget openai: it changes nothing"));
        assert_eq!(say(None, true), "budget openai: what was told is forgotten");
    }
}
