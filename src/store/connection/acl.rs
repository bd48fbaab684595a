//! Roles: what a user of Redis needs to do the work of one, and nothing else. `dripd acl` prints it.
//!
//! Redis lets a user call single functions (`+fcall|drip_ack`), but checks each command that a function makes by the rights of
//! its caller. So a role is a list of grants, each some commands on some keys: what its functions are called, and what they do inside.
//! A new function gets its place here, in `ROLES` (a test asks for it), and so does a new command or key that one of these
//! functions uses: another test lets each role do its work on a real server and finds no refusal in its log.

use super::address::read_url;
use crate::config::RedisSettings;
use crate::config::connection::Place;
use crate::model::forward::{Forward, TAG};
use crate::model::words;
use crate::store::keys::Layout;

words! {
    /// The purpose of a user of Redis.
    pub enum Role {
        /// Pushes plainly, and can do nothing else.
        Producer = "producer",
        /// Pushes by function, and asks limiters.
        Submitter = "submitter",
        /// Takes jobs and says what became of them.
        Worker = "worker",
        /// Changes what is in force, and looks.
        Operator = "operator",
        /// Looks.
        Observer = "observer",
        /// Runs the whole.
        Daemon = "daemon",
    }
}

/// Some commands on some keys. Words are behind the prefix; what has no keys counts for the user as a whole.
struct Grant {
    /// Commands, and functions as `fcall|drip_ack`.
    may: &'static str,
    /// Keys that they may read.
    read: &'static str,
    /// Keys that they may write and not read.
    write: &'static str,
    /// Keys that they may read and write.
    both: &'static str,
}

/// Commands without keys.
const fn anywhere(may: &'static str) -> Grant {
    Grant { may, read: "", write: "", both: "" }
}

/// Commands that read keys.
const fn read(may: &'static str, read: &'static str) -> Grant {
    Grant { read, ..anywhere(may) }
}

/// Commands that write keys.
const fn write(may: &'static str, write: &'static str) -> Grant {
    Grant { write, ..anywhere(may) }
}

/// Commands that read and write keys.
const fn both(may: &'static str, both: &'static str) -> Grant {
    Grant { both, ..anywhere(may) }
}

/// Where an application keeps the keys of its limiters; they are outside of the prefix.
const LIMITERS: &str = "limit:*";

/// The keys that tell into how many partitions a system is divided: with one, and with several.
const RECORDS: &str = "<records>";

/// The first commands of each connection. `drip__version` tells whether functions are missing or forbidden.
const CONNECTS: Grant = anywhere("ping info time fcall_ro|drip__version");

/// The question whether the server takes writes: a function that may write. A server that takes none refuses it for that, before it sees that
/// it was called by `FCALL_RO`, by which no function writes anything.
const ASKS: Grant = anywhere("fcall_ro|drip__writes");

/// The question for the partitioning, which follows.
const LEARNS: Grant = read("hget", RECORDS);

/// The commands of a function that changes a bucket: look up what is in force, cut what is over, and put the bucket in its place.
const ENGINE: &[Grant] = &[
    read("exists type", "*"),
    both("llen lindex ltrim", "queue:*"),
    both("hget hmget hset hdel", "policy settings budgets waiting slow windows told paid level reached uncounted"),
    Grant {
        may: "zadd zrem zrange zscore zmscore zlexcount",
        read: "inflight retries",
        both: "schedule rest paused refused full held:* wait:* over ends",
        ..anywhere("")
    },
    both("hget hdel zrem", "jobs:* ids:*"),
    read("get", "globs"),
    both("xadd xlen xtrim memory|usage", "rejected"),
    LEARNS,
];

/// The further commands where jobs come back to their buckets, and where others are told.
const BACK: &[Grant] = &[
    both("zadd zrem zrange", "retries retry:* delayed:*"),
    both("hset hmget hlen zcard zscore zrem", "jobs:* ids:*"),
    write("xadd", "events"),
    both("incr", "wake"),
];

/// The further commands where a job is taken away that has run: its id stays taken.
const REMEMBERS: Grant = both("zadd zcard zcount pexpire zremrangebyrank", "ids:*");

/// The limiters, of an application's own keys.
const LIMITS: Grant = both(
    "fcall|drip_fixed_window fcall|drip_sliding_window fcall|drip_sliding_counter fcall|drip_token_bucket \
          fcall|drip_leaky_meter fcall|drip_throttle",
    LIMITERS,
);

/// The commands of a limiter, at a key of its own and as a gate of a bucket.
const LIMITER: Grant = both("get set pexpire zadd zcard zrange zrangebyscore zremrangebyscore", "gate:* limit:*");

/// The commands on keys that routes forward to: of a daemon, and of those who only look.
const FORWARDS: &str = "type lindex llen lpos lpush rpush rpop scard sadd";
const FORWARDS_LOOK: &str = "type llen lpos scard";

/// Reading: functions that write nothing, and all that they and the commands of dripd read.
const LOOK: Grant = read(
    "fcall_ro|drip_peek fcall_ro|drip_find fcall_ro|drip__look fcall_ro|drip__explain fcall_ro|drip__explain_budget fcall_ro|drip__what_if \
          fcall_ro|drip__settings fcall_ro|drip__met fcall_ro|drip__daemons fcall_ro|drip__dead_list fcall_ro|drip__dead_count \
          fcall_ro|drip__top fcall_ro|drip__rows fcall_ro|drip__budget_rows fcall_ro|drip__front fcall_ro|drip__drips \
          fcall_ro|drip__figures fcall_ro|drip__routes fcall_ro|drip__changed exists type get llen lindex smembers hget hmget hgetall hvals hlen hscan zcard zcount \
          zlexcount zmscore zrange zrangebyscore zrank zscan zscore xlen xrange xrevrange xpending xinfo|consumers xinfo|groups",
    "*",
);

/// The rights of each role. A daemon calls every function.
const ROLES: [(Role, &[&[Grant]]); 6] = [
    (Role::Producer, &[&[write("lpush llen", "queue:*"), anywhere("ping")]]),
    (
        Role::Submitter,
        &[
            &[
                CONNECTS,
                both(
                    "fcall|drip_push fcall|drip_submit fcall|drip_submit_all fcall|drip_cancel fcall_ro|drip_find fcall_ro|drip_peek lpush llen",
                    "queue:*",
                ),
                both("zadd zcard zcount zrem zrange zrank exists", "delayed:* retry:* retries wait:*"),
                both("hset hget hmget hdel hlen hrandfield zscore zcard", "jobs:* ids:*"),
                both("incr", "wake"),
                both("incrby del", "delays"),
                read("fcall_ro|drip__daemons hgetall", "daemons"),
                REMEMBERS,
                LIMITS,
                LIMITER,
            ],
            ENGINE,
        ],
    ),
    (
        Role::Worker,
        &[
            &[
                CONNECTS,
                both(
                    "fcall|drip_ack fcall|drip_fail fcall|drip_adjust fcall|drip__route xreadgroup xack xclaim xpending xrange xdel xlen \
                          xgroup|create",
                    "ready ready:*",
                ),
                both("fcall|drip_slow fcall|drip_told", "queue:*"),
                both("sadd smembers", "routes"),
                both("hget hmget hset hdel", "slots"),
                write("zadd zrem", "inflight"),
                both("zadd zrem zremrangebyscore", "adjusted"),
                write("xadd", "dead"),
            ],
            BACK,
            ENGINE,
        ],
    ),
    (
        Role::Operator,
        &[
            &[
                CONNECTS,
                anywhere("scan acl|whoami"),
                ASKS,
                LOOK,
                both(
                    "fcall|drip__set fcall|drip__slow_node fcall|drip__told_node hsetnx hexists hlen",
                    "policy settings",
                ),
                both("hget hset", "slots"),
                write("zadd", "inflight"),
                both("fcall|drip__purge fcall|drip__wake unlink", "queue:*"),
                both("fcall|drip__dead_retry fcall|drip__dead_drop xdel", "dead"),
                both("get set del", "globs"),
                write("unlink", "reached retry:* delayed:* jobs:*"),
                write("hdel", "turns"),
                both("incrby del", "delays"),
                both("fcall|drip_cancel hmget hset exists hscan", "jobs:*"),
                REMEMBERS,
                write("xdel", "events"),
                write("xgroup|create", "ready ready:*"),
                write("sadd", "routes"),
                both("hincrby", "stats"),
                both("zremrangebyrank zcount", "rest"),
                both("fcall|drip__copy hscan zadd zrem zrange zcard zpopmin", "policy settings changed unset"),
            ],
            BACK,
            ENGINE,
        ],
    ),
    (Role::Observer, &[&[CONNECTS, LEARNS, ASKS, LOOK]]),
    (
        Role::Daemon,
        &[&[
            CONNECTS,
            LEARNS,
            anywhere("function|load client|tracking scan acl|whoami info"),
            both(
                "fcall fcall_ro exists type del unlink pexpire get set incr incrby llen lindex lpush ltrim rpop sadd smembers srem \
                      hget hmget hgetall hvals hrandfield hset hsetnx hdel hexists hincrby hlen hscan memory|usage zadd zcard zcount \
                      zlexcount zmscore zrange zrangebyscore zrank zrem zremrangebyrank zpopmin zremrangebyscore zscan zscore xack xadd \
                      xclaim xdel xgroup|create xgroup|delconsumer xgroup|setid pttl persist xinfo|consumers xinfo|groups xinfo|stream xlen xpending xrange xrevrange xtrim",
                "*",
            ),
            LIMITS,
            LIMITER,
        ]],
    ),
];

impl Role {
    fn grants(self) -> impl Iterator<Item = &'static Grant> {
        let of_role = ROLES.iter().filter(move |(role, _)| *role == self);
        of_role.flat_map(|(_, lists)| lists.iter().copied().flatten())
    }

    /// The command that makes a user of this role, in one line for `redis-cli`, with a placeholder for the password. It takes away
    /// whatever else a user of that name could do. `routes` are those that forward: their lists are outside of the prefix.
    pub fn set_user(self, user: &str, settings: &RedisSettings, routes: &[Forward]) -> String {
        let layout = Layout::of(settings);
        let mut words = vec![format!("ACL SETUSER {user} reset on >PASSWORD")];
        if let Some(database) = database(settings) {
            words.push(format!("+select|{database}"));
        }
        if matches!(settings.place, Place::Sentinels(_)) && self != Self::Producer {
            words.push("+role".to_owned()); // a server that sentinels name is asked what it is
        }
        if matches!(settings.place, Place::Cluster(_)) && self != Self::Producer {
            words.push("+role +cluster|slots +cluster|info".to_owned()); // and in a cluster, which slots it has
        }
        if self == Self::Daemon {
            words.push(format!("+subscribe +pubsub|numsub &{}*", layout.acl_channels())); // who is alive of those that share
        }
        let (anywhere, on_keys): (Vec<_>, Vec<_>) = self.grants().partition(|grant| grant.keys(&layout).is_empty());
        words.extend(anywhere.iter().flat_map(|grant| grant.commands()));
        for grant in on_keys {
            let rules: Vec<String> = grant.commands().chain(grant.keys(&layout)).collect();
            words.push(format!("({})", rules.join(" ")));
        }
        words.extend(self.on_lists(routes));
        words.join(" ")
    }

    /// The rights on the keys that routes forward to.
    fn on_lists(self, routes: &[Forward]) -> Option<String> {
        let (may, kind) = match self {
            Self::Daemon => (FORWARDS, "~"),
            Self::Operator | Self::Observer => (FORWARDS_LOOK, "%R~"),
            Self::Producer | Self::Submitter | Self::Worker => return None,
        };
        let mut keys: Vec<_> =
            routes.iter().flat_map(Forward::keys).map(|key| format!("{kind}{}", key_pattern(key))).collect();
        keys.sort_unstable();
        keys.dedup();
        let may = may.split_whitespace().map(|command| format!("+{command}"));
        (!keys.is_empty()).then(|| format!("({})", may.chain(keys).collect::<Vec<_>>().join(" ")))
    }
}

impl Grant {
    fn commands(&self) -> impl Iterator<Item = String> {
        self.may.split_whitespace().map(|command| format!("+{command}"))
    }

    fn keys(&self, layout: &Layout) -> Vec<String> {
        let pattern = |word: &str| match word {
            LIMITERS => vec![word.to_owned()],
            RECORDS => layout.acl_records(),
            word => vec![layout.acl_pattern(word)],
        };
        let all = [("%R~", self.read), ("%W~", self.write), ("~", self.both)];
        let patterns = |(kind, words): (&'static str, &'static str)| {
            words.split_whitespace().flat_map(pattern).map(move |pattern| format!("{kind}{pattern}"))
        };
        all.into_iter().flat_map(patterns).collect()
    }
}

/// A key of a route as a pattern that is one word in a rule: the tag of every partition, and `?` for what cannot stand there.
fn key_pattern(key: &str) -> String {
    let plain = |text: &str| {
        let special = |c: char| c.is_whitespace() || matches!(c, '*' | '?' | '[' | ']' | '\\' | '"' | '\'' | '(' | ')');
        text.chars().map(|c| if special(c) { '?' } else { c }).collect::<String>()
    };
    key.split(TAG).map(plain).collect::<Vec<_>>().join("{*}")
}

/// The database that the URL names, where that is not the first one: its clients say `SELECT` first.
fn database(settings: &RedisSettings) -> Option<i64> {
    let Place::Url(url) = &settings.place else { return None };
    let info = read_url(url).ok()?;
    Some(info.redis_settings().db()).filter(|database| *database != 0)
}
