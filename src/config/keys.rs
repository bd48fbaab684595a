//! Every key of the configuration, with its default, its allowed values and its purpose. The parser reads by these
//! tables, and the tables of `docs/configuration.md` are made from them, so that both know the same keys.

mod key;
mod of_redis;

use std::time::Duration;

use crate::model::duration::LONGEST;
use crate::model::expectation;
use crate::model::parent::Parent;
use crate::model::quota::Quota;
use crate::model::rate::Rate;
use crate::model::ready_window::ReadyWindow;
use crate::model::route::Route;

pub use key::{Allowed, Key};
use key::{key, text};
pub(super) use of_redis::{PREFIX_PATTERN, URL_HINT};
pub use of_redis::{REDIS, REDIS_SENTINEL, REDIS_TLS};

const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// The table `backoff` of a policy.
pub const BACKOFF: &[Key] = &[
    key(
        "initial",
        "\"1s\"",
        Allowed::Duration(Duration::ZERO, LONGEST),
        "How long a failed job waits before its second try. The wait doubles before each further try.",
    ),
    key("max", "\"10m\"", Allowed::Duration(Duration::ZERO, LONGEST), "The longest wait. Not shorter than `initial`."),
];

/// The table `slow` of a policy or a budget.
pub const SLOW: &[Key] = &[
    key(
        "initial",
        "\"1s\"",
        Allowed::Duration(Duration::from_millis(1), LONGEST),
        "How long the first slow-down lasts where the other side names no time. Each further one lasts twice as long.",
    ),
    key(
        "max",
        "\"10m\"",
        Allowed::Duration(Duration::from_millis(1), LONGEST),
        "The longest of those. Not shorter than `initial`.",
    ),
    key(
        "cap",
        "\"1h\"",
        Allowed::Duration(Duration::from_millis(1), LONGEST),
        "The longest slow-down where the other side names a time.",
    ),
    key(
        "adaptive",
        "false",
        Allowed::Words("write true or false"),
        "Whether each slow-down also lowers the rate for a while, by a tenth.",
    ),
];

/// The allowed values of `concurrency`.
pub(super) const CONCURRENCY_HINT: &str =
    "write a whole number, 1 to 100000, or \"none\"; to let nothing out use `dripd pause`";

/// The keys of which a `[[budget]]` entry needs one.
pub const BUDGET_LIMITS: [&str; 5] = ["rate", "job_rate", "quota", "concurrency", "told"];

/// The allowed values of `job_rate`.
pub(super) const JOB_RATE_HINT: &str = "write a count and a period, as in \"500/m\", or \"none\"";

/// The allowed values of `told`.
pub(super) const TOLD_HINT: &str = "write \"stop\", \"spread\" or \"off\"";

/// The allowed values of `ttl`.
/// What `cost_max` may hold.
pub(super) const COST_MAX_HINT: &str =
    "write a whole number, 1 to 100000, or \"minute\", what the rate lets out in one";

pub(super) const TTL_HINT: &str =
    "write a whole number and a unit (us ms s m h d), as in \"30s\": 1ms to 366d, or \"none\"";

/// The allowed values of `catch_up`.
pub(super) const CATCH_UP_HINT: &str = "write a whole number and a unit (us ms s m h d), as in \"20ms\": 0s to 1s, or to one interval of the rate where that \
     is longer";

/// The most limiters of `admit`: each costs a read in every push that passes them.
pub(crate) const MOST_GATES: usize = 8;

/// The longest `catch_up` at any rate.
pub(crate) const LONGEST_CATCH_UP: Duration = LONGEST;

const SLOW_DEFAULT: &str = "{ initial = \"1s\", max = \"10m\", cap = \"1h\", adaptive = false }";

/// The keys of a policy: those of `[defaults]`, and of `[[bucket]]` beside `match`.
pub const POLICY: &[Key] = &[
    key(
        "rate",
        "\"10/s\"",
        Allowed::Words(Rate::HINT),
        "How fast jobs leave a bucket, evenly spaced: `5/s` is one job every 200 ms, `30/60s` one every 2 s.",
    ),
    key("capacity", "1000", Allowed::Number(1, 10_000_000), "How many jobs may wait in a bucket."),
    key(
        "lease",
        "\"60s\"",
        Allowed::Duration(Duration::from_secs(1), WEEK),
        "How long a worker may hold a job without finishing it or renewing its lease. Then the job counts as failed.",
    ),
    key(
        "attempts",
        "5",
        Allowed::Number(1, 1_000),
        "How often a job is tried. After the last failure it goes to the dead stream.",
    ),
    key(
        "backoff",
        "{ initial = \"1s\", max = \"10m\" }",
        Allowed::Table(BACKOFF),
        "How long a failed job waits before it is tried again.",
    ),
    key(
        "overflow",
        "\"reject\"",
        Allowed::Words("\"reject\" or \"drop-oldest\""),
        "What happens when a bucket is full: the new jobs are rejected, or the oldest waiting ones are dropped. Both go to the \
         rejected stream.",
    ),
    key(
        "route",
        "\"default\"",
        Allowed::Words(Route::HINT),
        "Which ready stream the jobs go to. Workers of that route take them from there.",
    ),
    key(
        "catch_up",
        "\"20ms\"",
        Allowed::Words(CATCH_UP_HINT),
        "The most lateness that is made up, so that the long-run rate is exact. `0s` means strict spacing. Inside a budget the \
         default is longer where that is needed for an exact rate; what is written is obeyed.",
    ),
    key(
        "admit",
        "[]",
        Allowed::Words("write a table, or a list of tables"),
        "Limiters that let a job in or refuse it, before an atomic push. A plain push passes none of them.",
    ),
    key(
        "within",
        "\"\"",
        Allowed::Words(Parent::HINT),
        "The budget above: a job leaves only when its bucket and every budget above it let it. In `[defaults]` without `{1}`. `\"\"` takes \
         it away.",
    ),
    key(
        "weight",
        "1",
        Allowed::Number(1, 1_000),
        "The share of the budget above while others wait for it too: one of weight 3 gets three times as much as one of weight 1.",
    ),
    key(
        "quota",
        "[]",
        Allowed::Words(Quota::HINT),
        "At most so many jobs in a window of the calendar, beside the rate: `\"1000/d\"` is a thousand a day, by days of UTC. `[]` takes \
         it away.",
    ),
    key(
        "concurrency",
        "\"none\"",
        Allowed::Words(CONCURRENCY_HINT),
        "At most so many jobs that have left and are not finished. `\"none\"` takes it away.",
    ),
    key(
        "ordered",
        "false",
        Allowed::Words("write true or false"),
        "Whether a bucket waits for its failed job, so that jobs finish in the order in which they were pushed. It needs `concurrency = 1`.",
    ),
    key(
        "slow",
        SLOW_DEFAULT,
        Allowed::Table(SLOW),
        "How long a bucket is slowed down when the other side says that it is too fast.",
    ),
    key(
        "job_rate",
        "\"none\"",
        Allowed::Words(JOB_RATE_HINT),
        "How fast jobs leave whatever they cost, beside `rate`, which counts what they cost. The later of both decides.",
    ),
    key(
        "told",
        "\"stop\"",
        Allowed::Words(TOLD_HINT),
        "What follows when the other side says how much more it lets through until its limit resets. `\"stop\"`: when nothing is left, \
         nothing leaves until then. `\"spread\"`: what is left is spread evenly over the time left, never faster than the rate.",
    ),
    key(
        "dedup",
        "\"10m\"",
        Allowed::Duration(Duration::from_secs(1), WEEK),
        "For how long after its accept the id of a submitted job stays taken once the job has left. While it waits the id is taken in any case.",
    ),
    key(
        "ttl",
        "\"none\"",
        Allowed::Words(TTL_HINT),
        "How long a submitted job, or a single one over HTTP, may wait before it is given up, where it does not say so itself. A plain push \
         tells no time, so it does not apply there.",
    ),
    key(
        "cost_max",
        "\"minute\"",
        Allowed::Words(COST_MAX_HINT),
        "The most that one job may cost. `\"minute\"`: what the rate lets out in a minute, but at least 1 and at most 100,000. A job that costs \
         more is refused: it would stop the budgets above for longer.",
    ),
];

/// The keys of a budget, beside `match`.
pub const BUDGET: &[Key] = &[
    key("within", "\"\"", Allowed::Words(Parent::HINT), "The budget above this one."),
    text("rate", Rate::HINT, "How fast jobs leave all that is below it together, evenly spaced."),
    key(
        "quota",
        "[]",
        Allowed::Words(Quota::HINT),
        "At most so many jobs of all that is below it in a window of the calendar, beside the rate.",
    ),
    key(
        "concurrency",
        "\"none\"",
        Allowed::Words(CONCURRENCY_HINT),
        "At most so many jobs of all that is below it that have left and are not finished.",
    ),
    key("weight", "1", Allowed::Number(1, 1_000), "Its share of the budget above while others wait for that too."),
    text(
        "catch_up",
        CATCH_UP_HINT,
        "The most lateness that is made up. Not written: 20ms, or as much as its rate inside the budget above needs.",
    ),
    key(
        "slow",
        SLOW_DEFAULT,
        Allowed::Table(SLOW),
        "How long all that is below it is slowed down when the other side says that it is too fast.",
    ),
    key(
        "job_rate",
        "\"none\"",
        Allowed::Words(JOB_RATE_HINT),
        "How fast jobs leave all that is below it whatever they cost, beside `rate`, which counts what they cost.",
    ),
    key(
        "told",
        "\"stop\"",
        Allowed::Words(TOLD_HINT),
        "What follows for all that is below it when the other side says how much more it lets through. With `\"spread\"` it needs no rate: what \
         is told alone paces it.",
    ),
];

/// The form of `match` of a budget.
pub(super) const BUDGET_MATCH_HINT: &str =
    "write the name of a budget, or a glob such as \"twilio:*\", without control characters or braces";

/// The key of `[[budget]]` beside those of a budget.
pub const BUDGET_MATCH: &[Key] = &[text(
    "match",
    BUDGET_MATCH_HINT,
    "Which budgets the entry is for: a name, or a glob for one budget of each name that a `within` comes to. It must be there.",
)];

/// The key of `[[expect]]`.
pub const EXPECT: &[Key] = &[text(
    "assert",
    expectation::HINT,
    "What must come out of `dripd simulate` with this file, as in `sms:* wait.p99 < 30s`. A daemon does not read it. It must be there.",
)];

/// The key of `[[bucket]]` beside those of a policy.
pub const BUCKET: &[Key] = &[text(
    "match",
    "write a glob such as \"sms:*\"",
    "Which buckets the entry is for: a name (`acme`), a plain prefix (`sms:*`), or any glob as in Redis `KEYS`. It must be there.",
)];

/// `[limits]`.
pub const LIMITS: &[Key] = &[
    key(
        "max_job_bytes",
        "1048576",
        Allowed::Number(1, 512 * 1_048_576),
        "The size of the largest job. A larger one is rejected: in an atomic push at once, after a plain push when its turn comes.",
    ),
    key(
        "rejected_keep",
        "10000",
        Allowed::Number(0, 10_000_000),
        "How many entries the rejected stream keeps. The oldest go first.",
    ),
    key(
        "max_ready",
        "10000",
        Allowed::Number(1, 10_000_000),
        "How many jobs of a route may wait for a worker, at most. While so many wait, the buckets of that route are held. `ready_window` \
         mostly keeps them far fewer.",
    ),
    key(
        "batch",
        "100",
        Allowed::Number(1, 1_000),
        "How many jobs or buckets one call handles. Larger is a little faster, and other clients of Redis wait longer.",
    ),
    key(
        "ready_window",
        "\"250ms\"",
        Allowed::Words(ReadyWindow::HINT),
        "How old jobs that no worker has read may become. While the oldest one of a route is older, the buckets of that route are held. \
         `\"off\"`: only `max_ready` bounds them.",
    ),
];

/// `[http]`.
pub const HTTP: &[Key] = &[
    key(
        "listen",
        "\"127.0.0.1:7380\"",
        Allowed::Words(
            "write an address and a port, as in \"127.0.0.1:7380\", \"unix:/path/to/socket\", or \"\" for none",
        ),
        "Where the HTTP server listens. Sockets that systemd passes replace it. An address that others reach needs a token. \
         A port that is taken is an error where it is written here; the default one is a warning, and the daemon serves without HTTP.",
    ),
    key(
        "hosts",
        "[]",
        Allowed::Words("write a list of names such as \"drip.example.com\", each with or without a port"),
        "By which names others reach the server, besides those of loopback: behind a reverse proxy, its name. Requests for other names are refused.",
    ),
    key(
        "memory",
        "67108864",
        Allowed::Number(16 * 1_048_576, 2_147_483_648),
        "How many bytes all bodies and answers together hold at most. A request that finds no room waits, and after 5 s is answered `503`. \
         A change needs a restart.",
    ),
];

/// `[[http.token]]`.
pub const HTTP_TOKEN: &[Key] = &[
    text("name", "write a name, at most 100 bytes", "Who that is, in logs and events. It must be there."),
    text(
        "file",
        "write the path of a file whose first line is the token",
        "The file whose first line is the token. A relative path may be the name of a credential that systemd passes. It must be there.",
    ),
    text(
        "may",
        "write push, read or operate",
        "`push`: pushes, and their verdict. `read`: every GET. `operate`: all. It must be there.",
    ),
    key(
        "match",
        "\"*\"",
        Allowed::Words("write a glob such as \"billing:*\""),
        "The buckets that it is for. One that is not for all opens only requests that name a bucket.",
    ),
];

/// The table `register` of a route.
pub const ROUTE_REGISTER: &[Key] = &[
    text("set", KEY_HINT, "The set that names the lists. It must be there."),
    text("member", KEY_HINT, "What is added to it, as the other system spells this list. It must be there."),
];

/// The form of a Redis key of another system.
const KEY_HINT: &str = "write 1 to 500 bytes without control characters";

/// `[[route]]`.
pub const ROUTE: &[Key] = &[
    text("name", Route::HINT, "The route, as `route` of a policy names it. It must be there."),
    text(
        "to",
        KEY_HINT,
        "The key of the list that the jobs go into, in the same Redis. With `redis.partitions` it holds `{p}`, which stands for the tag of each \
         partition. Without it the route has a ready stream, and only `ready_window` may be written.",
    ),
    key(
        "end",
        "\"left\"",
        Allowed::Words("write \"left\" or \"right\""),
        "At which end jobs are added: the one from which the workers of the list do not take.",
    ),
    key(
        "register",
        "",
        Allowed::Table(ROUTE_REGISTER),
        "A set in which the other system looks for its lists. The list is added whenever a job finds it empty.",
    ),
    text(
        "notify",
        KEY_HINT,
        "Another list, which gets a `1` for each job, for workers that wait there. Laravel's do where `block_for` is set.",
    ),
    text(
        "ready_window",
        ReadyWindow::HINT,
        "How old jobs of this route that no worker has taken may become. Not written: as `[limits]` says.",
    ),
];
