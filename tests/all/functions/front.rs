//! What a bucket's page shows besides how it stands: the first bytes of its waiting jobs, and its last dispatches.

use redis::{FromRedisValue, Value};

use crate::rig::{Case, MS, S, Server, T0};

const CONFIG: &str = "[defaults]\nrate = '10/s'\ncatch_up = '0s'\ncapacity = 10000\n";

fn get<T: FromRedisValue>(value: &Value) -> T {
    T::from_redis_value_ref(value).unwrap_or_else(|why| panic!("{value:?}: {why}"))
}

/// How many wait, and of the first ones their sizes and first bytes.
fn front(case: &mut Case, bucket: &str, jobs: u64, bytes: u64) -> (u64, Vec<(u64, Vec<u8>)>) {
    let args = [String::new(), jobs.to_string(), bytes.to_string()];
    let reply: Vec<Value> = case.fcall("drip__front", &[&format!("queue:{bucket}")], &args);
    let jobs = reply[1..].chunks(2).map(|job| (get(&job[0]), get(&job[1])));
    (get(&reply[0]), jobs.collect())
}

/// How many have left since they are remembered, and the last of them: due and left.
fn drips(case: &mut Case, now: u64, bucket: &str) -> Option<(u64, Vec<(u64, u64)>)> {
    let reply: Vec<Value> = case.fcall("drip__drips", &[&format!("queue:{bucket}")], &[now.to_string()]);
    let n: u64 = get(reply.get(1)?);
    let number = |value: &Value| get::<String>(value).parse().expect("a time");
    Some((n, reply[2..].chunks(2).map(|drip| (number(&drip[0]), number(&drip[1]))).collect()))
}

#[test]
fn the_next_jobs_are_shown_by_their_first_bytes_in_the_order_in_which_they_leave() {
    let mut case = Case::with(CONFIG);
    assert_eq!(front(&mut case, "acme", 5, 5), (0, vec![]));
    case.lpush("acme", &["first", "the second", ""]);
    let expected = vec![(5, b"first".to_vec()), (10, b"the s".to_vec()), (0, Vec::new())];
    assert_eq!(front(&mut case, "acme", 5, 5), (3, expected.clone()));
    assert_eq!(front(&mut case, "acme", 1, 5), (3, expected[..1].to_vec()));
    assert_eq!(case.waiting("acme"), ["first", "the second", ""], "nothing was taken");
}

#[test]
fn a_call_shows_no_more_jobs_once_it_has_read_1_mib() {
    let mut case = Case::with(CONFIG);
    let job = "x".repeat(400_000);
    case.lpush("acme", &[&job, &job, &job, &job]);
    let (depth, jobs) = front(&mut case, "acme", 100, 3);
    assert_eq!(depth, 4);
    assert_eq!(jobs, vec![(400_000, b"xxx".to_vec()); 3], "the third one passes 1 MiB");
}

#[test]
fn what_is_no_question_is_refused_and_a_key_of_another_type_is_named() {
    let mut case = Case::with(CONFIG);
    for args in [["", "0", "5"], ["", "101", "5"], ["", "1", "0"], ["", "1", "4097"], ["", "x", "1"]] {
        assert_eq!(case.refusal("drip__front", &["queue:acme"], &args), "BADARG", "{args:?}");
    }
    assert_eq!(case.refusal("drip__front", &["queue:{acme}"], &["", "1", "1"]), "BADBUCKET");
    assert_eq!(case.refusal("drip__drips", &["queue:{acme}"], &[""]), "BADBUCKET");
    let key = case.queue("acme");
    case.cmd::<()>(&["SET", &key, "x"]);
    assert_eq!(case.refusal("drip__front", &["queue:acme"], &["", "1", "1"]), "WRONGTYPE");
}

#[test]
fn dispatches_are_remembered_from_the_first_question_on_and_the_last_100_of_them() {
    // What is remembered of 256 systems of one server is forgotten all at once, and the other tests have so many.
    let server = Server::start(&[]);
    let mut case = Case::on(&server, CONFIG);
    let jobs: Vec<String> = (0..150).map(|n| n.to_string()).collect();
    let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
    case.push_at(T0, "acme", &jobs);
    case.push_at(T0, "other", &["x", "y"]);
    case.settle_at(T0);
    assert_eq!(drips(&mut case, T0, "acme"), Some((0, vec![])), "the one that left before is not known");
    case.settle_at(T0 + 100 * MS);
    case.settle_at(T0 + 200 * MS);
    let due = |n: u64| T0 + n * 100 * MS;
    let expected = vec![(due(1), due(1)), (due(2), due(2))];
    assert_eq!(drips(&mut case, T0 + S, "acme"), Some((2, expected)));
    for n in 3..149 {
        case.settle_at(due(n));
        drips(&mut case, due(n), "acme");
    }
    case.settle_at(due(149) + 3 * MS);
    let (n, all) = drips(&mut case, due(150), "acme").expect("remembered");
    assert_eq!((n, all.len()), (149, 100));
    assert_eq!((all[0], all[99]), ((due(50), due(50)), (due(149), due(149) + 3 * MS)));
    assert_eq!(drips(&mut case, due(150), "other"), Some((0, vec![])), "nobody asked for the other one");
}

#[test]
fn dispatches_of_retries_and_of_buckets_below_a_budget_are_remembered_too() {
    let server = Server::start(&[]); // as above
    let mut case = Case::on(
        &server,
        "[defaults]\nrate = '10/s'\ncatch_up = '0s'\n[[budget]]\nmatch = 'all'\nrate = '5/s'\ncatch_up = '0s'\n[[bucket]]\nmatch = 'sms'\nwithin = 'all'\n",
    );
    assert_eq!(drips(&mut case, T0, "sms"), Some((0, vec![])));
    assert_eq!(drips(&mut case, T0, "mail"), Some((0, vec![])));
    case.push_at(T0, "sms", &["a", "b"]);
    case.push_at(T0, "mail", &["c"]);
    case.settle_at(T0);
    let entry = case.take("ready", 10).into_iter().find(|entry| entry.text("job") == "c").expect("it left");
    let _: i64 = case.fcall("drip__fail", &["ready"], &[T0.to_string(), entry.id]);
    case.settle_at(T0 + 200 * MS);
    case.settle_at(T0 + 5 * S);
    assert_eq!(drips(&mut case, T0 + 5 * S, "sms"), Some((2, vec![(T0, T0), (T0 + 200 * MS, T0 + 200 * MS)])));
    let (n, mail) = drips(&mut case, T0 + 5 * S, "mail").expect("remembered");
    assert_eq!((n, mail[0], mail[1].1), (2, (T0, T0), T0 + 5 * S), "and the second time after its back-off");
}

#[test]
fn what_nobody_asks_for_any_more_is_forgotten_and_at_most_64_buckets_are_remembered() {
    let mut case = Case::with(CONFIG);
    for n in 0..64 {
        assert_eq!(drips(&mut case, T0, &format!("b{n}")), Some((0, vec![])), "b{n}");
    }
    assert_eq!(drips(&mut case, T0, "one-more"), None, "that is one too many");
    drips(&mut case, T0 + 20 * S, "b0");
    assert_eq!(drips(&mut case, T0 + 40 * S, "one-more"), Some((0, vec![])), "the others were asked for 40 s ago");
    case.push_at(T0 + 40 * S, "b0", &["x"]);
    case.settle_at(T0 + 40 * S);
    assert_eq!(drips(&mut case, T0 + 41 * S, "b0").map(|(n, _)| n), Some(1), "it was asked for 20 s before it left");
    case.push_at(T0 + 100 * S, "b0", &["y"]);
    case.settle_at(T0 + 100 * S);
    assert_eq!(drips(&mut case, T0 + 101 * S, "b0"), Some((0, vec![])), "nobody asked for a minute");
}

#[test]
fn the_budgets_that_are_named_are_told_of_also_while_something_is_set_with_their_place_in_the_tree() {
    let mut case = Case::with(
        "[[budget]]\nmatch = 'all'\nrate = '5/s'\n[[budget]]\nmatch = 'all:eu'\nwithin = 'all'\nrate = '1/s'\nweight = 3\n[[budget]]\nmatch = 'x:*'\nrate = '1/s'\n",
    );
    let rows = |case: &mut Case| -> Vec<(String, String, String)> {
        let reply: Vec<Value> = case.fcall("drip__budget_rows", &["policy"], &[T0.to_string()]);
        let rows: Vec<Value> = get(&reply[1]);
        rows.chunks(14).map(|row| (get(&row[0]), get(&row[11]), get(&row[12]))).collect()
    };
    let expected =
        [("all", "", "1"), ("all:eu", "all", "3")].map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
    assert_eq!(rows(&mut case), expected);
    let change = r#"{"what":"set","match":"sms:*","is_glob":true,"set":{"rate":{"text":"1/s","policy":{"count":1,"period_us":1000000}}},"unset":[],"unset_all":false,"by":"ada","user":""}"#;
    let told: Vec<Value> = case.fcall("drip__set", &["policy"], &[T0.to_string().as_str(), change]);
    assert_eq!(get::<i64>(&told[0]), 1);
    assert_eq!(rows(&mut case), expected);
}
