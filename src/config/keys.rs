//! Every key of the configuration: its default, what it may be and what it is for. The parser reads by these tables, and the
//! tables of `docs/configuration.md` are made from them, so neither can know of a key that the other does not.

use std::fmt;
use std::time::Duration;

use super::server::PREFIX_HINT;
use crate::words::duration;
use crate::words::policy::Route;
use crate::words::rate::Rate;

/// A key of a section.
#[derive(Debug)]
pub struct Key {
    /// As it is written.
    pub name: &'static str,
    /// What holds where it is not written, as TOML; empty where there is no default.
    pub default: &'static str,
    /// What may be written.
    pub allowed: Allowed,
    /// What it is for, in a sentence or two.
    pub about: &'static str,
}

/// What may be written for a key.
#[derive(Debug)]
pub enum Allowed {
    /// A whole number within bounds.
    Number(u64, u64),
    /// A duration within bounds.
    Duration(Duration, Duration),
    /// Something that a sentence describes.
    Words(&'static str),
    /// A table with keys of its own.
    Table(&'static [Key]),
}

/// What would be right, as error messages say it.
impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(least, most) => write!(f, "write a whole number, {least} to {most}"),
            Self::Duration(least, most) => write!(
                f,
                "write a whole number and a unit (us ms s m h d), as in \"20ms\": {} to {}",
                duration::show(*least),
                duration::show(*most)
            ),
            Self::Words(words) => f.write_str(words),
            Self::Table(_) => f.write_str("write a table"),
        }
    }
}

const fn key(name: &'static str, default: &'static str, allowed: Allowed, about: &'static str) -> Key {
    Key { name, default, allowed, about }
}

const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(366 * 86_400);

/// What a URL looks like, for error messages.
pub(super) const URL_HINT: &str = "write redis://[user:password@]host[:port][/db] or unix:///path/to/redis.sock";

/// `[redis]`.
pub const REDIS: &[Key] = &[
    key(
        "url",
        "",
        Allowed::Words(URL_HINT),
        "Where your Redis is. Without it dripd starts and supervises its built-in Redis. `$DRIPD_REDIS_URL` overrides it.",
    ),
    key(
        "password_file",
        "",
        Allowed::Words("the path of a file"),
        "A file whose content is the password for `url`. Under systemd the credential `redis-password` is found by itself.",
    ),
    key(
        "prefix",
        "\"drip\"",
        Allowed::Words(PREFIX_HINT),
        "What every key begins with. Give each dripd its own prefix where several share a Redis: at most four.",
    ),
    key(
        "data_dir",
        "\"./dripd-data\"",
        Allowed::Words("the path of a directory"),
        "Where the built-in Redis keeps its data. Under systemd `$STATE_DIRECTORY` is the default.",
    ),
    key("port", "7379", Allowed::Words("a port, 1 to 65535"), "The port of the built-in Redis, on 127.0.0.1."),
    key(
        "fsync",
        "\"everysec\"",
        Allowed::Words("\"everysec\" or \"always\""),
        "When the built-in Redis writes its file through to the disk. With `everysec` a crash of Redis may undo the last two \
         seconds; with `always` it undoes nothing, and each push waits for the disk.",
    ),
];

/// Keys of `[redis]` that are to come.
pub const REDIS_TO_COME: &[&str] = &["user", "partition_by", "partitions", "cluster", "sentinel", "tls"];

/// The table `backoff` of a policy.
pub const BACKOFF: &[Key] = &[
    key(
        "initial",
        "\"1s\"",
        Allowed::Duration(Duration::ZERO, YEAR),
        "How long a failed job waits before its second try. The wait doubles before each further try.",
    ),
    key("max", "\"10m\"", Allowed::Duration(Duration::ZERO, YEAR), "The longest wait. Not shorter than `initial`."),
];

/// A policy: the keys of `[defaults]`, and of `[[bucket]]` beside `match`.
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
        Allowed::Duration(Duration::from_secs(1), Duration::from_secs(7 * DAY.as_secs())),
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
        Allowed::Duration(Duration::ZERO, Duration::from_secs(1)),
        "The most lateness that is made up, so that the long-run rate is exact. `0s` means strict spacing.",
    ),
    key(
        "admit",
        "[]",
        Allowed::Words("write a table, or a list of tables"),
        "Limiters that let a job in or refuse it, before an atomic push. A plain push passes none of them.",
    ),
];

/// Keys of a policy that are to come.
pub const POLICY_TO_COME: &[&str] =
    &["within", "job_rate", "quota", "concurrency", "ordered", "weight", "slow", "ttl", "dedup"];

/// What `[[bucket]]` has beside the keys of a policy.
pub const BUCKET: &[Key] = &[key(
    "match",
    "",
    Allowed::Words("write a glob such as \"sms:*\""),
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
        "How many jobs of a route may wait for a worker. While so many wait, the buckets of that route are held.",
    ),
    key(
        "batch",
        "100",
        Allowed::Number(1, 1_000),
        "How many jobs or buckets one call handles. Larger is a little faster, and other clients of Redis wait longer.",
    ),
];

/// Sections that are to come, with their keys.
pub const HTTP_TO_COME: &[&str] = &["listen", "hosts", "token"];

/// Further sections that are to come.
pub const SECTIONS_TO_COME: &[&str] = &["budget", "route"];
