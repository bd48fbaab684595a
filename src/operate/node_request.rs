//! A change of what holds one bucket or budget, as `slow` and `told` make it: which node is meant, and why.

use super::target::Target;
use crate::model::bucket::BucketName;
use crate::model::subject::Subject;
use crate::store::Partitions;
use crate::store::change::NodeChange;

/// A change of one bucket or budget, or of a budget above the bucket.
#[derive(Debug, Clone)]
pub struct NodeRequest<W> {
    /// The bucket or the budget.
    pub target: Target,
    /// What is asked for; `None` ends or forgets what was asked for before.
    pub what: Option<W>,
    /// A budget above the bucket, which is changed in its place.
    pub within: Option<BucketName>,
    /// The reason that the operator gave, if any.
    pub reason: Option<String>,
}

impl<W> NodeRequest<W> {
    /// The bucket or budget that is changed: `within` where it is given, otherwise the target.
    pub fn node(&self) -> Subject<'_> {
        match &self.within {
            Some(budget) => Subject { is_budget: true, pattern: budget.as_str() },
            None => self.target.subject(),
        }
    }

    /// That no job waits in the bucket that was named, if so.
    pub(super) async fn note(&self, store: &Partitions) -> Option<String> {
        if self.within.is_some() { None } else { self.target.note(store).await }
    }

    /// The change for the store, in the name of `by`.
    pub(super) async fn change<C>(&self, what: C, store: &mut Partitions, by: &str) -> NodeChange<C> {
        NodeChange {
            node: self.target.subject().stored(),
            within: self.within.as_ref().map(|budget| budget.as_str().to_owned()),
            what,
            by: by.to_owned(),
            user: store.whoami().await,
            reason: self.reason.clone(),
        }
    }
}
