//! Routes that forward: their jobs go into a list that the workers of another system take from.

use serde::Serialize;

use crate::model::route::Route;
use crate::model::words;

/// What stands for a partition's tag in a key.
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

/// How another system knows that a list is there: a set that names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Register {
    /// The key of the set.
    pub set: String,
    /// What is added to it.
    pub member: String,
}

/// A route that forwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Forward {
    /// As policies name it.
    pub name: Route,
    /// The key of the list.
    pub to: String,
    /// Where jobs are added: the end from which its workers do not take.
    pub end: End,
    /// Where the list is registered whenever a push found it empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub register: Option<Register>,
    /// A list that gets a `1` for each job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
}

impl Forward {
    /// The keys that it writes: the list, the list that is told, the set.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let set = self.register.as_ref().map(|register| register.set.as_str());
        [Some(self.to.as_str()), self.notify.as_deref(), set].into_iter().flatten()
    }
}
