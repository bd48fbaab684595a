//! Trees whose shape changes under load: random sequences in which operators and reloads put buckets and budgets within others, close circles
//! by it, make chains too long, take everything back, or let it end by itself. Whatever happens, everything stands in the one place where it must
//! (the audit), no bucket is too fast, and when the tree is whole again every job leaves, once.

use fastrand::Rng;
use redis::Value;

use super::flow::{excess, left, run};
use crate::rig::{Case, MS, S, T0};

const BUDGETS: usize = 6;
const BUCKETS: usize = 6;

/// A configuration in which each budget is within an earlier one or in none, at most three levels of them, and each bucket within one.
fn random_tree(rng: &mut Rng) -> String {
    let (mut toml, mut levels) = ("[limits]\nbatch = 4\n".to_owned(), Vec::<usize>::new());
    for n in 0..BUDGETS {
        let above: Vec<usize> = (0..n).filter(|up| levels[*up] < 3).collect();
        let up = if above.is_empty() || rng.u8(0..4) == 0 { None } else { Some(above[rng.usize(0..above.len())]) };
        levels.push(up.map_or(1, |up| levels[up] + 1));
        toml += &format!("[[budget]]\nmatch = 'b{n}'\nrate = '50/s'\n");
        toml += &up.map_or(String::new(), |up| format!("within = 'b{up}'\n"));
    }
    for n in 0..BUCKETS {
        toml += &format!("[[bucket]]\nmatch = 'x{n}'\nrate = '20/s'\nwithin = 'b{}'\n", rng.usize(0..BUDGETS));
    }
    toml
}

/// The buckets alone.
const WITHOUT_BUDGETS: &str = "[limits]\nbatch = 4\n[[bucket]]\nmatch = 'x*'\nrate = '20/s'\n";

/// A name or a glob of either kind, as `drip__set` takes it.
fn anybody(rng: &mut Rng) -> (String, bool) {
    match rng.u8(0..20) {
        0 => ("x*".to_owned(), true),
        1 => ("{b[0-2]}".to_owned(), true),
        2..12 => (format!("{{b{}}}", rng.usize(0..BUDGETS)), false),
        _ => (format!("x{}", rng.usize(0..BUCKETS)), false),
    }
}

/// A change that may be refused, or come while another one still spreads.
fn change(case: &mut Case, now: u64, (name, is_glob): &(String, bool), what: &str) -> String {
    let change = format!(r#"{{"what":"set","match":"{name}","is_glob":{is_glob},{what},"by":"me","user":"u"}}"#);
    let reply = case.try_fcall::<Vec<Value>>("drip__set", &["policy"], &[now.to_string(), change.clone()]);
    if let Err(why) = &reply {
        assert_eq!(why.code(), Some("BADARG"), "{change}: {why}");
    }
    format!("{now}: {change} {}", reply.map_or_else(|why| why.to_string(), |reply| format!("{:?}", reply[0])))
}

/// One step. Replies what was done, and how many jobs came.
fn step(case: &mut Case, rng: &mut Rng, now: u64) -> (String, usize) {
    match rng.u8(0..10) {
        0..4 => {
            let (bucket, jobs) = (format!("x{}", rng.usize(0..BUCKETS)), vec!["x"; rng.usize(1..5)]);
            case.lpush(&bucket, &jobs);
            case.wake_at(now, &[&bucket]);
            (format!("{now}: {} jobs into {bucket}", jobs.len()), jobs.len())
        }
        4..7 => {
            let who = anybody(rng);
            let parent = if rng.u8(0..4) == 0 { String::new() } else { format!("b{}", rng.usize(0..BUDGETS)) };
            let until = if rng.bool() { format!(r#","for_us":{}"#, rng.u64(50 * MS..2 * S)) } else { String::new() };
            let what = format!(r#""set":{{"within":{{"text":"{parent}","policy":{{"within":"{parent}"}}}}}}{until}"#);
            (change(case, now, &who, &what), 0)
        }
        7 => (change(case, now, &anybody(rng), r#""unset":["within"]"#), 0),
        8 => {
            let what =
                if rng.bool() { r#""set":{"pause":{"text":"yes","policy":{}}}"# } else { r#""unset":["pause"]"# };
            (change(case, now, &anybody(rng), what), 0)
        }
        _ => {
            let toml = if rng.u8(0..3) == 0 { WITHOUT_BUDGETS.to_owned() } else { random_tree(rng) };
            case.configure_at(&now.to_string(), &toml);
            (format!("{now}: a reload: {toml}"), 0)
        }
    }
}

fn audit(case: &mut Case, now: u64, story: &[String]) {
    let wrong: Vec<String> = case.fcall("drip__audit", &["policy"], &[now.to_string()]);
    assert_eq!(wrong, Vec::<String>::new(), "at {now}\n{}", story.join("\n"));
}

#[test]
fn whatever_becomes_of_a_tree_nobody_is_stuck_and_nothing_leaves_too_early() {
    let mut refused = 0;
    for seed in 0..130 {
        let mut rng = Rng::with_seed(seed);
        let (mut now, mut pushed, toml) = (T0, 0, random_tree(&mut rng));
        let mut case = Case::with(&toml);
        let mut story = vec![format!("seed {seed}"), toml];
        case.settle_at(now);
        for _ in 0..40 {
            now += [0, 1, 30 * MS, 400 * MS][rng.usize(0..4)];
            case.settle_at(now);
            let (told, jobs) = step(&mut case, &mut rng, now);
            story.push(told);
            pushed += jobs;
            case.settle_at(now);
            audit(&mut case, now, &story);
            refused += case.cmd::<usize>(&["ZCARD", &case.key("refused")]);
        }
        // All is taken back, once what is timed has ended and what spreads is over.
        now += 3 * S;
        case.settle_at(now);
        let names =
            (0..BUDGETS).map(|n| (format!("{{b{n}}}"), false)).chain((0..BUCKETS).map(|n| (format!("x{n}"), false)));
        for who in names.chain([("x*".to_owned(), true), ("{b[0-2]}".to_owned(), true)]) {
            for what in [r#""unset_all":true"#, r#""unset":["pause"]"#] {
                story.push(change(&mut case, now, &who, what));
                case.settle_at(now);
            }
        }
        case.configure_at(&now.to_string(), &random_tree(&mut rng));
        run(&mut case, now, now + 60 * S);
        audit(&mut case, now + 60 * S, &story);
        assert_eq!(left(&mut case, "x").len(), pushed, "each job has left, once\n{}", story.join("\n"));
        for n in 0..BUCKETS {
            let at = left(&mut case, &format!("x{n}"));
            assert!(excess(&at, 20, S) <= 50 * MS + 1, "x{n} at {at:?}\n{}", story.join("\n"));
        }
    }
    assert!(refused > 900, "many could not find their budgets for a while: {refused}");
}
