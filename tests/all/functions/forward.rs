//! Routes that forward into a list of another system: what goes there, when, how much of it, and what does not apply to it.

use dripd::store::acl::Role;
use serde_json::json;

use super::explain::{T0 as MORNING, beat, json_of, says};
use crate::rig::{Case, MS, S, T0};

/// A case whose route `out` forwards; `L` in the text stands for what its list is called, which no other case has.
fn case(toml: &str) -> (Case, String) {
    let mut case = Case::bare();
    let list = format!("{}-list", case.prefix);
    assert_eq!(case.configure(&toml.replace("'L", &format!("'{list}"))), 1, "stored");
    (case, list)
}

const PLAIN: &str = "[[route]]\nname = 'out'\nto = 'L'\n[defaults]\nrate = '10/s'\nroute = 'out'\n";

fn list(case: &mut Case, key: &str) -> Vec<String> {
    case.cmd(&["LRANGE", key, "0", "-1"])
}

/// Nothing stands in two places or in none.
fn audit(case: &mut Case, now: u64) {
    let told: Vec<String> = case.fcall("drip__audit", &["policy"], &[now.to_string()]);
    assert_eq!(told, [""; 0]);
}

#[test]
fn the_bytes_of_a_job_go_to_the_end_that_is_named_at_the_rate_of_the_bucket() {
    for (end, expect) in [("", ["three", "two", "one"]), ("end = 'right'\n", ["one", "two", "three"])] {
        let (mut case, key) = case(&PLAIN.replace("[defaults]", &format!("{end}[defaults]")));
        case.push_at(T0, "a", &["one", "two", "three"]);
        for (at, jobs) in [(0, 1), (99, 1), (100, 2), (199, 2), (200, 3)] {
            case.settle_at(T0 + at * MS);
            assert_eq!(list(&mut case, &key).len(), jobs, "after {at} ms");
        }
        assert_eq!(list(&mut case, &key), expect);
        assert!(
            !case.keys().iter().any(|key| key.starts_with("ready") || key == "routes"),
            "no stream: {:?}",
            case.keys()
        );
        audit(&mut case, T0 + 200 * MS);
    }
    let (mut case, key) = case(PLAIN);
    let queue = case.queue("a");
    let job: &[u8] = &[0, 255, b'\r', b'\n', 0];
    redis::cmd("LPUSH").arg(queue).arg(job).arg("").exec(&mut case.redis).expect("pushed");
    case.wake_at(T0, &["a"]);
    case.settle_at(T0 + S);
    let found: Vec<Vec<u8>> = case.cmd(&["LRANGE", &key, "0", "-1"]);
    assert_eq!(found, [b"".as_slice(), job], "to the byte");
}

#[test]
fn a_list_is_registered_whenever_a_job_finds_it_empty_and_the_other_list_is_told_of_each() {
    let more = "register = { set = 'L-set', member = 'default' }\nnotify = 'L-notify'\n[defaults]";
    let (mut case, key) = case(&PLAIN.replace("[defaults]", more));
    let (set, notify) = (format!("{key}-set"), format!("{key}-notify"));
    case.push_at(T0, "a", &["1", "2", "3"]);
    case.settle_at(T0);
    assert_eq!(case.cmd::<Vec<String>>(&["SMEMBERS", &set]), ["default"]);
    let _: i64 = case.cmd(&["DEL", &set]);
    case.settle_at(T0 + 100 * MS);
    assert_eq!(case.cmd::<Vec<String>>(&["SMEMBERS", &set]), [""; 0], "the list was not empty");
    let _: i64 = case.cmd(&["DEL", &key]);
    case.settle_at(T0 + 200 * MS);
    assert_eq!(case.cmd::<Vec<String>>(&["SMEMBERS", &set]), ["default"]);
    assert_eq!(list(&mut case, &notify), ["1", "1", "1"]);
}

#[test]
fn a_list_that_holds_max_ready_holds_its_buckets_which_go_on_without_credit_as_it_is_emptied() {
    let (mut case, key) = case(&(PLAIN.to_owned() + "[limits]\nmax_ready = 3\n"));
    let _: i64 = case.cmd(&["RPUSH", &key, "a job of somebody else"]);
    case.push_at(T0, "a", &["1", "2", "3", "4", "5"]);
    case.settle_at(T0 + S);
    case.settle_at(T0 + 1100 * MS);
    let held = case.settle_at(T0 + 1200 * MS);
    assert_eq!((list(&mut case, &key).len(), held.wait_us), (3, 20_000), "it is looked at every 20 ms");
    assert_eq!(case.peek_at(T0 + 1200 * MS, "a")[1], 3);
    audit(&mut case, T0 + 1200 * MS);
    assert_eq!(case.held("out"), [("a".to_owned(), T0 + 1180 * MS)]);
    let _: Vec<String> = case.cmd(&["RPOP", &key, "3"]);
    case.settle_at(T0 + 5 * S);
    assert_eq!(list(&mut case, &key), ["3"], "one job, whatever the wait was");
    case.settle_at(T0 + 5100 * MS);
    assert_eq!(list(&mut case, &key), ["4", "3"]);
    audit(&mut case, T0 + 5100 * MS);
}

#[test]
fn one_call_puts_no_more_into_a_list_than_max_ready_leaves_room_for() {
    let (mut case, key) = case(
        "[[route]]\nname = 'out'\nto = 'L'\n[defaults]\nrate = '1000000/s'\ncatch_up = '1s'\nroute = 'out'\n\
                                [limits]\nmax_ready = 7\n",
    );
    for bucket in ["a", "b", "c"] {
        case.push_at(T0, bucket, &["x"; 20]);
    }
    case.settle_at(T0 + S);
    assert_eq!(list(&mut case, &key).len(), 7);
    assert_eq!(case.settle_at(T0 + 2 * S).dispatched, 0);
}

#[test]
fn a_key_of_the_wrong_type_holds_the_bucket_and_is_named_and_an_empty_list_is_no_key_at_all() {
    let more = "register = { set = 'L-set', member = 'x' }\nnotify = 'L-notify'\n[defaults]";
    let (mut case, key) = case(&PLAIN.replace("[defaults]", more));
    beat(&mut case, T0);
    for (name, wanted) in [(key.clone(), "list"), (format!("{key}-set"), "set"), (format!("{key}-notify"), "list")] {
        let _: String = case.cmd(&["SET", &name, "text"]);
        case.lpush("a", &["1"]);
        let reply: Vec<redis::Value> = case.fcall("drip__wake", &["queue:a"], &[T0.to_string()]);
        let notes: Vec<String> = redis::from_redis_value(reply[6].clone()).expect("texts");
        assert_eq!((notes[0].as_str(), notes[1].as_str(), notes[3].as_str()), ("wrong-type", name.as_str(), "1"));
        assert_eq!(case.waiting("a"), ["1"], "it is nowhere else");
        let told = format!(
            "nothing leaves: the key {name} holds a string, not a {wanted}; see what it is, then rename or delete it"
        );
        assert_eq!(says(&mut case, T0, "a").last(), Some(&told));
        let [route] = &case.routes(T0)[..] else { panic!("one route") };
        assert_eq!([&route.route, &route.to, &route.wrong, &route.wanted], ["out", &key, &name, wanted]);
        assert_eq!((route.undelivered, route.held), (0, 1));
        let _: i64 = case.cmd(&["DEL", &name]);
        case.settle_at(T0 + 20 * MS);
        assert_eq!(list(&mut case, &key), ["1"], "it goes on by itself");
        let _: i64 = case.cmd(&["DEL", &key, &format!("{key}-notify"), &case.key("rest"), &case.key("schedule")]);
    }
}

#[test]
fn what_is_forwarded_is_not_told_anybody_where_the_list_does_not_take_it() {
    let server = crate::rig::Server::start(&[]);
    let mut case = Case::on(&server, "[[route]]\nname = 'out'\nto = 'l'\nnotify = 'n'\n[defaults]\nroute = 'out'\n");
    let user = ["ACL", "SETUSER", "w", "on", "nopass", "+@all", "~t:*", "~n", "%R~l"];
    let _: String = case.cmd(&user);
    case.lpush("a", &["1"]);
    let _: String = case.cmd(&["AUTH", "w", "x"]);
    let reply: Vec<redis::Value> = case.fcall("drip__wake", &["queue:a"], &[T0.to_string()]);
    let notes: Vec<String> = redis::from_redis_value(reply[6].clone()).expect("texts");
    assert_eq!((notes[0].as_str(), notes[1].as_str()), ("refused", "l"), "{notes:?}");
    let _: String = case.cmd(&["AUTH", "default", ""]);
    assert_eq!((case.waiting("a"), list(&mut case, "n")), (vec!["1".to_owned()], vec![]));
}

#[test]
fn a_daemon_with_the_rights_that_are_printed_forwards_and_an_observer_sees_it() {
    let toml = "[redis]\nprefix = 't'\n[[route]]\nname = 'out'\nto = 'my *list:x'\nend = 'right'\nregister = { set = 'my (set)', member = 'x' }\n\
                notify = 'n'\n[[route]]\nname = 'left'\nto = 'l'\n[[bucket]]\nmatch = 'l'\nroute = 'left'\n[defaults]\nroute = 'out'\n";
    let server = crate::rig::Server::start(&[]);
    let mut case = Case::on(&server, toml);
    let config = dripd::config::Config::parse(toml, None, &dripd::config::Environment::default()).expect("good");
    for role in [Role::Daemon, Role::Observer] {
        let line = role.set_user(role.as_str(), &config.redis, &config.record.routes).replace(">PASSWORD", ">secret");
        redis::cmd("ACL").arg(line.split(' ').skip(1).collect::<Vec<_>>()).exec(&mut case.redis).expect("a user");
    }
    case.lpush("a", &["1"]);
    case.lpush("l", &["2"]);
    let _: String = case.cmd(&["AUTH", "daemon", "secret"]);
    assert_eq!(case.wake_at(T0, &["a", "l"]).dispatched, 2);
    let _: String = case.cmd(&["AUTH", "observer", "secret"]);
    assert_eq!(case.routes(T0).iter().map(|route| route.undelivered).collect::<Vec<_>>(), [1, 1]);
    let _: String = case.cmd(&["AUTH", "default", ""]);
    assert_eq!(list(&mut case, "my *list:x"), ["1"]);
    assert_eq!(list(&mut case, "l"), ["2"]);
    assert_eq!(case.cmd::<Vec<String>>(&["SMEMBERS", "my (set)"]), ["x"]);
    assert_eq!(crate::roles::refused(&mut case.redis, ""), [""; 0]);
}

#[test]
fn where_a_list_may_not_be_searched_that_is_said_and_only_max_ready_holds_its_buckets() {
    let server = crate::rig::Server::start(&[]);
    let toml = "[[route]]\nname = 'out'\nto = 'l'\n[defaults]\nrate = '10/s'\nroute = 'out'\n[limits]\nready_window = '250ms'\n";
    let mut case = Case::on(&server, toml);
    let _: String = case.cmd(&["ACL", "SETUSER", "old", "on", ">secret", "~*", "&*", "+@all", "-lpos"]);
    let _: String = case.cmd(&["AUTH", "old", "secret"]);
    case.lpush("a", &["1", "2", "3"]);
    assert_eq!(case.wake_at(T0, &["a"]).dispatched, 1);
    let _: i64 = case.cmd(&["LPUSH", "l", "theirs"]);
    let reply: Vec<redis::Value> = case.fcall("drip__drain", &["schedule"], &[(T0 + 500 * MS).to_string()]);
    let notes: Vec<String> = redis::from_redis_value(reply[6].clone()).expect("texts");
    assert_eq!((notes[0].as_str(), notes[1].as_str()), ("not-searched", "l"));
    assert_eq!(list(&mut case, "l"), ["2", "theirs", "1"]);
}

#[test]
fn what_is_forwarded_has_no_lease_no_second_try_and_takes_no_slot() {
    let text = "[[route]]\nname = 'out'\nto = 'L'\n[[budget]]\nmatch = 'p'\nconcurrency = 1\n[defaults]\nrate = '1000/s'\nconcurrency = 1\n\
                ordered = true\nwithin = 'p'\n[[bucket]]\nmatch = 'f'\nroute = 'out'\n[[bucket]]\nmatch = 'o'\n";
    let (mut case, key) = case(text);
    case.push_at(T0, "f", &["1", "2", "3"]);
    for n in 0..3 {
        case.settle_at(T0 + n * MS);
    }
    assert_eq!(list(&mut case, &key), ["3", "2", "1"], "no slot of its own, and none of its budget");
    assert!(!case.keys().iter().any(|key| key == "slots" || key == "inflight"), "{:?}", case.keys());
    // While others hold all slots of its budget, it waits with everything below that.
    case.push_at(T0 + S, "o", &["x"]);
    case.settle_at(T0 + S);
    let taken = case.take("ready", 1);
    case.push_at(T0 + S, "f", &["4"]);
    case.settle_at(T0 + 2 * S);
    assert_eq!(list(&mut case, &key).len(), 3);
    audit(&mut case, T0 + 2 * S);
    let _: i64 = case.fcall("drip__ack", &["ready"], &[(T0 + 3 * S).to_string(), taken[0].id.clone()]);
    case.settle_at(T0 + 3 * S);
    assert_eq!(list(&mut case, &key).len(), 4);
    audit(&mut case, T0 + 3 * S);
    let policy = &json_of(&mut case, T0 + 3 * S, "f")["chain"][0]["policy"];
    let keys: Vec<&str> = policy.as_array().expect("rows").iter().filter_map(|row| row["key"].as_str()).collect();
    assert_eq!(keys, ["rate", "capacity", "overflow", "route", "catch_up", "admit", "within", "weight"]);
}

#[test]
fn a_bucket_on_another_route_than_the_defaults_keeps_the_slots_of_the_defaults_and_its_rate() {
    let text = "[[route]]\nname = 'out'\nto = 'L'\n[defaults]\nrate = '1/10s'\nconcurrency = 1\nroute = 'out'\n[[bucket]]\nmatch = 's'\nroute = 'default'\n";
    let (mut case, _) = case(text);
    case.push_at(T0, "s", &["1", "2"]);
    case.settle_at(T0);
    let taken = case.take("ready", 1);
    case.wake_at(T0 + S, &["s"]);
    audit(&mut case, T0 + S);
    let _: i64 = case.fcall("drip__ack", &["ready"], &[(T0 + 2 * S).to_string(), taken[0].id.clone()]);
    for (at, jobs) in [(2, 0), (9, 0), (10, 1)] {
        case.settle_at(T0 + at * S);
        assert_eq!(case.jobs("ready").len(), jobs, "after {at} s");
    }
}

fn set(case: &mut Case, now: u64, name: &str, key: &str, policy: &serde_json::Value) -> Result<(), String> {
    let c = json!({ "what": "set", "match": name, "is_glob": name.contains('*'), "by": "a@b", "set": { key: { "text": "x", "policy": policy } } });
    let told: Result<(i64, Vec<String>, String), _> =
        case.try_fcall("drip__set", &["policy"], &[now.to_string(), c.to_string()]);
    told.map(|told| assert_eq!(told.0, 1)).map_err(|why| why.to_string())
}

#[test]
fn a_route_that_is_set_at_run_time_forwards_and_what_did_not_apply_applies_again_on_another_one() {
    let text = "[[route]]\nname = 'out'\nto = 'L'\n[defaults]\nrate = '1000/s'\nconcurrency = 1\n";
    let (mut case, key) = case(text);
    let out = |case: &mut Case| case.jobs("ready").len();
    set(&mut case, T0, "a", "route", &json!({ "route": "out" })).expect("set");
    case.push_at(T0, "a", &["1", "2", "3", "4", "5"]);
    case.settle_at(T0);
    case.settle_at(T0 + MS);
    assert_eq!((list(&mut case, &key).len(), out(&mut case)), (2, 0));
    let refused = set(&mut case, T0 + MS, "a", "lease", &json!({ "lease_ms": 5000 })).expect_err("refused");
    let wanted = format!(
        "lease means nothing for a: its route out forwards to the list {key}, whose own workers take its jobs; set another route, or leave \
         lease out"
    );
    assert!(refused.contains(&wanted), "{refused}");
    set(&mut case, T0 + MS, "*", "lease", &json!({ "lease_ms": 5000 })).expect("of a glob nobody can tell");
    set(&mut case, T0 + MS, "a", "route", &json!({ "route": "default" })).expect("set");
    for n in 2..10 {
        case.settle_at(T0 + n * MS);
    }
    assert_eq!((list(&mut case, &key).len(), out(&mut case)), (2, 1), "one slot, as the defaults have it");
    audit(&mut case, T0 + 10 * MS);
}

#[test]
fn a_failed_job_of_before_leaves_by_the_list_and_what_is_in_the_stream_may_be_worked_off() {
    let (mut case, key) =
        case("[defaults]\nrate = '10/s'\nbackoff = { initial = '1s' }\n[[bucket]]\nmatch = 'a'\nroute = 'out'\n");
    case.push_at(T0, "a", &["1", "2", "3"]);
    case.settle_at(T0);
    case.settle_at(T0 + 100 * MS);
    let taken = case.take("ready:out", 1);
    let _: i64 = case.fcall("drip__fail", &["ready:out"], &[(T0 + 100 * MS).to_string(), taken[0].id.clone()]);
    let forwards = format!(
        "[[route]]\nname = 'out'\nto = '{key}'\n[defaults]\nrate = '10/s'\n[[bucket]]\nmatch = 'a'\nroute = 'out'\n"
    );
    assert_eq!(case.configure_at(&(T0 + 150 * MS).to_string(), &forwards), 1);
    case.settle_at(T0 + 200 * MS);
    case.settle_at(T0 + 1200 * MS);
    assert_eq!(list(&mut case, &key), ["1", "3"], "the retry too, as its bytes");
    // The second one is in the stream still: a worker may open the route, and finishes it.
    let _: i64 = case.fcall("drip__route", &["ready:out"], &[""]);
    let taken = case.take("ready:out", 5);
    assert_eq!(taken.iter().map(|entry| entry.text("job")).collect::<Vec<_>>(), ["2"]);
    let figures: Vec<redis::Value> = case.fcall("drip__figures", &["policy"], &[(T0 + 1200 * MS).to_string()]);
    let routes: Vec<(String, u64, u64, u64, u64)> = redis::from_redis_value(figures[5].clone()).expect("routes");
    assert_eq!(routes.iter().find(|route| route.0 == "out").map(|route| (route.1, route.2, route.3)), Some((2, 1, 1)));
    let _: i64 = case.fcall("drip__ack", &["ready:out"], &[(T0 + 1200 * MS).to_string(), taken[0].id.clone()]);
    audit(&mut case, T0 + 1200 * MS);
}

#[test]
fn a_worker_of_a_route_that_forwards_is_refused_and_told_where_the_jobs_are() {
    let (mut case, key) = case(PLAIN);
    let why = case.try_fcall::<i64>("drip__route", &["ready:out"], &[""]).expect_err("refused").to_string();
    let wanted = format!(
        "route out has no ready stream: its jobs go into the list {key}, and the workers of that list take them; run those, or work another \
         route"
    );
    assert!(why.contains(&wanted), "{why}");
    assert_eq!(case.fcall::<i64>("drip__route", &["ready:other"], &[""]), 1);
}

#[test]
fn explain_says_how_full_the_list_is_and_whom_a_held_bucket_waits_for() {
    let (mut case, key) = case(&(PLAIN.to_owned() + "[limits]\nmax_ready = 2\n"));
    beat(&mut case, MORNING);
    case.push_at(MORNING, "a", &["1", "2", "3"]);
    for n in 0..3 {
        case.settle_at(MORNING + n * 100 * MS);
    }
    let route = &json_of(&mut case, MORNING + 500 * MS, "a")["route"];
    let told = json!({
        "name": "out", "ready": 2, "max_ready": 2, "limit": 2, "pending": 0, "workers": 0, "oldest_ms": null, "age_us": 500_000,
        "ready_window_us": null, "held": 1, "taken_per_second": null, "to": key,
    });
    assert_eq!(*route, told);
    let says = says(&mut case, MORNING + 5200 * MS, "a");
    let wanted = format!(
        "held: a waits since 08:00, and the workers of the list {key} take nothing: 2 jobs are in it, the oldest for 5.2 s, and it takes 2 \
         at most"
    );
    assert_eq!(says.last(), Some(&wanted));
}

#[test]
fn in_a_partition_the_keys_carry_its_tag() {
    let mut case = Case::bare();
    let record = crate::rig::record(
        "[redis]\npartitions = 2\n[[route]]\nname = 'out'\nto = 'L:{p}:x'\nregister = { set = '{p}L', member = 'q{p}' }\n\
                                     notify = 'L:n:{p}'\n[defaults]\nroute = 'out'\n",
    );
    let (key, set) = (format!("{}:x", case.prefix), format!("{}-set", case.prefix));
    let record = record.replace("L:{p}:x", &format!("{key}:{{p}}")).replace("{p}L", &format!("{{p}}{set}"));
    let record = record.replace("L:n:{p}", &format!("{key}:{{p}}:n"));
    let (policy, schedule) = (format!("{}:policy:{{1}}", case.prefix), format!("{}:schedule:{{1}}", case.prefix));
    let _: i64 =
        case.cmd(&["FCALL", "drip__policy", "1", &policy, &T0.to_string(), "0123456789abcde1", &record, "replace"]);
    // The bucket of this name lives in partition 1.
    let bucket = (0..100).map(|n| format!("b{n}")).find(|name| redis_slot(name) % 2 == 1).expect("one of them");
    let queue = format!("{}:queue:{{1}}:{bucket}", case.prefix);
    let _: i64 = case.cmd(&["LPUSH", &queue, "job"]);
    let _: redis::Value = case.cmd(&["FCALL", "drip__wake", "1", &queue, &T0.to_string()]);
    let _: redis::Value = case.cmd(&["FCALL", "drip__drain", "1", &schedule, &T0.to_string()]);
    assert_eq!(list(&mut case, &format!("{key}:{{1}}")), ["job"]);
    assert_eq!(list(&mut case, &format!("{key}:{{1}}:n")), ["1"]);
    assert_eq!(case.cmd::<Vec<String>>(&["SMEMBERS", &format!("{{1}}{set}")]), ["q{1}"]);
}

/// The key slot of a name, as Redis Cluster reckons it.
fn redis_slot(name: &str) -> u16 {
    let sum = name.bytes().fold(0_u16, |sum, byte| {
        (0..8)
            .fold(sum ^ (u16::from(byte) << 8), |sum, _| if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 })
    });
    sum % 16_384
}
