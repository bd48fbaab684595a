//! Every key of a partition by its name, spelled here and nowhere else.

pub mod partition;

pub use partition::{Layout, Partition};

use crate::model::bucket::BucketName;
use crate::model::partitioning::Partitioning;
use crate::model::route::Route;

/// The consumer group that counts.
pub const GROUP: &str = "workers";

/// A text as a glob that matches it and nothing else.
fn plain(text: &str) -> String {
    let mut glob = String::new();
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            glob.push('\\');
        }
        glob.push(c);
    }
    glob
}

impl Layout {
    /// A pattern that matches the key of every queue, for `SCAN`.
    pub(in crate::store) fn queue_pattern(&self) -> String {
        plain(self.queues()) + "*"
    }

    /// The prefixes of all keys that should be reported.
    pub(in crate::store) fn reported(&self) -> [String; 2] {
        [self.queues().to_owned(), format!("{}:wake", self.prefix())]
    }

    /// The channel of which a daemon is a subscriber for as long as it is connected; its name, or how all of them begin.
    pub(in crate::store) fn alive(&self, id: &str) -> String {
        format!("{}:alive:{id}", self.prefix())
    }

    /// How the names of those channels begin, for rules of access.
    pub(in crate::store) fn acl_channels(&self) -> String {
        plain(&self.alive("")).replace(['"', '\''], "?")
    }

    /// Patterns for rules of access: this prefix as it is, and behind it a word, which may end in `*`, of every partition. A rule holds no
    /// quotes, so `?`, any one character, stands for them.
    pub(in crate::store) fn acl_pattern(&self, word: &str) -> String {
        let prefix = plain(self.prefix()).replace(['"', '\''], "?");
        match word.split_once(':') {
            _ if self.partitioning().is_single() || word == "*" => format!("{prefix}:{word}"),
            Some((word, rest)) => format!("{prefix}:{word}:{{*}}:{rest}"),
            None => format!("{prefix}:{word}:{{*}}"),
        }
    }

    /// Patterns for rules of access to the keys of `records`.
    pub(in crate::store) fn acl_records(&self) -> Vec<String> {
        let whole = Self::new(self.prefix(), Partitioning::default());
        vec![whole.acl_pattern("policy"), format!("{}:{{0}}", whole.acl_pattern("policy"))]
    }

    /// The keys under which a system of one partition, and one of several, keep their records: the one that is there says which it is.
    pub(in crate::store) fn records(&self) -> [String; 2] {
        [format!("{}:policy", self.prefix()), format!("{}:policy:{{0}}", self.prefix())]
    }
}

/// The keys of which a partition has one each, under the word by which the method is called.
macro_rules! single_keys {
    ($($(#[$about:meta])* $word:ident,)+) => {
        impl Partition {
            $($(#[$about])* pub fn $word(&self) -> String { self.under(stringify!($word)) })+
        }
    };
}

single_keys! {
    /// Bucket to due.
    schedule,
    /// Jobs that did not fit.
    rejected,
    /// Jobs that were given up.
    dead,
    /// The record in force.
    policy,
    /// Settings of names and budgets.
    settings,
    /// Settings of globs.
    globs,
    /// The key that functions write when something may happen earlier than the daemons know.
    wake,
    /// Bucket to the end of its next back-off.
    retries,
    /// How many delayed jobs wait in all buckets.
    delays,
    /// Buckets that an operator stopped.
    paused,
    /// Buckets and budgets of which no policy holds.
    refused,
    /// Buckets and budgets that wait for a share of a budget.
    waiting,
    /// Buckets and budgets that wait for a job in flight to finish.
    full,
    /// The routes whose streams are reaped.
    routes,
    /// The daemons that are alive.
    daemons,
    /// Changes that people made while dripd runs.
    events,
    /// Counters.
    stats,
}

impl Partition {
    fn under(&self, word: &str) -> String {
        format!("{}:{word}{}", self.prefix(), self.tag())
    }

    /// The key of one of several names under a word.
    fn each_under(&self, word: &str, name: &str) -> String {
        format!("{}:{word}{}:{name}", self.prefix(), self.tag())
    }

    /// The waiting jobs of a bucket.
    pub fn queue(&self, bucket: &BucketName) -> String {
        format!("{}{bucket}", self.queues())
    }

    /// The ready stream of a route.
    pub fn ready(&self, route: &Route) -> String {
        if route.is_default() { self.under("ready") } else { self.each_under("ready", route.as_str()) }
    }

    /// The failed jobs of a bucket.
    pub fn retry(&self, bucket: &BucketName) -> String {
        self.each_under("retry", bucket.as_str())
    }

    /// The keys of dripd's own whose type must be right before a daemon begins, with that type.
    pub fn typed(&self) -> Vec<(String, &'static str)> {
        vec![
            (self.policy(), "hash"),
            (self.schedule(), "zset"),
            (self.under("rest"), "zset"),
            (self.rejected(), "stream"),
            (self.dead(), "stream"),
            (self.under("ready"), "stream"),
            (self.retries(), "zset"),
            (self.routes(), "set"),
            (self.stats(), "hash"),
            (self.daemons(), "hash"),
            (self.events(), "stream"),
            (self.under("level"), "hash"),
            (self.paused(), "zset"),
            (self.settings(), "hash"),
            (self.globs(), "string"),
            (self.under("ends"), "zset"),
            (self.under("reached"), "hash"),
            (self.delays(), "string"),
            (self.under("budgets"), "hash"),
            (self.under("windows"), "hash"),
            (self.under("slow"), "hash"),
            (self.under("paid"), "hash"),
            (self.under("told"), "hash"),
            (self.under("over"), "zset"),
            (self.under("waiting"), "hash"),
            (self.under("refused"), "zset"),
            (self.under("full"), "zset"),
        ]
    }

    /// The others, with their types. The functions go on without one of these, or only some calls need it.
    pub fn typed_besides(&self) -> Vec<(String, &'static str)> {
        vec![
            (self.under("slots"), "hash"),
            (self.under("inflight"), "zset"),
            (self.under("adjusted"), "zset"),
            (self.under("turns"), "hash"),
            (self.under("changed"), "zset"),
            (self.under("unset"), "zset"),
            (self.under("wake"), "string"),
        ]
    }
}
