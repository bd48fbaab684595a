//! What a request that changes something is answered.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::problem::Problem;
use crate::operate::moment::of_micros;
use crate::store::change::{Change, Told};
use crate::words::subject::Subject;

/// What became of a change of settings.
#[derive(Serialize, ToSchema)]
pub(super) struct Changed {
    /// The name or the glob.
    #[serde(rename = "match")]
    pattern: String,
    /// Whether it is about budgets.
    budget: bool,
    /// Whether it is a glob.
    glob: bool,
    /// Whether anything was changed: not where nothing of it was set.
    done: bool,
    /// The keys, each before and after.
    keys: Vec<KeyChange>,
    /// Keys for which something else holds: what is set for a name lies over what is set for a glob.
    in_force_instead: BTreeMap<String, InForce>,
    /// The name or glob that pauses, or closes, it now.
    stopped_by: Option<String>,
    /// Of a pause of buckets: jobs that have left already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) jobs_out: Option<JobsOut>,
}

/// A key that was changed.
#[derive(Serialize, ToSchema)]
pub(super) struct KeyChange {
    /// Which one; `pause` and `close` too.
    key: String,
    /// What was set before, as the file would have it; empty: nothing.
    before: String,
    /// What is set now; empty: nothing.
    after: String,
}

/// What holds instead of what was set.
#[derive(Serialize, ToSchema)]
pub(super) struct InForce {
    /// The value.
    value: String,
    /// The name or the glob for which it is set.
    #[serde(rename = "match")]
    pattern: String,
    /// When it ends by itself, RFC 3339.
    until: Option<String>,
}

/// Jobs that a pause does not hold any more.
#[derive(Serialize, ToSchema)]
pub(super) struct JobsOut {
    /// In ready streams.
    pub(super) ready: u64,
    /// In the hands of workers.
    pub(super) with_workers: u64,
}

/// What became of a slow-down.
#[derive(Serialize, ToSchema)]
pub(super) struct Slowed {
    /// The bucket or the budget.
    #[serde(rename = "match")]
    pub(super) pattern: String,
    /// Whether it is a budget.
    pub(super) budget: bool,
    /// When it goes on.
    pub(super) goes_on_in_ms: u64,
    /// Whether that is earlier than asked for: a policy says how long a slow-down may be.
    pub(super) capped: bool,
}

/// What was thrown away.
#[derive(Serialize, ToSchema)]
pub(super) struct Purged {
    /// The bucket.
    pub(super) bucket: String,
    /// Jobs of its queue.
    pub(super) jobs: u64,
    /// Failed jobs.
    pub(super) retries: u64,
    /// Failed jobs that stayed.
    pub(super) retries_left: u64,
    /// Jobs that had come over the capacity and had not been rejected yet.
    pub(super) cut: u64,
    /// Delayed jobs.
    pub(super) delayed: u64,
    /// Delayed jobs that stayed.
    pub(super) delayed_left: u64,
}

impl Changed {
    pub(super) fn of(change: &Change, told: Told) -> Result<Self, Problem> {
        let subject = Subject::of_stored(&change.pattern);
        let (done, stopped_by, keys, others) = match told {
            Told::Done { keys, stopped_by, others } => (true, stopped_by, keys, others),
            Told::Nothing { stopped_by } => (false, stopped_by, Vec::new(), BTreeMap::new()),
            Told::Busy => return Err(Problem::internal("another change still spreads, though it was waited for")),
        };
        let other = |(key, other): (String, crate::store::change::Other)| {
            let (of, until) = (Subject::of_stored(&other.pattern).pattern.to_owned(), other.till.as_deref());
            (key, InForce { value: other.text, pattern: of, until: until.map(of_micros) })
        };
        Ok(Self {
            pattern: subject.pattern.to_owned(),
            budget: subject.is_budget,
            glob: change.is_glob,
            done,
            keys: keys.into_iter().map(|(key, before, after)| KeyChange { key, before, after }).collect(),
            in_force_instead: others.into_iter().map(other).collect(),
            stopped_by: stopped_by.as_deref().map(|by| Subject::of_stored(by).pattern.to_owned()),
            jobs_out: None,
        })
    }
}
