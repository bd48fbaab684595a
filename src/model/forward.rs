//! Routes that forward: their jobs go into a list that the workers of another system take from.

use serde::Serialize;

use crate::model::route::Route;
use crate::model::words;

/// The placeholder for a partition's tag in a configured key.
pub const TAG: &str = "{p}";

words! {
    /// The end of a list.
    #[derive(Default, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum End {
        /// Its head.
        #[default]
        Left = "left",
        /// Its tail.
        Right = "right",
    }
}

/// The set by which another system knows that a list exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Register {
    /// The key of the set.
    pub set: String,
    /// The member that is added to the set.
    pub member: String,
}

/// A route that forwards, and where its jobs go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Forward {
    /// The name of the route, as policies write it.
    pub name: Route,
    /// The key of the list that gets the jobs.
    pub to: String,
    /// The end at which jobs are added; the workers take from the other end.
    pub end: End,
    /// The set in which the list is registered whenever a push found the list empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub register: Option<Register>,
    /// The key of a list that gets a `1` for each job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
}

impl Forward {
    /// The keys that the route writes: the list of jobs, the `notify` list, the set.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let set = self.register.as_ref().map(|register| register.set.as_str());
        [Some(self.to.as_str()), self.notify.as_deref(), set].into_iter().flatten()
    }
}
