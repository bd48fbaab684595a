//! `[[route]]`: routes that forward into a list that the workers of another system take from, and ready windows of
//! single routes.

use std::collections::BTreeMap;

use super::keys;
use super::policies::read_ready_window;
use super::section::{Problems, Section};
use super::server::RedisSettings;
use crate::model::duration;
use crate::model::forward::{End, Forward, Register, TAG};
use crate::model::policy::{Policy, Record};
use crate::model::ready_window::ReadyWindow;
use crate::model::route::Route;

/// The longest Redis key of another system.
const MAX_KEY_BYTES: usize = 500;

/// The keys of a policy that apply only to jobs which dripd's own workers take.
const UNFIT: [&str; 5] = ["attempts", "backoff", "lease", "concurrency", "ordered"];

/// The keys of a route that apply only to routes that forward.
const OF_FORWARDS: [&str; 3] = ["end", "register", "notify"];

/// An entry of `[[route]]` that could be read.
struct Entry {
    /// The name of the entry in error messages, as in `route[1]`.
    at: String,
    name: Route,
    /// The list that gets its jobs; none: they go to a ready stream.
    forward: Option<Forward>,
    ready_window: Option<ReadyWindow>,
}

/// Read all entries of `[[route]]`: the routes that forward, and the ready windows that are written.
pub fn read_routes(
    root: &mut Section,
    redis: &RedisSettings,
    problems: &mut Problems,
) -> (Vec<Forward>, BTreeMap<Route, ReadyWindow>) {
    let sections = root.sections("route", &[keys::ROUTE], problems);
    let entries: Vec<_> = sections.into_iter().filter_map(|mut section| read_entry(&mut section, problems)).collect();
    for (at, forward) in forwards(&entries) {
        check_keys(at, forward, redis, problems);
    }
    check_apart(&entries, problems);
    let windows = entries.iter().filter_map(|entry| Some((entry.name.clone(), entry.ready_window?))).collect();
    (entries.into_iter().filter_map(|entry| entry.forward).collect(), windows)
}

fn forwards(entries: &[Entry]) -> impl Iterator<Item = (&str, &Forward)> {
    entries.iter().filter_map(|entry| Some((entry.at.as_str(), entry.forward.as_ref()?)))
}

fn key_text(v: &toml::Value) -> Option<String> {
    let is_key = |text: &&str| (1..=MAX_KEY_BYTES).contains(&text.len()) && !text.contains(char::is_control);
    v.as_str().filter(is_key).map(str::to_owned)
}

fn read_entry(entry: &mut Section, problems: &mut Problems) -> Option<Entry> {
    let at = entry.name().to_owned();
    let has_window = entry.has("ready_window");
    let ready_window = read_ready_window(entry, problems);
    let forwards_nothing = has_window && !["to"].iter().chain(&OF_FORWARDS).any(|key| entry.has(key));
    if forwards_nothing {
        let name = entry.must_read("name", |v| Route::parse(v.as_str()?).ok(), problems);
        for key in UNFIT {
            if entry.take(key) {
                problems
                    .add(format!("{}: a route has no {key}; write it in [[bucket]] or [defaults]", entry.full(key)));
            }
        }
        entry.without(keys::ROUTE);
        entry.finish(problems);
        return Some(Entry { at, name: name?, forward: None, ready_window });
    }
    let forward = read_forward(entry, problems)?;
    Some(Entry { at, name: forward.name.clone(), forward: Some(forward), ready_window })
}

fn read_forward(entry: &mut Section, problems: &mut Problems) -> Option<Forward> {
    for key in UNFIT {
        if entry.take(key) {
            problems.add(format!(
                "{}: a route that forwards has no {key}: the workers of its list have rules of their own; remove it",
                entry.full(key)
            ));
        }
    }
    let name = entry.must_read("name", |v| Route::parse(v.as_str()?).ok(), problems);
    let to = entry.must_read("to", key_text, problems);
    let end = entry.read("end", |v| End::parse(v.as_str()?), problems).unwrap_or_default();
    let is_registered = entry.has("register");
    let mut register = entry.section("register", &[keys::ROUTE_REGISTER], problems);
    let register = is_registered.then(|| {
        let set = register.must_read("set", key_text, problems);
        let member = register.must_read("member", key_text, problems);
        register.finish(problems);
        Some(Register { set: set?, member: member? })
    });
    let notify = entry.read("notify", key_text, problems);
    entry.finish(problems);
    Some(Forward { name: name?, to: to?, end, register: register.flatten(), notify })
}

/// Check that the keys of a route are not dripd's own, and that each partition has keys of its own.
fn check_keys(at: &str, route: &Forward, redis: &RedisSettings, problems: &mut Problems) {
    let set = route.register.as_ref().map(|register| ("register.set", &register.set));
    let member = route.register.as_ref().map(|register| ("register.member", &register.member));
    let keys = [Some(("to", &route.to)), set, route.notify.as_ref().map(|key| ("notify", key))];
    let is_whole = redis.partitioning.is_single();
    for (name, key) in keys.into_iter().flatten() {
        if key.strip_prefix(redis.prefix.as_str()).is_some_and(|rest| rest.starts_with(':')) {
            problems.add(format!(
                "{at}.{name}: {key:?} is a key of dripd's own, for it begins with {}:; write the key of another system",
                redis.prefix
            ));
        } else if !is_whole && key.matches(TAG).count() != 1 {
            problems.add(format!(
                "{at}.{name}: {key:?} needs {TAG} once: with redis.partitions each partition forwards to a key of its own, and {TAG} stands \
                 for its tag; write for example {:?}",
                format!("{key}:{TAG}")
            ));
        } else if !is_whole && key.replacen(TAG, "", 1).contains(['{', '}']) {
            problems
                .add(format!("{at}.{name}: {key:?} has braces beside {TAG}, which would be its hash tag; remove them"));
        }
    }
    let tagged = keys.into_iter().flatten().chain(member).filter(|(_, text)| is_whole && text.contains(TAG));
    for (name, text) in tagged {
        problems.add(format!(
            "{at}.{name}: {TAG} in {text:?} stands for the tag of a partition, and redis.partitions is 1; remove it, or cut the system into \
             partitions"
        ));
    }
}

/// Check that no two routes have the same name, and that no key is used in two ways.
fn check_apart(entries: &[Entry], problems: &mut Problems) {
    for (n, entry) in entries.iter().enumerate() {
        if let Some(other) = entries[..n].iter().find(|other| other.name == entry.name) {
            let (at, name, other) = (&entry.at, entry.name.as_str(), &other.at);
            problems.add(format!("{at}.name: {name:?} is the name of {other} too; write another one"));
        }
    }
    let mut lists: Vec<(&str, String)> = Vec::new();
    for (at, route) in forwards(entries) {
        for (name, key) in
            [Some(("to", &route.to)), route.notify.as_ref().map(|key| ("notify", key))].into_iter().flatten()
        {
            match lists.iter().find(|(known, _)| known == key) {
                Some((_, by)) => {
                    problems.add(format!("{at}.{name}: {key:?} is {by} too; each list has one route and one use"));
                }
                None => lists.push((key, format!("{at}.{name}"))),
            }
        }
    }
    for (at, route) in forwards(entries) {
        let Some(register) = &route.register else { continue };
        if let Some((key, by)) = lists.iter().find(|(key, _)| *key == register.set) {
            problems.add(format!("{at}.register.set: {key:?} is the list {by} too; write the key of a set"));
        }
    }
}

/// The keys of a section that have no meaning on a route that forwards.
pub fn unfit_keys(section: &Section) -> Vec<&'static str> {
    UNFIT.into_iter().filter(|key| section.has(key)).collect()
}

/// Report the keys in `unfit`, by name, in an entry whose jobs are forwarded.
pub fn refuse_unfit(at: &str, unfit: &[&str], forward: &Forward, problems: &mut Problems) {
    for key in unfit {
        problems.add(format!(
            "{at}.{key}: it means nothing on route {:?}, which forwards to the list {:?}: the workers of that list have rules of their own; \
             remove it, or write another route",
            forward.name.as_str(),
            forward.to
        ));
    }
}

/// The warnings about routes: settings that are allowed and hardly meant.
pub fn warnings(record: &Record) -> Vec<String> {
    let mut policies = vec![("[defaults]".to_owned(), &record.defaults)];
    policies.extend(
        record.buckets.iter().zip(1..).map(|(entry, n)| (format!("bucket[{n}] {:?}", entry.glob), &entry.policy)),
    );
    let named = record.routes.iter().map(|forward| &forward.name).chain(record.ready_windows.keys());
    let mut unused: Vec<_> = named.filter(|name| policies.iter().all(|(_, policy)| policy.route != **name)).collect();
    unused.sort_unstable();
    unused.dedup();
    let unused = unused.into_iter().map(|name| {
        let name = name.as_str();
        format!("[[route]] {name:?} is the route of no bucket: write route = {name:?} in [[bucket]] or [defaults]")
    });
    let (defaults, named) = (&record.defaults, &policies[1..]);
    let is_own = |policy: &Policy| policy.rate != defaults.rate || policy.route != defaults.route;
    let of_defaults = policies[..1].iter().chain(named.iter().filter(|(_, policy)| is_own(policy)));
    let long = of_defaults.filter_map(|(at, policy)| long_window(at, policy, record));
    unused.chain(long).collect()
}

/// The number of a bucket's intervals above which `check` warns of a ready window.
const MANY_INTERVALS: u128 = 10;

/// Warn of a ready window that is long for a rate: workers that come back may get all of its jobs at once.
fn long_window(at: &str, policy: &Policy, record: &Record) -> Option<String> {
    let window = record.ready_window(&policy.route).duration()?;
    let (period, count) = (policy.rate.period().as_nanos(), u128::from(policy.rate.count()));
    let lasts = |time: std::time::Duration| time.as_nanos() * count / period;
    (window.as_nanos() * count > MANY_INTERVALS * period).then(|| {
        let burst = 2 + lasts(window + policy.catch_up) + lasts(policy.catch_up);
        let (rate, route, window) = (policy.rate, policy.route.as_str(), duration::show(window));
        format!(
            "{at}: ready_window {window} of route {route:?} is more than {MANY_INTERVALS} intervals of {rate}: workers that were away may be \
             given {burst} of its jobs at once; write a shorter one in [[route]] or [limits] where that is too many"
        )
    })
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

    const SIDEKIQ: &str =
        "[[route]]\nname = 'sidekiq'\nto = 'queue:default'\nregister = { set = 'queues', member = 'default' }\n";

    #[test]
    fn a_route_is_read_and_its_end_is_left_unless_it_is_written() {
        let laravel = "[[route]]\nname = 'laravel'\nto = 'queues:default'\nend = 'right'\nnotify = 'queues:default:notify'\n\
                       [[bucket]]\nmatch = 'a'\nroute = 'laravel'\n[[bucket]]\nmatch = 'b'\nroute = 'sidekiq'\n";
        let config = parse(&(SIDEKIQ.to_owned() + laravel)).expect("good");
        let [sidekiq, laravel] = &config.record.routes[..] else { panic!("two routes") };
        let register = Register { set: "queues".to_owned(), member: "default".to_owned() };
        assert_eq!((sidekiq.end, sidekiq.register.as_ref(), &sidekiq.notify), (End::Left, Some(&register), &None));
        assert_eq!((laravel.end, laravel.notify.as_deref()), (End::Right, Some("queues:default:notify")));
        assert_eq!(config.warnings(), [""; 0]);
        let json = config.record.to_json();
        let stored =
            r#"[{"end":"left","name":"sidekiq","register":{"member":"default","set":"queues"},"to":"queue:default"}"#;
        assert!(json.contains(stored), "{json}");
    }

    #[test]
    fn what_only_a_worker_of_dripd_s_can_keep_is_refused_by_name() {
        let of_route = SIDEKIQ.to_owned() + "attempts = 3\nlease = '5s'\n";
        let text = of_route
            + "[defaults]\nconcurrency = 1\nordered = true\nlease = '2m'\nattempts = 9\n[[bucket]]\nmatch = 'a'\n\
             route = 'sidekiq'\nattempts = 3\nbackoff = { max = '5s' }\nlease = '5s'\nconcurrency = 3\nordered = true\n[[bucket]]\nmatch = 'b'\n\
             route = 'sidekiq'\n";
        let mut expected: Vec<String> = ["attempts", "lease"]
            .map(|key| {
                format!("route[1].{key}: a route that forwards has no {key}: the workers of its list have rules of their own; remove it")
            })
            .into();
        expected.extend(UNFIT.map(|key| {
            format!(
                "bucket[1].{key}: it means nothing on route \"sidekiq\", which forwards to the list \"queue:default\": the workers of that list \
                 have rules of their own; remove it, or write another route"
            )
        }));
        assert_eq!(problems(&text), expected);
    }

    #[test]
    fn what_is_wrong_with_a_route_is_named() {
        let text = "[[route]]\nname = 'a b'\nto = ''\nend = 'top'\nregister = { set = 'x' }\nlist = 'x'\n[[route]]\n[[route]]\nname = 'c'\n\
                    to = 'drip:y'\nnotify = 'drip:x'\n[[route]]\nname = 'c'\nto = 'l:{p}'\nnotify = 'l:{p}'\n[[route]]\nname = 'd'\n\
                    to = 'n'\nregister = { set = 'n', member = '{p}' }\n[[route]]\nname = 'e'\nto = 'n'\n";
        let key = "write 1 to 500 bytes without control characters";
        let own = "is a key of dripd's own, for it begins with drip:; write the key of another system";
        let tag = "stands for the tag of a partition, and redis.partitions is 1; remove it, or cut the system into partitions";
        assert_eq!(
            problems(text),
            [
                format!("route[1].name: \"a b\" is not allowed; {}", Route::HINT),
                format!("route[1].to: \"\" is not allowed; {key}"),
                "route[1].end: \"top\" is not allowed; write \"left\" or \"right\"".to_owned(),
                format!("route[1].register.member: missing; {key}"),
                "route[1].list: unknown key; write one of ready_window, name, to, end, register, notify".to_owned(),
                format!("route[2].name: missing; {}", Route::HINT),
                format!("route[2].to: missing; {key}"),
                format!("route[3].to: \"drip:y\" {own}"),
                format!("route[3].notify: \"drip:x\" {own}"),
                format!("route[4].to: {{p}} in \"l:{{p}}\" {tag}"),
                format!("route[4].notify: {{p}} in \"l:{{p}}\" {tag}"),
                format!("route[5].register.member: {{p}} in \"{{p}}\" {tag}"),
                "route[4].name: \"c\" is the name of route[3] too; write another one".to_owned(),
                "route[4].notify: \"l:{p}\" is route[4].to too; each list has one route and one use".to_owned(),
                "route[6].to: \"n\" is route[5].to too; each list has one route and one use".to_owned(),
                "route[5].register.set: \"n\" is the list route[5].to too; write the key of a set".to_owned(),
            ]
        );
    }

    #[test]
    fn with_partitions_each_key_carries_the_tag_of_its_partition() {
        let cut = "[redis]\npartitions = 4\n[[bucket]]\nmatch = '*'\nroute = 'r'\n[[route]]\nname = 'r'\n";
        assert!(
            parse(&format!("{cut}to = 'queue:{{p}}:default'\nregister = {{ set = '{{p}}s', member = 'x' }}\n")).is_ok()
        );
        assert_eq!(
            problems(&format!("{cut}to = 'queue:default'\nnotify = '{{a}}{{p}}'\n")),
            [
                "route[1].to: \"queue:default\" needs {p} once: with redis.partitions each partition forwards to a key of its own, and {p} \
                 stands for its tag; write for example \"queue:default:{p}\"",
                "route[1].notify: \"{a}{p}\" has braces beside {p}, which would be its hash tag; remove them",
            ]
        );
    }

    #[test]
    fn a_route_that_no_bucket_names_is_warned_of() {
        let expected =
            "[[route]] \"sidekiq\" is the route of no bucket: write route = \"sidekiq\" in [[bucket]] or [defaults]";
        assert_eq!(parse(SIDEKIQ).expect("good").warnings(), [expected]);
    }

    #[test]
    fn a_ready_window_is_of_all_routes_or_of_one() {
        let text = "[limits]\nready_window = '1s'\n[[route]]\nname = 'slow'\nready_window = 'off'\n[[bucket]]\nmatch = 'a'\n\
                    route = 'slow'\n[[bucket]]\nmatch = 'b'\nroute = 'sidekiq'\n";
        let config = parse(&(text.to_owned() + SIDEKIQ + "ready_window = '5ms'\n")).expect("good");
        let window = |route| config.record.ready_window(&Route::parse(route).expect("a route")).to_string();
        assert_eq!(["default", "slow", "sidekiq"].map(window), ["1s", "off", "5ms"]);
        assert_eq!(config.record.routes.len(), 1, "only one forwards");
        let json = config.record.to_json();
        assert!(json.contains(r#""ready_windows":{"sidekiq":5000,"slow":0}"#), "{json}");
        assert!(json.contains(r#""ready_window_us":1000000"#), "{json}");
        assert_eq!(parse("").expect("good").record.ready_window(&Route::default()).to_string(), "250ms");
    }

    #[test]
    fn a_ready_window_that_cannot_be_is_refused_with_the_way_out() {
        for bad in ["'0s'", "'2h'", "-1", "'none'"] {
            let shown = bad.replace('\'', "\"");
            let expected = [format!("limits.ready_window: {shown} is not allowed; {}", ReadyWindow::HINT)];
            assert_eq!(problems(&format!("[limits]\nready_window = {bad}\n")), expected);
            let expected = [format!("route[1].ready_window: {shown} is not allowed; {}", ReadyWindow::HINT)];
            assert_eq!(problems(&format!("[[route]]\nname = 'default'\nready_window = {bad}\n")), expected);
        }
        let of_route = "it belongs to a route, whose workers are behind or are not; write it in [limits], for all routes, or in [[route]] \
                        with the name of one";
        let text = "[defaults]\nready_window = '1s'\n[[bucket]]\nmatch = 'a'\nready_window = '1s'\n[[budget]]\nmatch = 'b'\n\
                    rate = '1/s'\nready_window = '1s'\n";
        let expected = ["defaults", "budget[1]", "bucket[1]"].map(|at| format!("{at}.ready_window: {of_route}"));
        assert_eq!(problems(text), expected);
    }

    #[test]
    fn a_window_of_more_than_ten_intervals_is_warned_of_with_what_workers_may_see() {
        let text = "[defaults]\nrate = '40/s'\n[[bucket]]\nmatch = 'fast'\nrate = '1000/s'\n[[bucket]]\nmatch = 'off'\n\
                    rate = '1000/s'\nroute = 'x'\n[[route]]\nname = 'x'\nready_window = 'off'\n";
        let expected = "bucket[1] \"fast\": ready_window 250ms of route \"default\" is more than 10 intervals of 1000/s: workers that were \
                        away may be given 292 of its jobs at once; write a shorter one in [[route]] or [limits] where that is too many";
        assert_eq!(parse(text).expect("good").warnings(), [expected]);
    }
}
