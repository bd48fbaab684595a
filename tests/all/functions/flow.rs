//! What tests of trees share: time that passes from due to due, and what has left meanwhile.

use redis::Value;

use crate::rig::{Case, Entry, S, T0};

/// Nothing is in two places or in none, and no constraint is forgotten.
#[track_caller]
pub fn audit(case: &mut Case) {
    let wrong: Vec<String> = case.fcall("drip__audit", &["policy"], &[""; 0]);
    assert_eq!(wrong, Vec::<String>::new());
}

/// Let time pass from due to due, as a daemon does.
#[track_caller]
pub fn run(case: &mut Case, mut now: u64, until: u64) {
    loop {
        let wait = case.settle_at(now).wait_us;
        if wait < 0 || now + wait as u64 > until {
            break;
        }
        now += wait as u64;
    }
    case.settle_at(until);
    audit(case);
}

/// When the jobs of the buckets that begin so have left, since the beginning.
pub fn left(case: &mut Case, head: &str) -> Vec<u64> {
    let of_it = case.stream("ready").into_iter().filter(|entry| entry.text("bucket").starts_with(head));
    of_it.map(|entry| entry.number("at_us") - T0).collect()
}

/// Promise 1 from what has left alone: how much sooner jobs left than `count` in `period_us` allow, at worst, in any window; in us, rounded up.
pub fn excess(at: &[u64], count: u64, period_us: u64) -> u64 {
    let (mut worst, mut latest) = (0, i128::MIN);
    for (n, at) in at.iter().enumerate() {
        let ahead = i128::from(*at) * i128::from(count) - n as i128 * i128::from(period_us);
        latest = latest.max(ahead);
        worst = worst.max(latest - ahead);
    }
    u64::try_from(worst).expect("never negative").div_ceil(count)
}

/// `n` jobs.
pub fn jobs(n: usize) -> Vec<&'static str> {
    vec!["x"; n]
}

/// Set keys of a name, as `dripd set` does, where `policy` is what they stand for; `{…}` is a budget.
#[track_caller]
pub fn set_at(case: &mut Case, now: u64, name: &str, key: &str, policy: &str) {
    let change = format!(
        r#"{{"what":"set","match":"{name}","is_glob":false,"set":{{"{key}":{{"text":"x","policy":{policy}}}}},"by":"me","user":"u"}}"#
    );
    let _: Value = case.fcall("drip__set", &["policy"], &[now.to_string(), change]);
    audit(case);
}

/// The same taken back.
#[track_caller]
pub fn unset_at(case: &mut Case, now: u64, name: &str, key: &str) {
    let change =
        format!(r#"{{"what":"unset","match":"{name}","is_glob":false,"unset":["{key}"],"by":"me","user":"u"}}"#);
    let _: Value = case.fcall("drip__set", &["policy"], &[now.to_string(), change]);
    audit(case);
}

/// A worker gives a job back: what `drip_fail` replies.
#[track_caller]
pub fn fail_at(case: &mut Case, now: u64, entry: &Entry, how: &[&str]) -> i64 {
    let args: Vec<String> =
        [now.to_string(), entry.id.clone()].into_iter().chain(how.iter().map(|word| (*word).to_owned())).collect();
    let reply = case.fcall("drip__fail", &["ready"], &args);
    audit(case);
    reply
}

/// It is done with some.
#[track_caller]
pub fn ack_at(case: &mut Case, now: u64, entries: &[Entry]) {
    let args: Vec<String> = [now.to_string()].into_iter().chain(entries.iter().map(|entry| entry.id.clone())).collect();
    assert_eq!(case.fcall::<i64>("drip__ack", &["ready"], &args), entries.len() as i64);
    audit(case);
}

/// Seconds and milliseconds from the beginning, as microseconds since the epoch.
pub fn at(seconds: u64, ms: u64) -> u64 {
    T0 + seconds * S + ms * 1_000
}

/// What `drip_slow` replies: ms until it goes on, and incidents.
#[track_caller]
pub fn slow_at(case: &mut Case, now: u64, bucket: &str, how: &[&str]) -> (u64, u64) {
    let args: Vec<String> = [now.to_string()].into_iter().chain(how.iter().map(|word| (*word).to_owned())).collect();
    let reply = case.fcall("drip__slow", &[&format!("queue:{bucket}")], &args);
    audit(case);
    reply
}

/// How long a bucket without a rate slot to wait for is held from now on.
pub fn held_ms(case: &mut Case, now: u64, bucket: &str) -> u64 {
    case.peek_at(now, bucket)[4] as u64
}

/// How things stand with the only slow-down, in words; empty where none is in force.
pub fn text(case: &mut Case, now: u64) -> String {
    slow_downs(case, now).first().map_or(String::new(), |one| one.1["text"].as_str().expect("text").to_owned())
}

/// The slow-downs in force: of each the node and its entry among the settings.
pub fn slow_downs(case: &mut Case, now: u64) -> Vec<(String, serde_json::Value)> {
    let (mut cursor, mut list) = (String::new(), Vec::new());
    loop {
        let args = [now.to_string(), cursor];
        let mut reply: Vec<redis::Value> = case.fcall("drip__settings", &["policy"], &args);
        let text = |value: &redis::Value| redis::from_redis_value_ref::<String>(value).expect("text");
        for one in reply.split_off(2).chunks(3) {
            let entry: serde_json::Value = serde_json::from_str(&text(&one[2])).expect("JSON");
            list.push((text(&one[0]), entry["keys"]["slow-down"]["timed"].clone()));
        }
        cursor = text(&reply[0]);
        if cursor.is_empty() {
            return list;
        }
    }
}
