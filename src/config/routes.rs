//! `[[route]]`: routes that forward into a list that the workers of another system take from.

use super::keys;
use super::section::{Problems, Section};
use super::server::RedisSettings;
use crate::words::forward::{End, Forward, Register, TAG};
use crate::words::policy::{Record, Route};

/// The longest key.
const KEY_LONGEST: usize = 500;

/// What applies only to jobs that dripd's own workers take.
const UNFIT: [&str; 5] = ["attempts", "backoff", "lease", "concurrency", "ordered"];

/// All entries of `[[route]]`.
pub fn read_routes(root: &mut Section, redis: &RedisSettings, problems: &mut Problems) -> Vec<Forward> {
    let entries = root.sections("route", &[keys::ROUTE], problems);
    let mut routes = Vec::new();
    for mut entry in entries {
        let at = entry.name().to_owned();
        let Some(route) = read_route(&mut entry, problems) else { continue };
        check_keys(&at, &route, redis, problems);
        routes.push((at, route));
    }
    check_apart(&routes, problems);
    routes.into_iter().map(|(_, route)| route).collect()
}

fn key_text(v: &toml::Value) -> Option<String> {
    let is_key = |text: &&str| (1..=KEY_LONGEST).contains(&text.len()) && !text.contains(char::is_control);
    v.as_str().filter(is_key).map(str::to_owned)
}

fn read_route(entry: &mut Section, problems: &mut Problems) -> Option<Forward> {
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
    let end = |v: &toml::Value| match v.as_str()? {
        "left" => Some(End::Left),
        "right" => Some(End::Right),
        _ => None,
    };
    let end = entry.read("end", end, problems).unwrap_or_default();
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

/// That the keys of a route are none of dripd's, and that each partition has its own.
fn check_keys(at: &str, route: &Forward, redis: &RedisSettings, problems: &mut Problems) {
    let set = route.register.as_ref().map(|register| ("register.set", &register.set));
    let member = route.register.as_ref().map(|register| ("register.member", &register.member));
    let keys = [Some(("to", &route.to)), set, route.notify.as_ref().map(|key| ("notify", key))];
    let is_whole = redis.cut.is_whole();
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

/// That no two routes have one name, and that no key is used in two ways.
fn check_apart(routes: &[(String, Forward)], problems: &mut Problems) {
    let mut lists: Vec<(&str, String)> = Vec::new();
    for (n, (at, route)) in routes.iter().enumerate() {
        if let Some((other, _)) = routes[..n].iter().find(|(_, other)| other.name == route.name) {
            problems.add(format!("{at}.name: {:?} is the name of {other} too; write another one", route.name.as_str()));
        }
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
    for (at, route) in routes {
        let Some(register) = &route.register else { continue };
        if let Some((key, by)) = lists.iter().find(|(key, _)| *key == register.set) {
            problems.add(format!("{at}.register.set: {key:?} is the list {by} too; write the key of a set"));
        }
    }
}

/// The keys of a section that do not fit a route that forwards.
pub fn unfit_keys(section: &Section) -> Vec<&'static str> {
    UNFIT.into_iter().filter(|key| section.has(key)).collect()
}

/// Refuse them, by name, in an entry whose jobs are forwarded.
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

/// What is allowed and can hardly be meant.
pub fn warnings(record: &Record) -> Vec<String> {
    let uses = |route: &Route| {
        record.defaults.route == *route || record.buckets.iter().any(|entry| entry.policy.route == *route)
    };
    let unused = record.routes.iter().enumerate().filter(|(_, forward)| !uses(&forward.name));
    let warning = |(at, forward): (usize, &Forward)| {
        format!(
            "route[{}] {:?} is the route of no bucket: write route = {:?} in [[bucket]] or [defaults]",
            at + 1,
            forward.name.as_str(),
            forward.name.as_str()
        )
    };
    unused.map(warning).collect()
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
                "route[1].list: unknown key; write one of name, to, end, register, notify".to_owned(),
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
            "route[1] \"sidekiq\" is the route of no bucket: write route = \"sidekiq\" in [[bucket]] or [defaults]";
        assert_eq!(parse(SIDEKIQ).expect("good").warnings(), [expected]);
    }
}
