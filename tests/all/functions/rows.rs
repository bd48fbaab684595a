//! Rows: how named buckets and budgets stand now, why each waits, what has left them since somebody looks; and what the walk says
//! of budgets.

use dripd::explain::{Explanation, File, LocalTime};
use dripd::store::explain::{Facts, Slots};
use dripd::store::snapshots::{BucketSnapshot, BudgetSnapshot, Cause, Now, Why};
use dripd::store::top::Place;
use redis::Value;
use serde_json::json;

use super::explain::beat;
use crate::rig::{Case, MS, S, Server, T0};

fn look(case: &mut Case, now: u64, buckets: &[&str]) -> Vec<BucketSnapshot> {
    let args: Vec<String> = std::iter::once(now.to_string()).chain(buckets.iter().map(|b| (*b).to_owned())).collect();
    let reply: Value = case.fcall("drip__rows", &["policy"], &args);
    let found = Now::<BucketSnapshot>::read(reply).expect("rows");
    assert_eq!(found.at_us, now);
    assert_eq!(found.rows.iter().map(|one| one.row.bucket.as_str()).collect::<Vec<_>>(), buckets, "in their order");
    found.rows
}

fn one(case: &mut Case, now: u64, bucket: &str) -> BucketSnapshot {
    look(case, now, &[bucket]).remove(0)
}

fn budgets(case: &mut Case, now: u64, names: &[&str]) -> Vec<BudgetSnapshot> {
    let args: Vec<String> = std::iter::once(now.to_string()).chain(names.iter().map(|b| (*b).to_owned())).collect();
    let reply: Value = case.fcall("drip__budget_rows", &["policy"], &args);
    Now::<BudgetSnapshot>::read(reply).expect("rows").rows
}

#[test]
fn a_bucket_that_waits_in_a_budget_that_it_has_left_has_a_row_all_the_same() {
    let mut case = Case::with("[[budget]]\nmatch = 'u'\nrate = '1/10s'\n[[bucket]]\nmatch = 'a'\nwithin = 'u'\n");
    case.push_at(T0, "a", &["1", "2", "3"]);
    case.settle_at(T0);
    case.settle_at(T0 + S);
    assert_eq!(one(&mut case, T0 + S, "a").why, Why::new(Cause::Share, "u"));
    case.configure_at(&(T0 + S).to_string(), "[[budget]]\nmatch = 'u'\nrate = '1/10s'\n");
    one(&mut case, T0 + S, "a");
}

/// What `explain` says that binds it.
fn binds(case: &mut Case, now: u64, bucket: &str) -> String {
    let reply = case.fcall("drip__explain", &[&format!("queue:{bucket}")], &[now.to_string()]);
    let facts = Facts::read(reply).expect("facts");
    let file = File { name: "c".to_owned(), is_in_force: None };
    let said = serde_json::to_value(Explanation::of(&facts, file, &LocalTime::here(now))).expect("JSON");
    said["binds"].as_str().expect("a word").to_owned()
}

fn set(case: &mut Case, now: u64, name: &str, key: &str) {
    let change = json!({ "match": name, "is_glob": name.contains('*'), "by": "me", "user": "", "set": { key: { "text": "yes", "policy": {} } } });
    let told: (i64, Vec<String>, String) = case.fcall("drip__set", &["policy"], &[now.to_string(), change.to_string()]);
    assert_eq!(told.0, 1);
}

const ALL_KINDS: &str = "
[defaults]
rate = '1/10s'
[limits]
max_ready = 9
[[bucket]]
match = 'slots'
concurrency = 2
[[bucket]]
match = 'quota'
quota = '1/h'
[[bucket]]
match = 'share:*'
within = 'provider'
rate = '1/s'
[[bucket]]
match = 'lost:*'
within = 'gone:{1}'
[[budget]]
match = 'gone:[ab]'
rate = '1/s'
[[budget]]
match = 'provider'
rate = '1/m'
";

#[test]
fn a_row_says_in_a_word_why_its_bucket_waits_and_explain_says_the_same() {
    let mut case = Case::with(ALL_KINDS);
    beat(&mut case, T0);
    for bucket in ["rate", "quota", "slow", "share:a", "share:b", "paused", "by-glob", "slots", "lost:c"] {
        case.lpush(bucket, &["1", "2", "3", "4"]);
        case.wake_at(T0, &[bucket]);
    }
    let slow = json!({ "node": "slow", "ms": 60_000, "by": "me", "user": "" });
    let _: Value = case.fcall("drip__slow_node", &["policy"], &[T0.to_string(), slow.to_string()]);
    set(&mut case, T0, "paused", "pause");
    set(&mut case, T0, "by-*", "pause");
    case.settle_at(T0 + S);
    let now = T0 + 2 * S;
    beat(&mut case, now);
    let text = |text: &str| text.to_owned();
    let words = [
        ("rate", Why::new(Cause::Rate, ""), "rate"),
        ("quota", Why::new(Cause::Quota, ""), "quota"),
        ("slow", Why::new(Cause::Slow, ""), "slow"),
        ("share:a", Why::new(Cause::Share, text("provider")), "share"),
        ("share:b", Why::new(Cause::Share, text("provider")), "share"),
        ("paused", Why::new(Cause::Paused, text("paused")), "paused"),
        ("by-glob", Why::new(Cause::Paused, text("by-*")), "paused"),
        ("nothing", Why::new(Cause::Empty, ""), "empty"),
    ];
    for (bucket, why, word) in words {
        assert_eq!((one(&mut case, now, bucket).why, binds(&mut case, now, bucket)), (why, text(word)), "{bucket}");
    }
    assert!({
        let why = one(&mut case, now, "lost:c").why;
        why.cause() == Ok(Cause::Refused) && why.about.contains("gone:c")
    });
    assert_eq!(binds(&mut case, now, "lost:c"), "refused");
    // Its second job takes the second slot, and fills the route.
    case.settle_at(T0 + 11 * S);
    let now = T0 + 25 * S;
    case.settle_at(now);
    beat(&mut case, now);
    assert_eq!(
        (one(&mut case, now, "slots").why, binds(&mut case, now, "slots")),
        (Why::new(Cause::Slots, text("2 of 2")), text("slot"))
    );
    let held = one(&mut case, now, "rate");
    assert_eq!((held.why, held.row.place), (Why::new(Cause::Held, text("default")), Place::Held));
    assert_eq!(binds(&mut case, now, "rate"), "held");
    set(&mut case, now, "{provider}", "pause");
    let above = one(&mut case, now, "share:b").why;
    assert_eq!(
        (above, binds(&mut case, now, "share:b")),
        (Why::new(Cause::PausedAbove, text("provider")), text("paused"))
    );
    set(&mut case, now, "closed", "close");
    assert_eq!(one(&mut case, now, "closed").closed_by.as_deref(), Some("closed"));
    let queue = case.queue("hash");
    let _: i64 = case.cmd(&["HSET", &queue, "a", "b"]);
    assert_eq!(one(&mut case, now, "hash").why, Why::new(Cause::WrongType, text("hash")));
}

#[test]
fn a_row_has_the_figures_of_this_moment() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncapacity = 50\n");
    beat(&mut case, T0);
    let eta = case.push_at(T0, "b", &vec!["x"; 60])[4];
    let rejected = case.settle_at(T0);
    assert_eq!((rejected.dispatched, eta), (1, 4_900));
    let now = T0 + 30 * MS;
    let found = one(&mut case, now, "b");
    let row = found.row;
    assert_eq!((row.depth, row.capacity, row.count, row.period_us, row.due_in_us), (49, 50, 10, S, 70 * MS));
    assert_eq!((row.empty_in_ms, row.late_us, row.rejected, row.place), (4_870, 0, 10, Place::Due));
    let late = one(&mut case, T0 + 2 * S, "b").row;
    assert_eq!((late.due_in_us, late.late_us), (0, 1_900 * MS));
    assert_eq!(one(&mut case, now, "nothing").row.place, Place::Idle);
}

#[test]
fn it_is_counted_what_leaves_a_bucket_while_somebody_looks_whichever_way_it_leaves() {
    let mut case = Case::with(
        "[defaults]\nrate = '10/s'\ncatch_up = '1s'\n[[bucket]]\nmatch = 's:*'\nwithin = 'of'\n\
         [[bucket]]\nmatch = 'slots'\nconcurrency = 100\n[[budget]]\nmatch = 'of'\nrate = '4/s'\n",
    );
    let names = ["plain", "slots", "s:a", "s:b"];
    let left = |case: &mut Case, now| look(case, now, &names).iter().map(|one| one.left).collect::<Vec<_>>();
    for name in names {
        case.lpush(name, &["x"; 40]);
        case.wake_at(T0, &[name]);
    }
    assert_eq!(left(&mut case, T0), [0; 4], "counted from now on");
    assert_eq!(budgets(&mut case, T0, &["of"])[0].passed, 0);
    let before: Vec<u64> = look(&mut case, T0, &names).iter().map(|one| one.row.depth).collect();
    for tenth in 1..=20 {
        case.settle_at(T0 + tenth * 100 * MS);
    }
    let now = T0 + 2 * S;
    let depths: Vec<u64> = look(&mut case, now, &names).iter().map(|one| one.row.depth).collect();
    let gone: Vec<u64> = before.iter().zip(&depths).map(|(before, now)| before - now).collect();
    assert_eq!(left(&mut case, now), gone, "as many as are missing");
    assert_eq!((gone[0], gone[1], gone[2] + gone[3]), (20, 20, 6), "the budget is looked at ten times a second");
    assert_eq!(budgets(&mut case, now, &["of"])[0].passed, 6);
    // Whoever looks once a minute, as Prometheus does, finds what has left meanwhile.
    assert_eq!(left(&mut case, now + 149 * S), gone);
    // Nobody has looked for longer than that: it begins anew.
    assert_eq!(left(&mut case, now + 300 * S), [0; 4]);
}

#[test]
fn budgets_say_what_waits_for_them_and_what_is_used_and_those_that_are_named_are_there_without_being_asked_for() {
    let mut case = Case::with(
        "[[bucket]]\nmatch = 'p:*:*'\nwithin = 'p:{1}'\nrate = '10/s'\n[[budget]]\nmatch = 'p:*'\nrate = '1/m'\ncatch_up = '0s'\nwithin = 'all'\n\
         [[budget]]\nmatch = 'all'\nconcurrency = 3\nquota = '100/d'\n[[budget]]\nmatch = 'unused'\nrate = '5/s'\n",
    );
    beat(&mut case, T0);
    for bucket in ["p:a:1", "p:a:2", "p:a:3"] {
        case.push_at(T0, bucket, &["1", "2"]);
    }
    assert_eq!(case.settle_at(T0).dispatched, 1);
    assert_eq!(case.settle_at(T0 + 500 * MS).dispatched, 0);
    let now = T0 + S;
    let found = budgets(&mut case, now, &["p:a"]);
    assert_eq!(found.iter().map(|one| one.budget.as_str()).collect::<Vec<_>>(), ["p:a", "all", "unused"]);
    let (a, all, unused) = (&found[0], &found[1], &found[2]);
    assert_eq!((a.waiting, a.rate, a.due_in_us, &a.why), (3, Some((1, 60 * S)), 59 * S, &Why::new(Cause::Rate, "")));
    assert_eq!(
        (all.slots, all.quota, &all.why),
        (Some(Slots { taken: 1, of: 3 }), Some((1, 100)), &Why::new(Cause::Empty, ""))
    );
    assert_eq!((unused.waiting, unused.rate, &unused.why), (0, Some((5, S)), &Why::new(Cause::Empty, "")));
    set(&mut case, now, "{unused}", "pause");
    assert_eq!(budgets(&mut case, now, &[])[1].why, Why::new(Cause::Paused, "unused".to_owned()));
    assert!(budgets(&mut case, now, &["gone:x"])[0].why.cause() == Ok(Cause::Refused));
    // The walk tells of the budgets for which something waits, where it is asked to.
    let walk = |case: &mut Case, floors: &[&str]| {
        let mut args = vec![now.to_string(), String::new(), String::new(), "100".to_owned()];
        args.extend(floors.iter().map(|floor| (*floor).to_owned()));
        let reply: Vec<Value> = case.fcall("drip__walk", &["policy"], &args);
        let rows: Vec<Value> = redis::from_redis_value_ref(&reply[4]).expect("rows");
        let names = rows.chunks(11).map(|row| {
            let name: String = redis::from_redis_value_ref(&row[0]).expect("a name");
            (name, redis::from_redis_value_ref::<u64>(&row[3]).expect("a number"))
        });
        let mut names: Vec<(String, u64)> = names.filter(|(name, _)| name.starts_with('{')).collect();
        names.sort();
        names
    };
    let most = "100000000000000";
    assert_eq!(walk(&mut case, &[most, most, most, most, "0"]), [("{p:a}".to_owned(), 3)]);
    assert_eq!(walk(&mut case, &[most, most, most, most, "3"]), []);
    assert_eq!(walk(&mut case, &[most, most, most, most]), [], "an older daemon does not ask");
}

#[test]
fn a_call_costs_what_it_names_whatever_there_is_besides() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '1/h'\n");
    let names: Vec<String> = (0..64).map(|n| format!("b{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let calls = |case: &mut Case| {
        let _: String = case.cmd(&["CONFIG", "RESETSTAT"]);
        look(case, T0 + S, &names);
        let info: String = case.cmd(&["INFO", "commandstats"]);
        let calls =
            info.lines().filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<u64>().ok());
        calls.sum::<u64>()
    };
    for name in &names {
        case.push_at(T0, name, &["1", "2"]);
    }
    case.settle_at(T0);
    let few = calls(&mut case);
    for n in 0..2_000 {
        case.push_at(T0, &format!("more{n}"), &["1", "2"]);
    }
    case.settle_at(T0);
    assert_eq!(calls(&mut case), few, "of 64 among 2,064 as of 64");
    let too_many: Vec<String> = (0..66).map(|n| if n == 0 { T0.to_string() } else { format!("b{n}") }).collect();
    assert_eq!(case.refusal("drip__rows", &["policy"], &too_many), "BADARG");
    assert_eq!(case.refusal("drip__rows", &["policy"], &["", "{x}"]), "BADARG");
    assert_eq!(case.refusal("drip__budget_rows", &["policy"], &["", "a\nb"]), "BADARG");
}
