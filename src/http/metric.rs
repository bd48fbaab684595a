//! What `/metrics` and `/metrics/buckets` serve: the name, the kind, the labels and the help of each metric. `docs/metrics.md` is made of it.

/// Whether a metric only grows, goes up and down, or counts values by size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How many values lie below each bound, how many there are, and their sum.
    Histogram,
}

/// A metric, as Prometheus sees it.
#[derive(Debug)]
pub struct Metric {
    /// Its name, with the unit at its end.
    pub name: &'static str,
    /// What its samples mean.
    pub kind: Kind,
    /// The names of its labels, in the order in which their values are given.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

/// Declare metrics, and the list of all of them.
macro_rules! metrics {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(#[doc = $help] pub const $id: Metric =
            Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*
        /// All metrics, in the order in which they are served.
        pub const ALL: &[Metric] = &[$($id),*];
    };
}

metrics! {
    BUILD_INFO = Gauge "dripd_build_info" ["version"] "1, with the version of this daemon.";
    REDIS_UP = Gauge "dripd_redis_up" [] "1: Redis answered the question behind this scrape.";
    PARTITIONS = Gauge "dripd_partitions" ["state"] "Partitions of this daemon: served, or waiting for their Redis.";
    POLICY_IN_FORCE = Gauge "dripd_policy_in_force" [] "1: the policies in force are those of this daemon's own file.";
    REDIS_RECONNECTS = Counter "dripd_redis_reconnects_total" [] "Connections that this daemon made anew after one was lost.";
    WAKEUPS = Counter "dripd_wakeups_total" ["by"] "What woke this daemon: keys that Redis reported, and queues found by looking.";
    REDIS_CALL = Histogram "dripd_redis_call_seconds" ["call"] "How long calls of this daemon to Redis took, the way there and back included.";
    PUSHED = Counter "dripd_jobs_pushed_atomically_total" ["verdict"] "Jobs of atomic pushes: by the function, dripd push or HTTP. Plain pushes run no code and are not counted.";
    REJECTED = Counter "dripd_jobs_rejected_total" ["reason"] "Jobs that did not go in, or were thrown out, by why.";
    DISPATCHED = Counter "dripd_jobs_dispatched_total" ["route"] "Jobs that left their buckets, retries included.";
    FINISHED = Counter "dripd_jobs_finished_total" ["outcome"] "Jobs that are done with a dispatch: acknowledged (by any worker), forwarded into a list of another system, to be tried again, dead, given back, turned away by the other side, or taken back when their lease ended.";
    LATENESS = Histogram "dripd_lateness_seconds" [] "How long after their due jobs left; the sum is told from finer buckets, to within a tenth.";
    SLOW_INCIDENTS = Counter "dripd_slow_incidents_total" ["policy"] "How often a policy's other side said that it is too fast.";
    TOLD_REPORTS = Counter "dripd_told_reports_total" [] "How often the other side said how much more it lets through.";
    COST_CORRECTIONS = Counter "dripd_cost_corrections_total" ["real"] "Jobs that workers said really cost less, or more, than was said at the submit.";
    LIFETIMES_REMOVED = Counter "dripd_lifetimes_removed_total" [] "Keys of dripd that had a time to live, which was taken away: somebody uses EXPIRE on them.";
    QUEUES_VANISHED = Counter "dripd_queues_vanished_total" [] "Queues that were empty at the turn of a bucket that had jobs: deleted, expired, evicted, or emptied by somebody else.";
    PARTITION_AWAY = Gauge "dripd_partition_away" ["partition", "node"] "1: this partition of the cluster cannot be reached. The counters of jobs are left out meanwhile.";
    BUCKETS = Gauge "dripd_buckets" ["state"] "Buckets and budgets that wait: for their due, a share, a slot, their route, an operator, or a budget that cannot be found; and (retrying) buckets with failed jobs or delayed ones.";
    SETTINGS = Gauge "dripd_settings" ["kind"] "Names and globs that have settings, and buckets and budgets of which a slow-down or a told limit is known.";
    OVERDUE = Gauge "dripd_overdue_seconds" ["place"] "For how long the first one there has been due.";
    READY_UNDELIVERED = Gauge "dripd_ready_undelivered" ["route"] "Jobs that have left their buckets and that no worker has taken; of a route that forwards, how many its list holds.";
    READY_OLDEST = Gauge "dripd_ready_oldest_seconds" ["route"] "How long the oldest of those has been there.";
    IN_FLIGHT = Gauge "dripd_in_flight" ["route"] "Jobs that workers hold.";
    DEAD_JOBS = Gauge "dripd_dead_jobs" [] "Jobs that were given up.";
    DELAYED_JOBS = Gauge "dripd_delayed_jobs" [] "Delayed jobs that wait for their time.";
    DAEMONS = Gauge "dripd_daemons" [] "Daemons that are alive.";
    ROUTE_AGE = Gauge "dripd_route_age_seconds" ["route"] "How long ago the oldest job left that no worker has taken; 0: there is none. Scale workers by it.";
    ROUTE_UNDELIVERED = Gauge "dripd_route_undelivered" ["route"] "Jobs that have left their buckets and that no worker has taken.";
    ROUTE_LIMIT = Gauge "dripd_route_limit" ["route"] "How many of those hold the buckets of the route now.";
    ROUTE_HELD_BUCKETS = Gauge "dripd_route_held_buckets" ["route"] "Buckets that are due and held until workers take more.";
    ROUTE_IN_FLIGHT = Gauge "dripd_route_in_flight" ["route"] "Jobs that workers hold.";
    ROUTE_TAKEN = Counter "dripd_route_taken_total" ["route"] "Jobs that workers have taken.";
    BUDGET_UTILIZATION = Gauge "dripd_budget_utilization_ratio" ["budget"] "Of the budgets of an entry that have most waiting, the highest use: of the rate in the last seconds, of the slots or of the quota.";
    BUDGET_WAITING = Gauge "dripd_budget_waiting" ["budget"] "Buckets and budgets that wait for a share of the budgets of an entry.";
    BUDGET_CREDIT = Gauge "dripd_budget_credit_seconds" ["budget"] "Of the budgets of an entry that have most waiting, the largest credit of corrected costs, as a time at its rate; where one is in debt the largest debt, negative.";
    REDIS_LACKS = Gauge "dripd_redis_lacks" ["what"] "1: Redis lacks this to keep every promise; `writes`: it takes none now.";
    BUCKET_DEPTH = Gauge "dripd_bucket_depth" ["bucket"] "Jobs that wait.";
    BUCKET_CAPACITY = Gauge "dripd_bucket_capacity" ["bucket"] "How many may wait.";
    BUCKET_RATE = Gauge "dripd_bucket_rate" ["bucket"] "Its rate, in jobs a second.";
    BUCKET_EMPTY_IN = Gauge "dripd_bucket_empty_in_seconds" ["bucket"] "Until it is empty, if nothing more comes.";
    BUCKET_LATE = Gauge "dripd_bucket_late_seconds" ["bucket"] "For how long its next job has been due; 0 where it waits for something else.";
    BUCKET_REJECTED = Gauge "dripd_bucket_rejected_recently" ["bucket"] "Jobs of it that were rejected in the last 10 to 20 minutes, about.";
}
