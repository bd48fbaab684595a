//! `explain`: why a bucket or a budget waits.

use crate::config::Config;
use crate::explain::{BudgetSaid, Explanation, File, LocalTime};
use crate::model::bucket::BucketName;
use crate::store::{Partitions, StoreError};

/// Explain a bucket. With a configuration file the explanation says whether that file is in force. Without one there is
/// nothing to compare: a daemon may have read its policies elsewhere.
///
/// # Errors
///
/// A call to Redis fails.
pub async fn explain_bucket(
    store: &Partitions,
    bucket: &BucketName,
    config: &Config,
) -> Result<Explanation, StoreError> {
    let mut facts = store.of(bucket).explain(bucket).await?;
    facts.writes_refused = store.of(bucket).writes_refused().await?;
    let is_in_force = if config.path.is_some() { store.authority().has_record(&config.record).await? } else { None };
    let file = File { name: config.source(), is_in_force };
    Ok(Explanation::of(&facts, file, &LocalTime::here(facts.now_us)))
}

/// Explain a budget.
///
/// # Errors
///
/// A call to Redis fails; [`StoreError::Refused`] with `BADARG` where there is no such budget.
pub async fn explain_budget(store: &Partitions, budget: &BucketName) -> Result<BudgetSaid, StoreError> {
    let mut facts = store.of(budget).explain_budget(budget).await?;
    facts.writes_refused = store.of(budget).writes_refused().await?;
    Ok(BudgetSaid::of(&facts, &LocalTime::here(facts.now_us)))
}
