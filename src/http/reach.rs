//! How far a change of a policy reaches: what a token that is for some buckets may change of them.
//!
//! Most keys say how a bucket's own jobs wait and leave. The others act on what it shares with other buckets: `within`
//! spends what a budget allows, or gets out of it; `weight` takes from the share of the siblings; `lease` says how long a
//! worker that died keeps a slot of the budget; `route` hands the jobs to other workers. For these the token must be for
//! all budgets above too, or the configuration must say the same already. What a job may cost is for tokens of all
//! buckets: a job that was let in may move below any budget later.

use axum::http::StatusCode;

use super::auth::Caller;
use super::problem::Problem;
use super::state::AppState;
use crate::config::settings::Setting;
use crate::model::bucket::BucketName;
use crate::model::glob::Glob;
use crate::model::parent::Parent;
use crate::model::policy::{Policy, Record};

/// The keys that act on the bucket's own jobs alone. A key that is missing here counts as one that reaches further.
const OWN: [&str; 15] = [
    "rate",
    "capacity",
    "attempts",
    "backoff",
    "overflow",
    "catch_up",
    "admit",
    "quota",
    "concurrency",
    "ordered",
    "slow",
    "job_rate",
    "told",
    "dedup",
    "ttl",
];

/// Whether a key acts on the budget above the bucket, or on what shares that budget. (Of what is set, a pause and a
/// closure are no keys of a policy.)
fn acts_on_the_budget(key: &str) -> bool {
    !["route", "pause", "close"].contains(&key) && !OWN.contains(&key)
}

/// The text that a setting gives to a field of the stored policy.
fn text<'a>(values: &'a [Setting], key: &str) -> Option<&'a str> {
    values.iter().find(|one| one.key == key).and_then(|one| one.policy.get(key)?.as_str())
}

/// The policy that the configuration gives to a bucket, before anything is set at run time.
fn policy_in_file<'a>(record: &'a Record, bucket: &BucketName) -> &'a Policy {
    let mut entries = record.buckets.iter();
    let entry = entries.find(|entry| Glob::parse(&entry.glob).matches(bucket.as_str().as_bytes()));
    entry.map_or(&record.defaults, |entry| &entry.policy)
}

fn forbidden(caller: &Caller, what: &str) -> Problem {
    let detail = format!("the token {:?} is for some buckets only: {what}", caller.name());
    Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
}

/// Check that the token covers every budget that a `within` may come to.
fn covers(caller: &Caller, parent: &Parent) -> Result<(), Problem> {
    if caller.covers_all_of(&parent.glob()) {
        return Ok(());
    }
    Err(forbidden(caller, &format!("not for the budget {:?}", parent.as_str())))
}

/// Check that what is to be set names no budget and no workers of others: the budget is one that the token is for, and
/// the route is the one that the configuration gives to the bucket.
pub(super) fn names_nothing_of_others(
    caller: &Caller,
    state: &AppState,
    bucket: &BucketName,
    values: &[Setting],
) -> Result<(), Problem> {
    if caller.is_for_all() {
        return Ok(());
    }
    if let Some(within) = text(values, "within").filter(|within| !within.is_empty()) {
        let parent = Parent::parse(within).map_err(|why| Problem::bad_request(format!("within: {why}")))?;
        covers(caller, &parent)?;
    }
    if values.iter().any(|one| one.key == "cost_max") {
        return Err(forbidden(
            caller,
            "how much a job may cost is said by a token for all of them, or by the configuration",
        ));
    }
    let config = state.config();
    let in_file = policy_in_file(&config.record, bucket).route.as_str();
    match text(values, "route") {
        Some(route) if route != in_file => {
            let what =
                format!("{:?} may have the route {in_file:?} of the configuration, and no other", bucket.as_str());
            Err(forbidden(caller, &what))
        }
        _ => Ok(()),
    }
}

/// Check that all budgets above a bucket are ones that the token is for. Replies the keys that are set for the bucket by
/// its name.
async fn stays_in_its_own(
    caller: &Caller,
    state: &AppState,
    bucket: &BucketName,
    keys: impl Fn(&[String]) -> Vec<String>,
) -> Result<Vec<String>, Problem> {
    let facts = state.query(async |whole| whole.of(bucket).explain(bucket).await).await?;
    let Some(level) = facts.levels.first() else { return Ok(Vec::new()) };
    let set: Vec<String> =
        level.set.iter().filter(|one| one.pattern == bucket.as_str()).map(|one| one.key.clone()).collect();
    let changed = keys(&set);
    let of_others = facts.levels.iter().filter_map(|level| level.within.as_ref()).find(|budget| !caller.covers(budget));
    if let (Some(key), Some(budget)) = (changed.first(), of_others) {
        let bucket = bucket.as_str();
        let what = format!("{key} of {bucket:?} acts on the budget {budget:?} and on all that share it");
        return Err(forbidden(caller, &what));
    }
    Ok(changed)
}

/// Check that a caller may set these keys of a bucket.
pub(super) async fn may_set(
    caller: &Caller,
    state: &AppState,
    bucket: &BucketName,
    values: &[Setting],
) -> Result<(), Problem> {
    names_nothing_of_others(caller, state, bucket, values)?;
    let far: Vec<String> = values.iter().map(|one| one.key.clone()).filter(|key| acts_on_the_budget(key)).collect();
    if caller.is_for_all() || far.is_empty() {
        return Ok(());
    }
    stays_in_its_own(caller, state, bucket, |_| far.clone()).await.map(|_| ())
}

/// Check that a caller may take these keys of a bucket back to the configuration; an empty list stands for all that are
/// set. The route is then that of the configuration, which any caller may have.
pub(super) async fn may_unset(
    caller: &Caller,
    state: &AppState,
    bucket: &BucketName,
    keys: &[String],
) -> Result<(), Problem> {
    let is_asked_for = |key: &String| keys.is_empty() || keys.contains(key);
    if caller.is_for_all() || !(keys.is_empty() || keys.iter().any(|key| acts_on_the_budget(key))) {
        return Ok(());
    }
    let far = |set: &[String]| set.iter().filter(|key| is_asked_for(key) && acts_on_the_budget(key)).cloned().collect();
    let unset = stays_in_its_own(caller, state, bucket, far).await?;
    let config = state.config();
    match &policy_in_file(&config.record, bucket).node.within {
        // What was set may have kept the bucket out of this budget.
        Some(parent) if !unset.is_empty() => covers(caller, parent),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings;

    #[test]
    fn every_key_of_a_policy_was_asked_whether_it_reaches_beyond_its_bucket() {
        // docs/http.md says what each of these needs. A cost is paid by the budgets above as well.
        let further = ["route", "within", "weight", "lease", "cost_max"];
        let far = settings::keys(false).filter(|key| !OWN.contains(key));
        assert_eq!(far.filter(|key| !further.contains(key)).collect::<Vec<_>>(), [""; 0]);
        assert!(OWN.iter().all(|own| settings::keys(false).any(|key| key == *own)));
    }
}
