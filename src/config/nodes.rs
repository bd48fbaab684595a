//! The keys that buckets and budgets have in common, and `[[budget]]`.

use std::time::Duration;

use super::keys;
use super::section::{Problems, Section};
use crate::model::bucket::BucketName;
use crate::model::duration;
use crate::model::glob::is_glob;
use crate::model::node::{Budget, Node, Slow, Told};
use crate::model::parent::Parent;
use crate::model::policy::Policy;
use crate::model::quota::Quota;
use crate::model::rate::Rate;

/// Read the keys of a node from a section. A key that is missing keeps its value of `base`.
pub fn read_node(section: &mut Section, base: &Node, problems: &mut Problems) -> Node {
    let parent = |v: &toml::Value| match v.as_str()? {
        "" => Some(None),
        text => Parent::parse(text).ok().map(Some),
    };
    let within = section.read("within", parent, problems);
    let weight = section.number("weight", problems).unwrap_or(base.weight);
    let quotas = read_quotas(section, problems);
    let concurrency = |v: &toml::Value| match v.as_str() {
        Some("none") => Some(None),
        Some(_) => None,
        None => u32::try_from(v.as_integer()?).ok().filter(|n| (1..=100_000).contains(n)).map(Some),
    };
    let concurrency = section.read("concurrency", concurrency, problems).unwrap_or(base.concurrency);
    let job_rate = |v: &toml::Value| match v.as_str()? {
        "none" => Some(None),
        text => Rate::parse(text).ok().map(Some),
    };
    let job_rate = section.read("job_rate", job_rate, problems).unwrap_or(base.job_rate);
    Node {
        within: within.unwrap_or_else(|| base.within.clone()),
        weight,
        concurrency,
        quotas: quotas.unwrap_or_else(|| base.quotas.clone()),
        slow: read_slow(section, base.slow, problems),
        job_rate,
        told: section.read("told", |v| Told::parse(v.as_str()?), problems).unwrap_or(base.told),
    }
}

/// Read one quota or a list of them. No two may have the same windows: the functions store what is used under the
/// window.
fn read_quotas(section: &mut Section, problems: &mut Problems) -> Option<Vec<Quota>> {
    let quota = |v: &toml::Value| Quota::parse(v.as_str()?).ok();
    let quotas = |v: &toml::Value| match v.as_array() {
        Some(list) => {
            list.iter().map(quota).collect::<Option<Vec<_>>>().filter(|list| list.len() <= Quota::MOST_OF_ONE)
        }
        None => quota(v).map(|one| vec![one]),
    };
    let quotas = section.read("quota", quotas, problems)?;
    for (n, one) in quotas.iter().enumerate() {
        if let Some(other) = quotas[..n].iter().find(|other| other.has_windows_of(*one)) {
            let name = section.full("quota");
            problems.add(format!("{name}: {other} and {one} have the same windows; write the smaller one alone"));
        }
    }
    Some(quotas)
}

fn read_slow(section: &mut Section, base: Slow, problems: &mut Problems) -> Slow {
    let mut slow = section.section("slow", &[keys::SLOW], problems);
    let read = Slow {
        initial: slow.duration("initial", problems).unwrap_or(base.initial),
        max: slow.duration("max", problems).unwrap_or(base.max),
        cap: slow.duration("cap", problems).unwrap_or(base.cap),
        adaptive: slow.read("adaptive", toml::Value::as_bool, problems).unwrap_or(base.adaptive),
    };
    slow.finish(problems);
    if is_in_order(&slow, read.initial, read.max, problems) { read } else { base }
}

/// Check that the first wait is no longer than the longest, and report it otherwise. The caller then treats both as not
/// written, so that the problem is reported once.
pub fn is_in_order(section: &Section, initial: Duration, max: Duration, problems: &mut Problems) -> bool {
    if initial > max {
        let (name, initial, max) = (section.name(), duration::show(initial), duration::show(max));
        problems.add(format!("{name}: initial, {initial}, is longer than max, {max}"));
    }
    initial <= max
}

/// Read `catch_up`, at most `longest`; `None` where it is missing or wrong.
pub fn read_catch_up(section: &mut Section, longest: Duration, problems: &mut Problems) -> Option<Duration> {
    section.read("catch_up", |v| duration::parse(v.as_str()?).filter(|time| *time <= longest), problems)
}

/// Refuse `ready_window` in `[defaults]`, `[[bucket]]` and `[[budget]]`: only `[limits]` and `[[route]]` have it.
pub fn refuse_ready_window(section: &mut Section, problems: &mut Problems) {
    if section.take("ready_window") {
        problems.add(format!(
            "{}: it belongs to a route, whose workers are behind or are not; write it in [limits], for all routes, or in [[route]] with the \
             name of one",
            section.full("ready_window")
        ));
    }
}

/// Read the keys of a budget, beside its `match`. `[defaults]` does not apply to budgets. `longest` is the longest
/// `catch_up` where no rate is written.
pub fn read_budget(section: &mut Section, longest: Duration, problems: &mut Problems) -> Budget {
    refuse_ready_window(section, problems);
    let has = |key: &str| keys::BUDGET.iter().any(|own| own.name == key);
    for key in keys::POLICY.iter().map(|key| key.name).filter(|key| !has(key)) {
        if section.take(key) {
            let own = keys::BUDGET.iter().map(|key| key.name).collect::<Vec<_>>().join(", ");
            problems
                .add(format!("{}: a budget has no {key}, only buckets have; write some of {own}", section.full(key)));
        }
    }
    let rate = section.read("rate", |v| Rate::parse(v.as_str()?).ok(), problems);
    let longest = rate.map_or(longest, Policy::longest_catch_up);
    let catch_up = read_catch_up(section, longest, problems);
    Budget { rate, catch_up, node: read_node(section, &Node::default(), problems) }
}

/// Read an entry of `[[budget]]`: its `match`, `None` where that is missing or wrong, and its settings.
pub fn read_budget_entry(section: &mut Section, problems: &mut Problems) -> (Option<String>, Budget) {
    let can_match = |glob: &str| {
        let is_plain = !glob.contains(['{', '}']) && !glob.chars().any(char::is_control);
        is_plain && if is_glob(glob) { true } else { BucketName::parse(glob.as_bytes()).is_ok() }
    };
    let glob = section.must_read("match", |v| v.as_str().filter(|glob| can_match(glob)).map(str::to_owned), problems);
    // A limit that is written and wrong is reported as wrong; the budget is then not also reported as limiting nothing.
    let names_a_limit = keys::BUDGET_LIMITS.iter().any(|key| section.has(key));
    // One whose other side tells it is limited by that.
    let is_told = section.has("told");
    let before = problems.count();
    let budget = read_budget(section, Duration::from_secs(1), problems);
    let is_limited = budget.limits_something() || is_told && budget.node.told != Told::Off;
    if !is_limited && (!names_a_limit || problems.count() == before) {
        let name = section.name();
        let limits = keys::BUDGET_LIMITS.join(", ");
        problems.add(format!("{name}: it limits nothing; write at least one of {limits}"));
    }
    section.finish(problems);
    (glob, budget)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Environment};

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Some("config.toml".into()), &Environment::default()).map_err(|why| why.to_string())
    }

    fn problems(text: &str) -> Vec<String> {
        let shown = parse(text).expect_err("it is wrong");
        shown.lines().skip(1).map(|line| line.trim_start().to_owned()).collect()
    }

    #[test]
    fn the_keys_of_a_tree_are_read_key_by_key_over_the_defaults_and_taken_away_again() {
        let text = "[[budget]]\nmatch = 'a'\nrate = '3000/m'\n[[budget]]\nmatch = 'b:*'\nquota = ['10/s', '1000/d@+01:00']\nwithin = 'a'\n\
                    weight = 5\nslow = { max = '1m' }\n[defaults]\nwithin = 'a'\nquota = '5/d'\nconcurrency = 1\nordered = true\nweight = 2\n\
                    slow = { initial = '2s', adaptive = true }\n[[bucket]]\nmatch = 'x'\nslow = { cap = '5m' }\n[[bucket]]\nmatch = 'y'\n\
                    within = ''\nquota = []\nconcurrency = 'none'\nordered = false\n[[bucket]]\nmatch = '*:z'\nwithin = 'b:{1}'\n";
        let record = parse(text).expect("good").record;
        let (a, b) = (&record.budgets[0], &record.budgets[1]);
        assert_eq!((a.glob.as_str(), a.policy.rate.map(|rate| rate.to_string()).as_deref()), ("a", Some("3000/m")));
        assert_eq!((b.policy.rate, b.policy.node.weight, b.policy.node.quotas.len()), (None, 5, 2));
        assert_eq!(
            (b.policy.node.slow.initial, b.policy.node.slow.max),
            (Duration::from_secs(1), Duration::from_secs(60))
        );
        let shown = |n: usize| {
            let (policy, within) = (&record.buckets[n].policy, |text: &str| text.to_owned());
            let node = &policy.node;
            let within = node.within.as_ref().map_or_else(|| "-".to_owned(), |parent| within(parent.as_str()));
            format!("{within} {} {:?} {} {}", node.quotas.len(), node.concurrency, policy.ordered, node.weight)
        };
        assert_eq!(
            [shown(0), shown(1), shown(2)],
            ["a 1 Some(1) true 2", "- 0 None false 2", "b:{1} 1 Some(1) true 2"]
        );
        let slow = record.buckets[0].policy.node.slow;
        assert_eq!((slow.initial, slow.cap, slow.adaptive), (Duration::from_secs(2), Duration::from_secs(300), true));
    }

    #[test]
    fn what_is_wrong_with_a_key_of_a_tree_is_named_with_what_would_be_right() {
        let text = "[defaults]\nwithin = 'a}'\nquota = '1/x'\nconcurrency = 0\nordered = 1\nweight = 0\nslow = { initial = '1h', max = '1s' }\n\
                    [[bucket]]\nmatch = 'x'\nquota = ['1/d', '2/24h']\nconcurrency = 'all'\nslow = { cap = 5, mx = 1, adaptive = 'yes' }\n\
                    weight = 1001\n[[bucket]]\nmatch = 'y'\nquota = ['1/d', '1/h', '1/m', '1/s', '1/2s']\nconcurrency = 100001\n";
        let quota = "write count/period, as in \"1000/d\" or, in another time zone than UTC, \"1000/d@-08:00\": count 1 to 1000000000, period 1s \
                     to 366d; or a list of up to 4; [] is none";
        let within = "write the name of a budget, in which {1} stands for what the first * of match matched, as in \"twilio:{1}\": 1 to 200 \
                      bytes without control characters or other braces; \"\" is none";
        let concurrency = "write a whole number, 1 to 100000, or \"none\"; to let nothing out use `dripd pause`";
        let time = "write a whole number and a unit (us ms s m h d), as in \"20ms\": 1ms to 366d";
        let mut found = problems(text);
        let mut expected = [
            "defaults.ordered: 1 is not allowed; write true or false".to_owned(),
            format!("defaults.within: \"a}}\" is not allowed; {within}"),
            "defaults.weight: 0 is not allowed; write a whole number, 1 to 1000".to_owned(),
            format!("defaults.quota: \"1/x\" is not allowed; {quota}"),
            format!("defaults.concurrency: 0 is not allowed; {concurrency}"),
            "defaults.slow: initial, 1h, is longer than max, 1s".to_owned(),
            "bucket[1].weight: 1001 is not allowed; write a whole number, 1 to 1000".to_owned(),
            "bucket[1].quota: 1/d and 2/d have the same windows; write the smaller one alone".to_owned(),
            format!("bucket[1].concurrency: \"all\" is not allowed; {concurrency}"),
            format!("bucket[1].slow.cap: 5 is not allowed; {time}"),
            "bucket[1].slow.adaptive: \"yes\" is not allowed; write true or false".to_owned(),
            "bucket[1].slow.mx: unknown key; did you mean max?".to_owned(),
            format!("bucket[2].quota: [\"1/d\", \"1/h\", \"1/m\", \"1/s\", \"1/2s\"] is not allowed; {quota}"),
            format!("bucket[2].concurrency: 100001 is not allowed; {concurrency}"),
        ];
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_budget_limits_something_and_has_only_keys_of_budgets() {
        let text = "[[budget]]\nmatch = 'a'\n[[budget]]\nmatch = 'b'\nquota = []\nconcurrency = 'none'\n[[budget]]\nmatch = 'c'\nrate = '5'\n\
                    [[budget]]\nmatch = 'd'\njob_rate = '5'\n[[budget]]\nmatch = '{e}'\nrate = '5/s'\n[[budget]]\nrate = '5/s'\n\
                    [[budget]]\nmatch = 'g'\nconcurrency = 5\ncapacity = 5\nttl = '1m'\nwieght = 5\n[[budget]]\nmatch = ''\nrate = '5/s'\n";
        let nothing = "it limits nothing; write at least one of rate, job_rate, quota, concurrency, told";
        let name = "write the name of a budget, or a glob such as \"twilio:*\", without control characters or braces";
        let own = "write some of within, rate, quota, concurrency, weight, catch_up, slow, job_rate, told";
        let (rate, job_rate) = (Rate::HINT, keys::JOB_RATE_HINT);
        assert_eq!(
            problems(text),
            [
                format!("budget[1]: {nothing}"),
                format!("budget[2]: {nothing}"),
                format!("budget[3].rate: \"5\" is not allowed; {rate}"),
                format!("budget[4].job_rate: \"5\" is not allowed; {job_rate}"),
                format!("budget[5].match: \"{{e}}\" is not allowed; {name}"),
                format!("budget[6].match: missing; {name}"),
                format!("budget[7].capacity: a budget has no capacity, only buckets have; {own}"),
                format!("budget[7].ttl: a budget has no ttl, only buckets have; {own}"),
                "budget[7].wieght: unknown key; did you mean weight?".to_owned(),
                format!("budget[8].match: \"\" is not allowed; {name}"),
            ]
        );
    }

    #[test]
    fn what_is_made_up_may_be_an_interval_where_that_is_longer_than_a_second() {
        let good = "[defaults]\nrate = '1/h'\ncatch_up = '1h'\n[[bucket]]\nmatch = 'fast'\nrate = '10/s'\n[[bucket]]\nmatch = 'strict'\n\
                    catch_up = '0s'\n[[budget]]\nmatch = 'a'\nrate = '30/h'\ncatch_up = '2m'\n[[budget]]\nmatch = 'b'\nrate = '1/h'\n";
        let record = parse(good).expect("good").record;
        let of = |n: usize| (record.buckets[n].policy.catch_up, record.buckets[n].policy.is_catch_up_set);
        assert_eq!(
            (of(0), of(1)),
            ((Duration::from_secs(1), true), (Duration::ZERO, true)),
            "no longer than its own rate allows"
        );
        assert_eq!(record.budgets[0].policy.catch_up, Some(Duration::from_secs(120)));
        assert_eq!(record.budgets[1].policy.catch_up, None);
        let hint = keys::CATCH_UP_HINT;
        let bad = "[defaults]\ncatch_up = '1001ms'\n[[bucket]]\nmatch = 'x'\nrate = '1/m'\ncatch_up = '61s'\n[[budget]]\nmatch = 'a'\n\
                   concurrency = 1\ncatch_up = '2s'\n";
        assert_eq!(
            problems(bad),
            [
                format!("defaults.catch_up: \"1001ms\" is not allowed; {hint}"),
                format!("budget[1].catch_up: \"2s\" is not allowed; {hint}"),
                format!("bucket[1].catch_up: \"61s\" is not allowed; {hint}"),
            ]
        );
    }
}
