//! The limiters, alone: each by a table with the clock passed in, hammered by 16 clients, under a flood of refused calls; and
//! each defect of the recipe it replaces, shown to be absent.

use redis::Value;

use crate::rig::{Case, MS, S, Server, T0, load_library};

const MINUTE: u64 = 60 * S;
const DAY: u64 = 86_400 * S;

/// What a limiter replies: `limited`, `limit`, `remaining`, `retry_after`, `reset_after`.
pub type Verdict = [i64; 5];

/// A limiter of its own key, called at a time.
pub struct Limiter {
    pub case: Case,
    name: &'static str,
    pub key: String,
}

impl Limiter {
    pub fn new(name: &'static str) -> Self {
        let case = Case::bare();
        let key = case.key("limiter");
        Self { case, name, key }
    }

    /// Call it at a time. Redis' own clock goes on while the test's stands still, so the key is kept from expiring; what
    /// its expiry was is replied beside.
    pub fn call_with_ttl(&mut self, now: u64, args: &str) -> (Verdict, i64) {
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("FCALL").arg(format!("drip__{}", self.name)).arg(1).arg(&self.key).arg(now).arg(words(args));
        pipe.cmd("PTTL").arg(&self.key).cmd("PERSIST").arg(&self.key);
        let (reply, ttl, _): (Vec<i64>, i64, i64) = pipe.query(&mut self.case.redis).expect("a limiter answers");
        (reply.try_into().expect("five integers"), ttl)
    }

    pub fn at(&mut self, now: u64, args: &str) -> Verdict {
        self.call_with_ttl(now, args).0
    }

    fn refusal(&mut self, args: &str) -> String {
        let args: Vec<_> = std::iter::once("0").chain(args.split_whitespace()).collect();
        self.case.refusal(&format!("drip__{}", self.name), &["limiter"], &args)
    }

    pub fn dump(&mut self) -> Option<Vec<u8>> {
        redis::cmd("DUMP").arg(&self.key).query(&mut self.case.redis).expect("DUMP")
    }
}

const NAMES: [&str; 6] =
    ["fixed_window", "sliding_window", "sliding_counter", "token_bucket", "leaky_meter", "throttle"];

fn words(args: &str) -> Vec<&str> {
    args.split_whitespace().collect()
}

/// Parameters that let five pass at once, and no more for a long time.
fn five(name: &str) -> &'static str {
    match name {
        "fixed_window" | "sliding_window" | "sliding_counter" => "5 86400000",
        "token_bucket" | "leaky_meter" => "5 1 86400000",
        _ => "4 1 86400",
    }
}

#[test]
fn a_fixed_window_begins_with_the_first_call() {
    let mut it = Limiter::new("fixed_window");
    assert_eq!(it.at(T0, "2 1000 0"), [0, 2, 2, -1, 0]);
    assert_eq!(it.at(T0, "2 1000"), [0, 2, 1, -1, 1_000]);
    assert_eq!(it.at(T0 + 400 * MS + 1, "2 1000"), [0, 2, 0, -1, 600]);
    assert_eq!(it.at(T0 + 400 * MS + 1, "2 1000"), [1, 2, 0, 600, 600]);
    assert_eq!(it.at(T0 + 999_999, "2 1000"), [1, 2, 0, 1, 1]);
    assert_eq!(it.at(T0 + S, "2 1000 3"), [1, 2, 2, -1, 0]);
    assert_eq!(it.at(T0 + S, "2 1000 2"), [0, 2, 0, -1, 1_000]);
    assert_eq!(it.at(T0 + S, "1 1000"), [1, 1, 0, 1_000, 1_000], "a lower limit forgets nothing");
    assert_eq!(it.at(T0 + S, "1 1000 0"), [1, 1, 0, 1_000, 1_000], "not even nothing fits below it");
    assert_eq!(it.at(T0 + S, "5 1000 0"), [0, 5, 3, -1, 1_000]);
}

#[test]
fn an_aligned_window_begins_at_multiples_of_the_period() {
    let mut it = Limiter::new("fixed_window");
    let minute = T0 - T0 % MINUTE;
    assert_eq!(it.at(minute + 59 * S, "2 60000 1 ALIGNED"), [0, 2, 1, -1, 1_000]);
    assert_eq!(it.at(minute + 59 * S, "2 60000 aligned"), [0, 2, 0, -1, 1_000]);
    assert_eq!(it.at(minute + 60 * S - 1, "2 60000 ALIGNED"), [1, 2, 0, 1, 1]);
    assert_eq!(it.at(minute + 60 * S, "2 60000 ALIGNED"), [0, 2, 1, -1, 60_000]);
}

#[test]
fn a_sliding_window_counts_each_call_for_one_period() {
    let mut it = Limiter::new("sliding_window");
    assert_eq!(it.at(T0, "3 1000"), [0, 3, 2, -1, 1_000]);
    assert_eq!(it.at(T0 + 300 * MS, "3 1000 2"), [0, 3, 0, -1, 1_000]);
    assert_eq!(it.at(T0 + 400 * MS, "3 1000"), [1, 3, 0, 600, 900]);
    assert_eq!(it.at(T0 + 400 * MS, "3 1000 2"), [1, 3, 0, 900, 900]);
    assert_eq!(it.at(T0 + 400 * MS, "3 1000 4"), [1, 3, 0, -1, 900]);
    assert_eq!(it.at(T0 + S - 1, "3 1000"), [1, 3, 0, 1, 301]);
    assert_eq!(it.at(T0 + S, "3 1000"), [0, 3, 0, -1, 1_000]);
    assert_eq!(it.at(T0 + S, "2 1000 0"), [1, 2, 0, 300, 1_000], "a lower limit forgets nothing");
    assert_eq!(it.at(T0 + S + 300 * MS, "3 1000 0"), [0, 3, 2, -1, 700]);
    assert_eq!(it.at(T0 + 2 * S, "3 1000 0"), [0, 3, 3, -1, 0]);
}

#[test]
fn a_sliding_counter_weighs_the_previous_window() {
    let mut it = Limiter::new("sliding_counter");
    let begin = T0 - T0 % MINUTE;
    assert_eq!(it.at(begin, "10 60000 10"), [0, 10, 0, -1, 120_000]);
    assert_eq!(it.at(begin + 30 * S, "10 60000"), [1, 10, 0, 36_000, 90_000], "of 10, 9 are left at 66 s");
    assert_eq!(it.at(begin + 66 * S - 1, "10 60000"), [1, 10, 0, 1, 54_001]);
    assert_eq!(it.at(begin + 66 * S, "10 60000"), [0, 10, 0, -1, 114_000]);
    assert_eq!(it.at(begin + 90 * S, "10 60000 5"), [1, 10, 4, 6_000, 90_000]);
    assert_eq!(it.at(begin + 90 * S, "10 60000 4"), [0, 10, 0, -1, 90_000]);
    assert_eq!(it.at(begin + 120 * S, "10 60000 0"), [0, 10, 5, -1, 60_000]);
    assert_eq!(it.at(begin + 120 * S, "3 60000 0"), [1, 3, 0, 24_000, 60_000], "a lower limit forgets nothing");
    assert_eq!(it.at(begin + 180 * S, "10 60000 0"), [0, 10, 10, -1, 0]);
}

#[test]
fn a_token_bucket_and_a_leaky_meter_let_a_capacity_pass_at_once_and_the_rate_in_the_long_run() {
    for name in ["token_bucket", "leaky_meter"] {
        let mut it = Limiter::new(name);
        assert_eq!(it.at(T0, "5 3 1000 0"), [0, 5, 5, -1, 0]);
        assert_eq!(it.at(T0, "5 3 1000 5"), [0, 5, 0, -1, 1_667]);
        assert_eq!(it.at(T0, "5 3 1000"), [1, 5, 0, 334, 1_667]);
        assert_eq!(it.at(T0 + 333_333, "5 3 1000"), [1, 5, 0, 1, 1_334]);
        assert_eq!(it.at(T0 + 333_334, "5 3 1000"), [0, 5, 0, -1, 1_667]);
        assert_eq!(it.at(T0 + S, "5 3 1000 6"), [1, 5, 2, -1, 1_000]);
        assert_eq!(it.at(T0 + S, "5 3 1000 4"), [1, 5, 2, 667, 1_000]);
        assert_eq!(it.at(T0 + S, "2 3 1000"), [1, 2, 0, 667, 1_000], "a lower capacity forgets nothing");
        assert_eq!(
            it.at(T0 + S, "5 1 1000"),
            [1, 5, 0, 334, 4_334],
            "another rate holds from the last admitted call on"
        );
        assert_eq!(it.at(T0 + 60 * S, "5 3 1000 0"), [0, 5, 5, -1, 0]);
    }
}

/// redis-cell's own table, in milliseconds.
#[test]
fn throttle_answers_as_redis_cell_does() {
    let mut it = Limiter::new("throttle");
    for (ms, quantity, reply) in [
        (0, 6, [1, 5, 5, -1, 0]),
        (0, 1, [0, 5, 4, -1, 1]),
        (0, 1, [0, 5, 3, -1, 2]),
        (0, 1, [0, 5, 2, -1, 3]),
        (0, 1, [0, 5, 1, -1, 4]),
        (0, 1, [0, 5, 0, -1, 5]),
        (0, 1, [1, 5, 0, 1, 5]),
        (3_000, 1, [0, 5, 2, -1, 3]),
        (3_100, 1, [0, 5, 1, -1, 4]),
        (4_000, 1, [0, 5, 1, -1, 4]),
        (8_000, 1, [0, 5, 4, -1, 1]),
        (9_500, 1, [0, 5, 4, -1, 1]),
        (9_500, 0, [0, 5, 4, -1, 1]),
        (9_500, 2, [0, 5, 2, -1, 3]),
        (9_500, 5, [1, 5, 2, 3, 3]),
    ] {
        assert_eq!(it.at(T0 + ms * MS, &format!("4 1 1 {quantity}")), reply, "{ms} ms, {quantity}");
    }
    assert_eq!(Limiter::new("throttle").at(T0, "15 30 60"), [0, 16, 15, -1, 2]);
}

#[test]
fn what_makes_no_sense_is_refused_by_name_and_changes_nothing() {
    let wrong = ["0x10", "1e3", "nan", "inf", "-1", "1.5", "", "٣", "+1", "99999999999999999999", "00000000000000001"];
    for name in NAMES {
        let mut it = Limiter::new(name);
        let count = five(name).split_whitespace().count();
        it.at(T0, five(name));
        let before = it.dump();
        for at in 0..=count {
            for bad in wrong {
                let mut args: Vec<_> = std::iter::once("0").chain(five(name).split_whitespace()).collect();
                args.truncate(at + 1);
                args.push(bad);
                args.extend(five(name).split_whitespace().skip(at + 1));
                let why = it.case.try_fcall::<Value>(&format!("drip__{name}"), &["limiter"], &args).expect_err(bad);
                let parameter = match (name, at) {
                    (_, n) if n == count => "quantity",
                    ("throttle", 0) => "max_burst",
                    ("throttle", 2) => "period_s",
                    ("token_bucket" | "leaky_meter", 0) => "capacity",
                    ("token_bucket" | "leaky_meter" | "throttle", 1) => "count",
                    (_, 0) => "limit",
                    _ => "period_ms",
                };
                assert_eq!(why.code(), Some("BADARG"), "{name} {args:?}: {why}");
                assert!(why.detail().is_some_and(|why| why.starts_with(parameter)), "{name} {args:?}: {why}");
            }
        }
        for args in ["", "5", "5 1000 1 x", "5 1 1 1 1", "1000001 1000 1", "5 31622400001 31622400001"] {
            assert_eq!(it.refusal(args), "BADARG", "{name} {args}");
        }
        assert_eq!(it.case.refusal(&format!("drip_{name}"), &[], &["5", "1000"]), "BADARG", "{name} without a key");
        assert_eq!(it.dump(), before, "{name}");
        let key = it.key.clone();
        let foreign: [&[&str]; 8] = [
            &["LPUSH", &key, "a"],
            &["HSET", &key, "a", "b"],
            &["SET", &key, "17"],
            &["SET", &key, "Welcome to Redis 7.0"],
            &["SET", &key, "My dear Watson, this is elementary!!"],
            &["ZADD", &key, "1", "a"],
            &["ZADD", &key, "1700000000", "user:7", "1700000001", "1700000001:2"],
            &["ZADD", &key, "1750000000000000", "1750000000000000"],
        ];
        for make in foreign {
            it.case.cmd::<()>(&["DEL", &key]);
            it.case.cmd::<Value>(make);
            let before = it.dump();
            assert_eq!(it.refusal(five(name)), "WRONGTYPE", "{name} {make:?}");
            assert_eq!(it.dump(), before, "{name}");
        }
    }
    assert_eq!(Limiter::new("sliding_window").refusal("10001 1000"), "BADARG");
    assert_eq!(Limiter::new("sliding_window").refusal("10 1000 10001"), "BADARG");
    assert_eq!(Limiter::new("throttle").refusal("999999 1 31622400"), "BADARG", "its 64 bits of nanoseconds overflow");
    assert_eq!(Limiter::new("throttle").at(T0, "999999 1000000 1 1000000"), [0, 1_000_000, 0, -1, 1]);
}

#[test]
fn one_limiter_does_not_take_the_state_of_another_for_its_own() {
    for (mine, other) in NAMES.iter().flat_map(|mine| NAMES.iter().map(move |other| (*mine, *other))) {
        let mut it = Limiter::new(mine);
        it.at(T0, five(mine));
        it.name = other;
        let same = mine == other || [mine, other].iter().all(|name| ["token_bucket", "leaky_meter"].contains(name));
        if same {
            assert_eq!(it.at(T0, five(other))[2], 3, "{mine} {other}");
        } else {
            assert_eq!(it.refusal(five(other)), "WRONGTYPE", "{mine} {other}");
        }
    }
}

#[test]
fn the_public_functions_take_the_servers_time_and_no_other() {
    for name in NAMES {
        let mut case = Case::bare();
        let args: Vec<_> = five(name).split_whitespace().collect();
        let remaining: Vec<i64> =
            (0..6).map(|_| case.fcall::<Vec<i64>>(&format!("drip_{name}"), &["k"], &args)[2]).collect();
        assert_eq!(remaining, [4, 3, 2, 1, 0, 0], "{name}");
        let key = case.key("k");
        let (ttl, reset): (i64, i64) = (case.cmd(&["PTTL", &key]), 86_400_000 * 5);
        assert!((1..=reset).contains(&ttl), "{name} {ttl}");
    }
}

#[test]
fn a_clock_that_was_set_back_a_little_opens_nothing_and_one_far_back_blocks_nobody_for_long() {
    for name in NAMES.iter().filter(|name| **name != "throttle") {
        let mut it = Limiter::new(name);
        let args = if name.ends_with("window") || name.ends_with("counter") { "5 60000" } else { "5 5 60000" };
        it.at(T0, &format!("{args} 5"));
        let back = T0 - 10 * S;
        let [limited, _, _, retry, reset] = it.at(back, args);
        assert_eq!(limited, 1, "{name}: a small step opens nothing");
        assert!(reset <= 130_000, "{name} {reset}");
        assert_eq!(it.at(back + (retry as u64 - 1) * MS, args)[0], 1, "{name}: {retry} ms is no longer than needed");
        assert_eq!(it.at(back + retry as u64 * MS, args)[0], 0, "{name}: and long enough");
        assert_eq!(it.at(T0 - 2 * DAY, args)[..3], [0, 5, 4], "{name}: a large step does not block for days");
        assert_eq!(it.at(T0 - 2 * DAY, args)[..3], [0, 5, 3], "{name}: and what came after it counts");
    }
    let mut it = Limiter::new("token_bucket");
    it.at(T0, "1000 1000 1000 1000");
    assert_eq!(
        it.at(T0 - 900 * MS, "1000 1000 1000")[..4],
        [1, 1_000, 0, 901],
        "not even by most of what it drains in"
    );
    let mut it = Limiter::new("token_bucket");
    it.at(T0, "1000 1 1000 1000");
    assert_eq!(it.at(T0 - 2 * S, "1000 1 1000")[..4], [1, 1_000, 0, 3_000], "the period is only the unit of the rate");
}

#[test]
fn a_foreign_member_in_the_middle_of_a_sliding_window_is_an_error_and_changes_nothing() {
    let mut it = Limiter::new("sliding_window");
    let key = it.key.clone();
    for (n, member) in ["0000000000000000:1", "foo", "0000000000000001:4"].iter().enumerate() {
        it.case.cmd::<i64>(&["ZADD", &key, &(T0 + n as u64).to_string(), member]);
    }
    let before = it.dump();
    let now = (T0 + 9).to_string();
    assert_eq!(it.case.refusal("drip__sliding_window", &["limiter"], &[&now, "5", "1000", "4"]), "WRONGTYPE");
    assert_eq!(it.dump(), before);
}

// The defects of the recipes that these replace.

#[test]
fn a_fixed_window_key_that_lost_its_expiry_blocks_nobody() {
    let mut it = Limiter::new("fixed_window");
    it.at(T0, "1 1000"); // `at` takes the expiry away
    let key = it.key.clone();
    assert_eq!(it.case.cmd::<i64>(&["PTTL", &key]), -1);
    assert_eq!(it.at(T0 + S - 1, "1 1000")[0], 1);
    assert_eq!(it.at(T0 + S, "1 1000"), [0, 1, 0, -1, 1_000]);
}

#[test]
fn a_fixed_window_that_expires_between_two_calls_starts_at_its_limit_with_an_expiry() {
    let mut it = Limiter::new("fixed_window");
    it.at(T0, "3 1000 3");
    let key = it.key.clone();
    it.case.cmd::<()>(&["DEL", &key]);
    assert_eq!(it.call_with_ttl(T0 + S, "3 1000").0, [0, 3, 2, -1, 1_000]);
    let (_, ttl) = it.call_with_ttl(T0 + S + 500 * MS, "3 1000");
    assert!((1..=500).contains(&ttl), "{ttl}: count and expiry are one write");
}

/// Inherent in a fixed window: twice the limit around an edge.
#[test]
fn around_the_edge_of_a_fixed_window_twice_the_limit_passes_and_of_a_sliding_one_once() {
    let minute = T0 - T0 % MINUTE;
    for (name, args, passed) in [
        ("fixed_window", "5 60000 1 ALIGNED", 10),
        ("sliding_window", "5 60000 1", 5),
        ("sliding_counter", "5 60000 1", 5),
    ] {
        let mut it = Limiter::new(name);
        let times = [minute + 59_900 * MS, minute + MINUTE].into_iter().flat_map(|t| (0..8).map(move |i| t + i));
        assert_eq!(times.filter(|t| it.at(*t, args)[0] == 0).count(), passed, "{name}: within 0.1 s");
    }
}

#[test]
fn two_calls_in_the_same_microsecond_are_two() {
    let mut it = Limiter::new("sliding_window");
    let remaining: Vec<i64> = (0..4).map(|_| it.at(T0, "3 1000")[2]).collect();
    assert_eq!(remaining, [2, 1, 0, 0]);
}

#[test]
fn who_never_stops_asking_recovers_all_the_same() {
    let mut it = Limiter::new("sliding_window");
    let passed = (0..5_000).filter(|i| it.at(T0 + i * MS, "5 1000")[0] == 0).count();
    assert_eq!(passed, 25, "5 in each of 5 seconds, asking every millisecond");
    let key = it.key.clone();
    assert_eq!(it.case.cmd::<i64>(&["ZCARD", &key]), 5, "a refused call is not recorded, an old one is gone");
}

#[test]
fn a_sliding_counter_is_of_constant_size_and_lets_at_most_twice_the_limit_less_one_pass_within_a_period() {
    let mut it = Limiter::new("sliding_counter");
    let begin = T0 - T0 % MINUTE;
    let mut passed: Vec<u64> =
        (0..20).map(|i| begin + MINUTE - 1 + i / 20).filter(|t| it.at(*t, "10 60000")[0] == 0).collect();
    let key = it.key.clone();
    let size: i64 = it.case.cmd(&["MEMORY", "USAGE", &key]);
    passed.extend((0..600).map(|i| begin + MINUTE + i * 100 * MS).filter(|t| it.at(*t, "10 60000")[0] == 0));
    let most = passed.iter().map(|end| passed.iter().filter(|t| *t <= end && **t + MINUTE > *end).count()).max();
    assert_eq!(most, Some(19), "a burst at the end of a window is the worst");
    assert_eq!(it.case.cmd::<i64>(&["MEMORY", "USAGE", &key]), size);
}

#[test]
fn no_token_is_lost_to_rounding_and_none_is_gained_above_the_capacity() {
    for name in ["token_bucket", "leaky_meter"] {
        let mut it = Limiter::new(name);
        let passed = (0..=10_000).filter(|i| it.at(T0 + i * MS + i % 7, "1 3 1000")[0] == 0).count();
        assert_eq!(passed, 30, "{name}: 3 a second for 10 s, asked every millisecond; each waits for a whole one");
        assert_eq!(it.at(T0 + 1_000 * S, "1 3 1000 0"), [0, 1, 1, -1, 0], "{name}: idle time fills it up, not over");
        let mut it = Limiter::new(name);
        it.at(T0, "7 7 1000 7");
        let back: Vec<i64> = (1..=14).map(|i| it.at(T0 + i * S / 14, "7 7 1000 0")[2]).collect();
        assert_eq!(back, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 7], "{name}");
    }
}

#[test]
fn a_leaky_meter_drains_also_when_it_is_only_looked_at() {
    let mut it = Limiter::new("leaky_meter");
    it.at(T0, "10 1 1000 10");
    for second in 0..10 {
        let free = second as i64;
        assert_eq!(it.at(T0 + second * S, "10 1 1000 0"), [0, 10, free, -1, 10_000 - 1_000 * free]);
    }
}

/// Sixteen clients at once on one key: exactly the limit passes, and no two are told the same place.
#[test]
fn sixteen_clients_together_get_the_limit_and_no_slot_twice() {
    for name in NAMES {
        let case = Case::bare();
        let key = case.key("hammered");
        let args = match name {
            "token_bucket" | "leaky_meter" => "200 1 86400000",
            "throttle" => "199 1 86400",
            _ => "200 86400000",
        };
        let clients: Vec<_> = (0..16)
            .map(|_| {
                let (key, mut redis) = (key.clone(), crate::rig::server().connect());
                std::thread::spawn(move || {
                    let mut admitted = Vec::new();
                    for _ in 0..100 {
                        let mut call = redis::cmd("FCALL");
                        call.arg(format!("drip_{name}")).arg(1).arg(&key).arg(words(args));
                        let reply: Vec<i64> = call.query(&mut redis).expect("an answer");
                        if reply[0] == 0 {
                            admitted.push(reply[2]);
                        }
                    }
                    admitted
                })
            })
            .collect();
        let mut admitted: Vec<i64> = clients.into_iter().flat_map(|client| client.join().expect("a client")).collect();
        admitted.sort_unstable();
        assert_eq!(admitted, (0..200).collect::<Vec<i64>>(), "{name}");
    }
}

/// On a server of its own, since the memory of the whole server is looked at.
#[test]
fn a_hundred_thousand_refused_calls_write_nothing_and_take_no_memory() {
    let server = Server::start(&[]);
    let mut redis = server.connect();
    load_library(&mut redis);
    let figure = |redis: &mut redis::Connection, section: &str, name: &str| -> u64 {
        let info: String = redis::cmd("INFO").arg(section).query(redis).expect("INFO");
        let found = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("no {name} in {info}"))
    };
    let flood = |redis: &mut redis::Connection, name: &str, calls: u64| {
        for _ in 0..calls / 1_000 {
            let mut pipe = redis::pipe();
            for i in 0..1_000 {
                pipe.cmd("FCALL").arg(format!("drip_{name}")).arg(1).arg(name).arg(words(five(name))).arg(1 + i % 5);
            }
            let replies: Vec<Vec<i64>> = pipe.query(redis).expect("answers");
            assert!(replies.iter().all(|reply| reply[0] == 1 && reply[2] == 0), "{name}");
        }
    };
    for name in NAMES {
        let mut fill = redis::cmd("FCALL");
        fill.arg(format!("drip_{name}")).arg(1).arg(name).arg(words(five(name))).arg(5);
        let reply: Vec<i64> = fill.query(&mut redis).expect("an answer");
        assert_eq!(reply[..3], [0, 5, 0], "{name}");
        flood(&mut redis, name, 2_000);
        let size: u64 = redis::cmd("MEMORY").arg("USAGE").arg(name).query(&mut redis).expect("a size");
        let changes = figure(&mut redis, "persistence", "rdb_changes_since_last_save");
        let data = figure(&mut redis, "memory", "used_memory_dataset");
        let lua = figure(&mut redis, "memory", "used_memory_vm_functions");
        flood(&mut redis, name, 100_000);
        let after: u64 = redis::cmd("MEMORY").arg("USAGE").arg(name).query(&mut redis).expect("a size");
        assert_eq!(after, size, "{name}");
        assert_eq!(figure(&mut redis, "persistence", "rdb_changes_since_last_save"), changes, "{name}");
        let grown = figure(&mut redis, "memory", "used_memory_dataset").saturating_sub(data);
        assert!(grown < 1 << 20, "{name}: {grown} bytes of data more, buffers of clients among them");
        let grown = figure(&mut redis, "memory", "used_memory_vm_functions").saturating_sub(lua);
        assert!(grown < 262_144, "{name}: {grown} bytes of Lua more");
    }
    // Nor do callers with ever other parameters make the library remember without a bound.
    for i in 0..20_u64 {
        let mut pipe = redis::pipe();
        for j in 1..=1_000 {
            pipe.cmd("FCALL")
                .arg("drip_token_bucket")
                .arg(1)
                .arg("other")
                .arg(1_000)
                .arg(i * 1_000 + j)
                .arg(1_000 + j)
                .arg(0);
        }
        let replies: Vec<Vec<i64>> = pipe.query(&mut redis).expect("answers");
        assert_eq!(replies.len(), 1_000);
    }
    let lua = figure(&mut redis, "memory", "used_memory_vm_functions");
    assert!(lua < 4 << 20, "{lua} bytes of Lua");
}

#[test]
fn a_key_of_dripds_own_is_refused_and_any_other_is_taken() {
    let mut case =
        Case::with("[[bucket]]\nmatch = 'gated'\nadmit = { limiter = 'fixed-window', limit = 5, period = '1m' }\n");
    case.push_at(T0, "b", &["1"]);
    let calls = [
        ("drip_fixed_window", &["5", "1000"][..]),
        ("drip_sliding_window", &["5", "1000"]),
        ("drip_sliding_counter", &["5", "1000"]),
        ("drip_token_bucket", &["5", "5", "1000"]),
        ("drip_leaky_meter", &["5", "5", "1000"]),
        ("drip_throttle", &["5", "5", "1"]),
    ];
    for (name, args) in calls {
        for key in [
            "queue:b",
            "queue:new",
            "ready",
            "ready:mail",
            "rejected",
            "dead",
            "schedule",
            "rest",
            "policy",
            "retries",
            "retry:b",
            "held:default",
            "level",
            "wake",
            "gate:fixed-window:1:gated",
        ] {
            assert_eq!(case.refusal(name, &[key], args), "BADARG", "{name} {key}");
        }
        for key in ["login:queue:x", "mine", "my:queue"] {
            let reply: Vec<i64> = case.fcall(name, &[key], args);
            assert_eq!(reply[0], 0, "{name} {key}");
            let key = case.key(key);
            let _: i64 = case.cmd(&["DEL", &key]);
        }
    }
    assert_eq!(case.waiting("b"), ["1"]);
}
