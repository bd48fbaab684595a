//! Every key of a partition by its name, spelled here and nowhere else.

use super::partition::{Layout, Partition};
use crate::words::bucket::BucketName;
use crate::words::cut::Cut;
use crate::words::policy::Route;

/// The consumer group that counts.
pub const GROUP: &str = "workers";

/// What the key of every queue under `prefix` begins with.
pub(super) fn queues_under(prefix: &str) -> String {
    format!("{prefix}:queue:")
}

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
    pub(super) fn queue_pattern(&self) -> String {
        plain(self.queues()) + "*"
    }

    /// What every key that should be reported begins with.
    pub(super) fn reported(&self) -> [String; 2] {
        [self.queues().to_owned(), format!("{}:wake", self.prefix())]
    }

    /// The channel of which a daemon is a subscriber for as long as it is connected; its name, or how all of them begin.
    pub(super) fn alive(&self, id: &str) -> String {
        format!("{}:alive:{id}", self.prefix())
    }

    /// How the names of those channels begin, for rules of access.
    pub(super) fn acl_channels(&self) -> String {
        plain(&self.alive("")).replace(['"', '\''], "?")
    }

    /// Patterns for rules of access: this prefix as it is, and behind it a word, which may end in `*`, of every partition. A rule holds no
    /// quotes, so `?`, any one character, stands for them.
    pub(super) fn acl_pattern(&self, word: &str) -> String {
        let prefix = plain(self.prefix()).replace(['"', '\''], "?");
        match word.split_once(':') {
            _ if self.cut().is_whole() || word == "*" => format!("{prefix}:{word}"),
            Some((word, rest)) => format!("{prefix}:{word}:{{*}}:{rest}"),
            None => format!("{prefix}:{word}:{{*}}"),
        }
    }

    /// The same for the keys of `records`.
    pub(super) fn acl_records(&self) -> Vec<String> {
        let whole = Self::new(self.prefix(), Cut::default());
        vec![whole.acl_pattern("policy"), format!("{}:{{0}}", whole.acl_pattern("policy"))]
    }

    /// The keys under which a system of one partition, and one of several, keep their records: the one that is there says which it is.
    pub(super) fn records(&self) -> [String; 2] {
        [format!("{}:policy", self.prefix()), format!("{}:policy:{{0}}", self.prefix())]
    }
}

impl Partition {
    fn under(&self, word: &str) -> String {
        format!("{}:{word}{}", self.prefix(), self.tag())
    }

    /// What a word has for each of several names.
    fn each_under(&self, word: &str, name: &str) -> String {
        format!("{}:{word}{}:{name}", self.prefix(), self.tag())
    }

    /// The waiting jobs of a bucket.
    #[must_use]
    pub fn queue(&self, bucket: &BucketName) -> String {
        format!("{}{bucket}", self.queues())
    }

    /// The ready stream of a route.
    #[must_use]
    pub fn ready(&self, route: &Route) -> String {
        if route.is_default() { self.under("ready") } else { self.each_under("ready", route.as_str()) }
    }

    /// The ready stream of the default route.
    #[must_use]
    pub fn readies(&self) -> String {
        self.under("ready")
    }

    /// Bucket to due.
    #[must_use]
    pub fn schedule(&self) -> String {
        self.under("schedule")
    }

    /// Jobs that did not fit.
    #[must_use]
    pub fn rejected(&self) -> String {
        self.under("rejected")
    }

    /// Jobs that were given up.
    #[must_use]
    pub fn dead(&self) -> String {
        self.under("dead")
    }

    /// The record in force.
    #[must_use]
    pub fn policy(&self) -> String {
        self.under("policy")
    }

    /// What is set for names and budgets.
    #[must_use]
    pub fn settings(&self) -> String {
        self.under("settings")
    }

    /// What is set for globs.
    #[must_use]
    pub fn globs(&self) -> String {
        self.under("globs")
    }

    /// What the functions write when something may happen earlier than the daemons know.
    #[must_use]
    pub fn wake(&self) -> String {
        self.under("wake")
    }

    /// Bucket to the end of its next back-off.
    #[must_use]
    pub fn retries(&self) -> String {
        self.under("retries")
    }

    /// How many delayed jobs wait in all buckets.
    #[must_use]
    pub fn delays(&self) -> String {
        self.under("delays")
    }

    /// Buckets that an operator stopped.
    #[must_use]
    pub fn paused(&self) -> String {
        self.under("paused")
    }

    /// What waits for a share of a budget.
    #[must_use]
    pub fn waiting(&self) -> String {
        self.under("waiting")
    }

    /// What waits for a job in flight to finish.
    #[must_use]
    pub fn full(&self) -> String {
        self.under("full")
    }

    /// The failed jobs of a bucket.
    #[must_use]
    pub fn retry(&self, bucket: &BucketName) -> String {
        self.each_under("retry", bucket.as_str())
    }

    /// The routes whose streams are reaped.
    #[must_use]
    pub fn routes(&self) -> String {
        self.under("routes")
    }

    /// The daemons that are alive.
    #[must_use]
    pub fn daemons(&self) -> String {
        self.under("daemons")
    }

    /// What people changed while dripd runs.
    #[must_use]
    pub fn events(&self) -> String {
        self.under("events")
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> String {
        self.under("stats")
    }

    /// The keys of dripd's own whose type must be right, with that type.
    #[must_use]
    pub fn typed(&self) -> Vec<(String, &'static str)> {
        vec![
            (self.policy(), "hash"),
            (self.schedule(), "zset"),
            (self.under("rest"), "zset"),
            (self.rejected(), "stream"),
            (self.dead(), "stream"),
            (self.readies(), "stream"),
            (self.retries(), "zset"),
            (self.routes(), "set"),
            (self.stats(), "hash"),
            (self.daemons(), "hash"),
            (self.events(), "stream"),
            (self.under("level"), "hash"),
            (self.paused(), "zset"),
            (self.under("settings"), "hash"),
            (self.under("globs"), "string"),
            (self.under("ends"), "zset"),
            (self.under("reached"), "hash"),
            (self.delays(), "string"),
        ]
    }
}
