//! The defaults are written down three times: in Rust, in the functions, for calls before any daemon ran, and in `config.toml`,
//! for readers.

use dripd::config::connection::Place;
use dripd::config::{Config, Environment, keys};
use dripd::model::bucket::BucketName;
use dripd::model::policy::{Overflow, Policy, Record};
use dripd::store::{Address, Layout, Store};

use crate::rig::{Case, MS, T0, server};

/// `config.toml` with every line that is a commented key made a real one.
fn enabled() -> String {
    let text = std::fs::read_to_string("config.toml").expect("it is at the top of the tree");
    let is_key = |line: &str| {
        let key = line.split(" = ").next().unwrap_or_default();
        line.contains(" = ") && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let enable = |line: &str| match line.strip_prefix("# ") {
        Some(key) if is_key(key) || key.starts_with("[[") => format!("{key}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(enable).collect()
}

fn parse(text: &str) -> Config {
    Config::parse(text, None, &Environment::default()).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

#[test]
fn config_toml_shows_the_defaults() {
    let text = enabled();
    let without = |keys: &[&str]| -> String {
        let is_kept = |line: &&str| !keys.iter().any(|key| line.starts_with(&format!("{key} = ")));
        text.lines().filter(is_kept).collect::<Vec<_>>().join("\n")
    };
    // These have no default: what is shown are examples. Redis is at a URL, known to sentinels, or a cluster.
    let at_url = parse(&without(&["sentinel", "cluster"])).redis;
    assert!(matches!(at_url.place, Place::Url(_)) && at_url.password_file.is_some() && at_url.user.is_some(), "{text}");
    let by_sentinels = parse(&without(&["url", "cluster"])).redis;
    assert!(matches!(by_sentinels.place, Place::Sentinels(_)) && by_sentinels.tls.is_some(), "{text}");
    let rest = without(&["url", "sentinel", "cluster", "tls", "user", "password_file"]);
    let (shown, default) = (parse(&rest), parse(""));
    assert_eq!(shown.redis, default.redis);
    let written = Policy { is_catch_up_set: true, ..Policy::default() }; // what is written is obeyed inside a budget too
    assert_eq!(shown.record.defaults, written);
    assert_eq!(shown.record.limits, Record::default().limits);
    assert_eq!((shown.record.buckets.len(), shown.record.budgets.len()), (2, 2), "the examples of entries");
}

#[test]
fn config_toml_shows_every_key() {
    let text = enabled();
    let sections =
        [("redis", keys::REDIS), ("defaults", keys::POLICY), ("limits", keys::LIMITS), ("bucket", keys::BUCKET)];
    for (section, keys) in sections {
        let shown = text.split_once(&format!("[{section}]")).expect("a section").1;
        for key in keys {
            assert!(shown.contains(&format!("\n{} = ", key.name)), "config.toml does not show {section}.{}", key.name);
        }
    }
    let of_budgets = text.lines().find(|line| line.contains("at least one of rate")).expect("a line about their keys");
    for key in keys::BUDGET {
        assert!(of_budgets.contains(key.name), "config.toml does not show budget.{}", key.name);
    }
}

#[test]
fn the_functions_have_the_same_defaults_where_no_record_is_stored() {
    let (mut case, policy, limits) = (Case::bare(), Policy::default(), Record::default().limits);
    let config = parse(&format!("[redis]\nurl = '{}'\nprefix = '{}'\n", server().url(), case.prefix));
    let address = Address::of(&config.redis).expect("an address");
    let bucket: BucketName = "b".parse().expect("a name");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (look, most) = runtime.block_on(async {
        let mut store = Store::connect(&address, &Layout::of(&config.redis).authority()).await.expect("redis answers");
        let look = store.bucket_status(&bucket).await.expect("an answer");
        (look, store.max_job_bytes().await.expect("an answer"))
    });
    assert_eq!((look.count, look.period_us), (policy.rate.count().into(), micros(policy.rate.period())));
    assert_eq!((look.capacity, look.lease_ms * MS), (policy.capacity.into(), micros(policy.lease)));
    assert_eq!((look.attempts, look.route.as_str()), (policy.attempts.into(), policy.route.as_str()));
    assert_eq!((look.overflow.as_str(), policy.overflow), ("reject", Overflow::Reject));
    assert_eq!((look.gates.len(), policy.admit.len()), (0, 0));

    assert_eq!(most, limits.max_job_bytes);

    // The first back-off, and how late a job may be for the one behind it to make up for it.
    case.lpush("b", &["job"]);
    case.wake_at(T0, &["b"]);
    let entry = case.take("ready", 1).remove(0);
    let _: i64 = case.fcall("drip__fail", &["ready"], &[T0.to_string(), entry.id]);
    let retries = case.key("retries");
    let ends: f64 = case.cmd(&["ZSCORE", &retries, "b"]);
    assert_eq!(ends as u64 - T0, micros(policy.backoff_initial));
    case.lpush("late", &["1", "2", "3"]);
    case.wake_at(T0, &["late"]);
    let (interval, catch_up) = (micros(policy.rate.period()) / u64::from(policy.rate.count()), micros(policy.catch_up));
    let late = T0 + interval + 5 * catch_up;
    case.drain_at(late);
    assert_eq!(case.due("late"), Some(late + interval - catch_up));
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("days at most")
}
