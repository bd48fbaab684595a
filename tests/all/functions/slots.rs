//! Slots: how many jobs of a bucket or below a budget are in flight, what frees a slot, who goes on then, and what becomes of slots
//! whose entries or whose lines were touched by hand.

use redis::Value;

use crate::rig::{Case, Entry, MS, S};

/// A moment to count from. Leases are reckoned with the time for which Redis says that an entry is idle, so it is now.
pub fn start(case: &mut Case) -> u64 {
    let (seconds, _): (u64, u64) = case.cmd(&["TIME"]);
    seconds * S
}

/// Nothing stands in two places or in none, and slots, lines and entries agree.
#[track_caller]
pub fn audit(case: &mut Case, now: u64) {
    let wrong: Vec<String> = case.fcall("drip__audit", &["policy"], &[now.to_string()]);
    assert_eq!(wrong, Vec::<String>::new());
}

/// Calls of the reaper until the pass over the slots is over. Replies how many entries were in flight no more.
pub fn heal(case: &mut Case, now: u64) -> i64 {
    let mut sum = 0;
    for _ in 0..10_000 {
        let (wait, freed, notes): (i64, i64, Value) = case.fcall("drip__heal", &["policy"], &[now.to_string()]);
        assert!(!format!("{notes:?}").contains("raised"), "{notes:?}");
        sum += freed;
        if wait != 0 {
            return sum;
        }
    }
    panic!("a pass that does not end");
}

/// A pass that looks at everything, some seconds later. Replies the time then.
pub fn heal_all(case: &mut Case, now: u64) -> u64 {
    let later = now + 11 * S;
    heal(case, later);
    later
}

pub fn reap(case: &mut Case, now: u64) {
    let (mut route, mut id) = (String::new(), String::new());
    for _ in 0..10_000 {
        let args = [now.to_string(), "1".to_owned(), route, id];
        let reply: (String, String, i64, i64, i64, i64, i64, Value, i64, i64) =
            case.fcall("drip__reap", &["policy"], &args);
        (route, id) = (reply.0, reply.1);
        if route.is_empty() {
            return;
        }
    }
    panic!("a pass that does not end");
}

pub fn ack(case: &mut Case, now: u64, stream: &str, entries: &[&Entry]) -> i64 {
    let now = now.to_string();
    let args: Vec<&str> = [now.as_str()].into_iter().chain(entries.iter().map(|entry| entry.id.as_str())).collect();
    case.fcall("drip__ack", &[stream], &args)
}

pub fn fail(case: &mut Case, now: u64, stream: &str, entry: &Entry, options: &[&str]) -> i64 {
    let now = now.to_string();
    let args: Vec<&str> = [now.as_str(), &entry.id].into_iter().chain(options.iter().copied()).collect();
    case.fcall("drip__fail", &[stream], &args)
}

/// Change what is set for a name: `set` and `unset` as JSON.
pub fn change(case: &mut Case, now: u64, name: &str, set: &str, unset: &str) {
    let json = format!(
        r#"{{"what":"set","match":"{name}","is_glob":{},"set":{set},"unset":{unset},"unset_all":false,"by":"me","user":"u"}}"#,
        name.contains('*')
    );
    let reply: Value = case.fcall("drip__set", &["policy"], &[now.to_string(), json]);
    assert!(matches!(&reply, Value::Array(items) if items[0] != Value::Int(-1)), "{reply:?}");
}

pub fn set_slots(case: &mut Case, now: u64, name: &str, slots: u32) {
    change(
        case,
        now,
        name,
        &format!(r#"{{"concurrency":{{"text":"{slots}","policy":{{"concurrency":{slots}}}}}}}"#),
        "[]",
    );
}

/// How often the daemons were told that something may happen earlier than they know.
pub fn wakes(case: &mut Case) -> i64 {
    let key = case.key("wake");
    case.cmd::<Option<i64>>(&["GET", &key]).unwrap_or(0)
}

const TWO: &str = "[[budget]]\nmatch = 'p'\nconcurrency = 3\n[[bucket]]\nmatch = '*'\nrate = '1000/s'\nconcurrency = 2\nwithin = 'p'\n\
                   lease = '10s'\n[defaults]\nbackoff = { initial = '2s', max = '2s' }\n";

/// Two buckets of which the first has its two slots taken, and the second the last one of the budget.
pub fn busy() -> (Case, u64, Vec<Entry>) {
    let mut case = Case::with(TWO);
    let now = start(&mut case);
    case.settle_at(now);
    case.push_at(now, "a", &["a1", "a2", "a3", "a4"]);
    case.settle_at(now);
    case.settle_at(now + 10 * MS);
    assert_eq!(case.jobs("ready"), ["a1", "a2"]);
    case.push_at(now + 10 * MS, "b", &["b1", "b2", "b3"]);
    let now = now + 20 * MS;
    case.settle_at(now);
    assert_eq!(case.jobs("ready"), ["a1", "a2", "b1"]);
    audit(&mut case, now);
    let taken = case.take("ready", 10);
    (case, now, taken)
}

/// Somebody has freed the slot of `a1`: the next job leaves at once, and not one more.
#[track_caller]
fn one_goes_on(case: &mut Case, now: u64, said: i64) {
    assert_eq!(wakes(case), said + 1, "the daemons were told, once");
    audit(case, now);
    assert_eq!(case.settle_at(now).dispatched, 1);
    case.settle_at(now + 10 * MS);
    let last = case.stream("ready").pop().expect("one");
    assert!(["a3", "b2"].contains(&last.text("job").as_str()), "{last:?}");
    assert!(last.number("due_us") >= now, "the wait for a slot is no lateness: {} after {now}", last.number("due_us"));
    audit(case, now + 10 * MS);
}

#[test]
fn ack_and_each_way_to_fail_free_a_slot_and_what_waits_for_it_goes_on_at_once() {
    for how in [&[][..], &["KEEP", "RETRY_IN", "5000"], &["DEAD"], &["RETRY_IN", "60000"]] {
        let (mut case, now, taken) = busy();
        let said = wakes(&mut case);
        fail(&mut case, now, "ready", &taken[0], how);
        one_goes_on(&mut case, now, said);
    }
    let (mut case, now, taken) = busy();
    let said = wakes(&mut case);
    assert_eq!(ack(&mut case, now, "ready", &[&taken[0]]), 1);
    one_goes_on(&mut case, now, said);
    assert_eq!(ack(&mut case, now, "ready", &[&taken[0]]), 0);
    assert_eq!(case.settle_at(now + 20 * MS).dispatched, 0, "the same one frees nothing twice");
}

/// A command on the ready stream, by hand.
pub fn by_hand(case: &mut Case, words: &[&str], entry: &Entry) {
    let ready = case.key("ready");
    let words: Vec<&str> = words.iter().map(|word| word.strip_prefix('@').map_or(*word, |_| ready.as_str())).collect();
    let words: Vec<&str> = words.into_iter().map(|word| if word == "#" { entry.id.as_str() } else { word }).collect();
    let _: Value = case.cmd(&words);
}

#[test]
fn a_lease_that_ends_frees_its_slot() {
    let (mut case, now, taken) = busy();
    // `now` may lie seconds behind on a busy machine, and idle times are of the server's clock.
    by_hand(&mut case, &["XCLAIM", "@", "workers", "w", "0", "#", "IDLE", "600000", "JUSTID"], &taken[0]);
    let said = wakes(&mut case);
    reap(&mut case, now);
    one_goes_on(&mut case, now, said);
}

#[test]
fn a_plain_xack_frees_its_slot_within_a_second() {
    let (mut case, now, taken) = busy();
    let now = heal_all(&mut case, now);
    by_hand(&mut case, &["XACK", "@", "workers", "#"], &taken[0]);
    let said = wakes(&mut case);
    assert_eq!(heal(&mut case, now + 749 * MS), 0, "this pass comes later");
    assert_eq!(case.settle_at(now + 749 * MS).dispatched, 0);
    assert_eq!(heal(&mut case, now + 751 * MS), 1, "three jobs in flight make it a little later than 750 ms");
    one_goes_on(&mut case, now + 751 * MS, said);
}

#[test]
fn an_entry_that_somebody_deleted_frees_its_slot() {
    for words in [&["XDEL", "@", "#"][..], &["XTRIM", "@", "MAXLEN", "2"]] {
        let (mut case, now, taken) = busy();
        let now = heal_all(&mut case, now);
        by_hand(&mut case, words, &taken[0]);
        let said = wakes(&mut case);
        let now = heal_all(&mut case, now);
        one_goes_on(&mut case, now, said);
    }
    // Whoever finds it gone frees it at once.
    let (mut case, now, taken) = busy();
    by_hand(&mut case, &["XDEL", "@", "#"], &taken[0]);
    let said = wakes(&mut case);
    assert_eq!(fail(&mut case, now, "ready", &taken[0], &[]), 0);
    one_goes_on(&mut case, now, said);
    // Undelivered ones too.
    let mut case = Case::with(TWO);
    let now = start(&mut case);
    case.push_at(now, "a", &["a1", "a2", "a3", "a4"]);
    case.settle_at(now);
    case.settle_at(now + 10 * MS);
    let entries = case.stream("ready");
    by_hand(&mut case, &["XDEL", "@", "#"], &entries[0]);
    let now = heal_all(&mut case, now);
    assert_eq!(case.settle_at(now).dispatched, 1);
    assert_eq!(case.jobs("ready"), ["a2", "a3"]);
    audit(&mut case, now);
}

#[test]
fn entries_keep_their_slots_when_the_group_is_made_anew_and_lose_them_with_their_stream() {
    let (mut case, now, taken) = busy();
    let now = heal_all(&mut case, now);
    by_hand(&mut case, &["XGROUP", "DESTROY", "@", "workers"], &taken[0]);
    let now = heal_all(&mut case, now);
    assert_eq!(case.settle_at(now).dispatched, 0, "all three are delivered once more");
    audit(&mut case, now);
    let again = case.take("ready", 10);
    assert_eq!(again.len(), 3);
    assert_eq!(ack(&mut case, now, "ready", &[&again[0], &again[2]]), 2);
    assert_eq!(case.settle_at(now).dispatched, 2);
    by_hand(&mut case, &["DEL", "@"], &taken[0]);
    let now = heal_all(&mut case, now);
    audit(&mut case, now);
    assert_eq!(case.settle_at(now).dispatched + case.settle_at(now + 10 * MS).dispatched, 2, "what is left goes on");
    audit(&mut case, now + 10 * MS);
}

#[test]
fn entries_of_two_routes_under_one_budget_may_have_the_same_id() {
    let mut case = Case::with(
        "[[budget]]\nmatch = 'p'\nconcurrency = 2\n[[bucket]]\nmatch = 'a'\nroute = 'one'\nwithin = 'p'\n[[bucket]]\nmatch = 'b'\n\
         route = 'two'\nwithin = 'p'\n",
    );
    let mut now = start(&mut case);
    // Most calls last no millisecond, so most pairs have the same id.
    let (one, two) = (0..1_000)
        .find_map(|_| {
            for bucket in ["a", "b"] {
                case.push_at(now, bucket, &["1", "2"]);
            }
            assert_eq!(case.settle_at(now).dispatched, 2);
            let (one, two) = (case.take("ready:one", 5), case.take("ready:two", 5));
            if one[0].id == two[0].id {
                return Some((one, two));
            }
            for (stream, entries) in [("ready:one", one), ("ready:two", two)] {
                ack(&mut case, now, stream, &[&entries[0]]);
            }
            for bucket in ["a", "b"] {
                let queue = case.queue(bucket);
                let _: i64 = case.cmd(&["DEL", &queue]);
            }
            now += S;
            case.settle_at(now);
            None
        })
        .expect("two entries with the same id");
    assert_eq!(ack(&mut case, now, "ready:two", &[&two[0]]), 1);
    let now = heal_all(&mut case, now);
    assert_eq!(case.settle_at(now).dispatched, 1, "that of the other route still holds its slot");
    audit(&mut case, now);
    assert_eq!(ack(&mut case, now, "ready:one", &[&one[0]]), 1);
    assert_eq!(case.settle_at(now).dispatched, 1);
    audit(&mut case, now);
}
