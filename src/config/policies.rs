//! Policies as they are written: `[defaults]`, `[[bucket]]`, the gates in them, and `[limits]`.

use std::time::Duration;

use super::keys::{self, MOST_GATES};
use super::nodes::{is_in_order, read_catch_up, read_node, refuse_ready_window};
use super::section::{Problems, Section};
use crate::model::duration;
use crate::model::limiter::{Kind, Limiter};
use crate::model::policy::{Limits, Overflow, Policy};
use crate::model::rate::Rate;
use crate::model::ready_window::ReadyWindow;
use crate::model::route::Route;

/// Read a policy from a section. A key that is missing keeps its value of `base`.
pub fn read_policy(section: &mut Section, base: &Policy, problems: &mut Problems) -> Policy {
    refuse_ready_window(section, problems);
    let rate = section.read("rate", |v| Rate::parse(v.as_str()?).ok(), problems).unwrap_or(base.rate);
    let capacity = section.number("capacity", problems).unwrap_or(base.capacity);
    let lease = section.duration("lease", problems).unwrap_or(base.lease);
    let attempts = section.number("attempts", problems).unwrap_or(base.attempts);
    let (backoff_initial, backoff_max) = read_backoff(section, base, problems);
    let overflow = section.read("overflow", |v| Overflow::parse(v.as_str()?), problems);
    let route = section.read("route", |v| Route::parse(v.as_str()?).ok(), problems);
    let longest = Policy::longest_catch_up(rate);
    let catch_up = read_catch_up(section, longest, problems);
    let ttl = |v: &toml::Value| match v.as_str()? {
        "none" => Some(None),
        text => read_ttl(text).map(Some),
    };
    Policy {
        rate,
        capacity,
        lease,
        attempts,
        backoff_initial,
        backoff_max,
        overflow: overflow.unwrap_or(base.overflow),
        route: route.unwrap_or_else(|| base.route.clone()),
        catch_up: catch_up.unwrap_or(base.catch_up.min(longest)),
        is_catch_up_set: catch_up.is_some() || base.is_catch_up_set,
        admit: read_gates(section, problems).unwrap_or_else(|| base.admit.clone()),
        ordered: section.read("ordered", toml::Value::as_bool, problems).unwrap_or(base.ordered),
        dedup: section.duration("dedup", problems).unwrap_or(base.dedup),
        ttl: section.read("ttl", ttl, problems).unwrap_or(base.ttl),
        cost_max: section.read("cost_max", read_cost_max, problems).unwrap_or(base.cost_max),
        node: read_node(section, &base.node, problems),
    }
}

/// Read the first and the longest wait before another try.
fn read_backoff(section: &mut Section, base: &Policy, problems: &mut Problems) -> (Duration, Duration) {
    let mut backoff = section.section("backoff", &[keys::BACKOFF], problems);
    let initial = backoff.duration("initial", problems).unwrap_or(base.backoff_initial);
    let max = backoff.duration("max", problems).unwrap_or(base.backoff_max);
    backoff.finish(problems);
    if is_in_order(&backoff, initial, max, problems) {
        (initial, max)
    } else {
        (base.backoff_initial, base.backoff_max)
    }
}

/// Read the most that a job may cost; `Some(None)`: what its rate lets out in a minute.
#[expect(clippy::option_option, reason = "`None` is a value that cannot be read")]
fn read_cost_max(value: &toml::Value) -> Option<Option<u64>> {
    match value {
        toml::Value::Integer(n) => u64::try_from(*n).ok().filter(|n| (1..=Policy::COST_MOST).contains(n)).map(Some),
        other => (other.as_str()? == "minute").then_some(None),
    }
}

/// Read how long a job may wait: 1 ms to 366 d in whole milliseconds, as the functions take it.
fn read_ttl(text: &str) -> Option<Duration> {
    let fits = |ttl: &Duration| ttl.subsec_nanos().is_multiple_of(1_000_000);
    duration::parse(text).filter(fits).filter(|ttl| (Duration::from_millis(1)..=duration::LONGEST).contains(ttl))
}

/// Report `ordered` without a concurrency of 1: jobs finish in order only where one runs at a time.
pub fn check_order(name: &str, policy: &mut Policy, problems: &mut Problems) {
    if !policy.ordered || policy.node.concurrency == Some(1) {
        return;
    }
    let has = policy.node.concurrency.map_or_else(|| "none".to_owned(), |n| n.to_string());
    let problem = "ordered = true needs concurrency = 1, so that one job runs at a time";
    problems.add(format!("{name}: {problem}; its concurrency is {has}; write that too, or ordered = false"));
    policy.ordered = false; // entries that inherit it do not report it again
}

/// Read the gates of a policy, `admit`: one table or a list of them. An empty list takes away those of `[defaults]`.
fn read_gates(section: &mut Section, problems: &mut Problems) -> Option<Vec<Limiter>> {
    let gates = section.one_or_more("admit", problems)?;
    if gates.len() > MOST_GATES {
        problems.add(format!("{}.admit: {} gates; at most {MOST_GATES}", section.name(), gates.len()));
    }
    Some(gates.into_iter().filter_map(|gate| read_gate(gate, problems)).collect())
}

fn read_gate(mut gate: Section, problems: &mut Problems) -> Option<Limiter> {
    let kinds = format!("write one of {}", Kind::ALL.map(Kind::as_str).join(", "));
    let Some(kind) = gate.required("limiter", &kinds, |v| Kind::parse(v.as_str()?), problems) else {
        return None; // which other keys are allowed depends on the kind
    };
    let count_name = if kind.size_name().is_some() { "count" } else { "limit" };
    let (least, most) = kind.counts().into_inner();
    let count = gate.whole(count_name, least, most, problems);
    let size = kind.size_name().map(|name| {
        let (least, most) = kind.sizes().into_inner();
        gate.whole(name, least, most, problems)
    });
    let period = |v: &toml::Value| duration::parse(v.as_str()?).filter(|period| kind.takes(*period));
    let period = gate.required("period", format!("write {}, as in \"60s\"", kind.period_hint()), period, problems);
    let is_aligned = kind == Kind::FixedWindow
        && gate.optional("aligned", "write true or false", toml::Value::as_bool, problems) == Some(true);
    let name = gate.name().to_owned();
    gate.finish(problems);
    let size = match size {
        Some(size) => Some(size?),
        None => None,
    };
    let limiter = Limiter::new(kind, count?, period?, size);
    match limiter.and_then(|limiter| if is_aligned { limiter.aligned() } else { Ok(limiter) }) {
        Ok(limiter) => Some(limiter),
        Err(why) => {
            problems.add(format!("{name}: {why}"));
            None
        }
    }
}

/// Read the ready window of `[limits]` or of a route.
pub fn read_ready_window(section: &mut Section, problems: &mut Problems) -> Option<ReadyWindow> {
    section.read("ready_window", |v| ReadyWindow::parse(v.as_str()?), problems)
}

/// Read the `[limits]` section.
pub fn read_limits(section: &mut Section, problems: &mut Problems) -> Limits {
    let base = Limits::default();
    let limits = Limits {
        max_job_bytes: section.number("max_job_bytes", problems).unwrap_or(base.max_job_bytes),
        rejected_keep: section.number("rejected_keep", problems).unwrap_or(base.rejected_keep),
        max_ready: section.number("max_ready", problems).unwrap_or(base.max_ready),
        batch: section.number("batch", problems).unwrap_or(base.batch),
        ready_window: read_ready_window(section, problems).unwrap_or(base.ready_window),
    };
    section.finish(problems);
    limits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BadConfig, Config, Environment};

    fn parse(text: &str) -> Result<Config, BadConfig> {
        Config::parse(text, Some("config.toml".into()), &Environment::default())
    }

    #[test]
    fn a_gate_is_a_limiter_with_its_own_numbers() {
        let text = "[defaults]\nadmit = { limiter = 'sliding-window', limit = 5, period = '60s' }\n\
                    [[bucket]]\nmatch = 'a'\n[[bucket]]\nmatch = 'b'\nadmit = []\n[[bucket]]\nmatch = 'c'\n\
                    admit = [{ limiter = 'throttle', max_burst = 4, count = 1, period = '1s' }, \
                             { limiter = 'fixed-window', limit = 9, period = '1d', aligned = true }]\n";
        let record = parse(text).expect("good").record;
        let shown = |policy: &Policy| policy.admit.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        assert_eq!(shown(&record.buckets[0].policy), "sliding-window 5/m");
        assert_eq!(shown(&record.buckets[1].policy), "");
        assert_eq!(shown(&record.buckets[2].policy), "throttle 1/s max_burst 4, fixed-window 9/d aligned");
    }

    #[test]
    fn order_needs_a_concurrency_of_1() {
        let good = "[defaults]\nconcurrency = 1\n[[bucket]]\nmatch = 'a'\nordered = true\n";
        assert!(parse(good).expect("good").record.buckets[0].policy.ordered);
        let bad = "[defaults]\nordered = true\n[[bucket]]\nmatch = 'a'\n[[bucket]]\nmatch = 'b'\nordered = true\nconcurrency = 2\n";
        let shown = parse(bad).expect_err("it cannot be kept").to_string();
        let expected = "config.toml: 2 problems\n  \
            defaults: ordered = true needs concurrency = 1, so that one job runs at a time; its concurrency is none; write that too, or \
            ordered = false\n  \
            bucket[2]: ordered = true needs concurrency = 1, so that one job runs at a time; its concurrency is 2; write that too, or \
            ordered = false";
        assert_eq!(shown, expected);
    }

    #[test]
    fn what_is_wrong_with_a_gate_is_named() {
        let text = "[defaults]\nadmit = [{ limiter = 'sliding-window', limit = 10001, period = '60s' }, { limiter = 'leaky' }, \
                    { limiter = 'token-bucket', capacity = 1, period = '1500us' }, { limiter = 'throttle', limit = 3 }]\n\
                    [[bucket]]\nmatch = 'x'\nadmit = 5\n[[bucket]]\nmatch = 'y'\n\
                    admit = { limiter = 'throttle', max_burst = 1, count = 1, period = '1500ms' }\n";
        let shown = parse(text).expect_err("all of it is wrong").to_string();
        for part in [
            "config.toml: 10 problems",
            "defaults.admit[1].limit: 10001 is not allowed; write a whole number, 1 to 10000",
            "defaults.admit[2].limiter: \"leaky\" is not allowed; write one of fixed-window,",
            "defaults.admit[3].count: missing",
            "defaults.admit[4].max_burst: missing",
            "defaults.admit[4].count: missing",
            "defaults.admit[4].period: missing",
            "defaults.admit[4].limit: unknown key",
            "bucket[1].admit: 5 is not allowed; write a table, or a list of tables",
            "defaults.admit[3].period: \"1500us\" is not allowed; write whole milliseconds, 1ms to 366d, as in \"60s\"",
            "bucket[2].admit.period: \"1500ms\" is not allowed; write whole seconds, 1s to 366d",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
    }
}
