//! Jobs with a cost: they take as many slots of every rate above them and pay after; `job_rate` counts them as one.

use crate::rig::{Case, MS, S, T0};

/// When each job of a stream left, in ms after T0.
fn left(case: &mut Case) -> Vec<(String, u64)> {
    case.stream("ready").iter().map(|entry| (entry.text("job"), (entry.number("at_us") - T0) / MS)).collect()
}

fn told(list: &[(&str, u64)]) -> Vec<(String, u64)> {
    list.iter().map(|(job, at)| ((*job).to_owned(), *at)).collect()
}

/// Drain at each moment that the replies name, until nothing waits or a time is over.
fn run(case: &mut Case, until: u64) {
    let mut now = T0;
    while now <= until {
        let reply = case.settle_at(now);
        if reply.wait_us < 0 {
            return;
        }
        now += u64::try_from(reply.wait_us).expect("a time").max(1);
    }
}

fn audit(case: &mut Case, now: u64) {
    let wrong: Vec<String> = case.fcall("drip__audit", &["policy"], &[now.to_string()]);
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn a_job_leaves_when_its_bucket_may_go_and_pays_its_cost_after() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncatch_up = '0s'\n");
    case.settle_at(T0);
    case.submit_at(T0, "b", "dear", &["COST", "5"]);
    case.submit_at(T0, "b", "cheap", &[]);
    case.push_at(T0, "b", &["plain", "last"]);
    run(&mut case, T0 + 5 * S);
    assert_eq!(left(&mut case), told(&[("dear", 0), ("cheap", 500), ("plain", 600), ("last", 700)]));
    let seen = case.stream("ready");
    assert_eq!(seen[0].text("cost"), "5");
    assert!(!seen[1].fields.contains_key("cost"));
    audit(&mut case, T0 + 5 * S);
    case.settle_at(T0 + 10 * S);
    let kept = case.keys();
    assert!(!kept.iter().any(|key| key == "paid" || key == "over"), "{kept:?}");
}

#[test]
fn no_cost_pays_more_than_366_days_and_a_clock_that_steps_back_brings_back_what_it_pays() {
    let mut case =
        Case::with("[defaults]\ncost_max = 100000\nrate = '1/d'\n[[bucket]]\nmatch = 'fast'\nrate = '10/s'\n");
    case.settle_at(T0);
    case.submit_at(T0, "b", "x", &["COST", "100000"]);
    case.settle_at(T0);
    assert_eq!(case.due("b"), Some(T0 + 366 * 86_400 * S));
    case.submit_at(T0, "fast", "x", &["COST", "100"]);
    case.settle_at(T0);
    case.push_at(T0, "fast", &["y"]);
    assert_eq!(case.due("fast"), Some(T0 + 10 * S));
    for _ in 0..10 {
        case.settle_at(T0 - 3_600 * S);
    }
    assert_eq!(case.due("fast"), Some(T0 - 3_590 * S), "what its last job paid, from now");
}

#[test]
fn each_dispatch_pays_retries_too_and_a_lower_rate_reckons_with_what_was_paid() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\nbackoff = { initial = '1s', max = '1s' }\n");
    case.settle_at(T0);
    case.submit_at(T0, "b", "x", &["COST", "20"]);
    case.settle_at(T0);
    let entry = case.take("ready", 1).remove(0);
    let _: i64 = case.fcall("drip__fail", &["ready"], &[T0.to_string().as_str(), &entry.id]);
    case.push_at(T0, "b", &["y"]);
    assert_eq!(case.settle_at(T0 + 2 * S - 1).dispatched, 0);
    assert_eq!(case.settle_at(T0 + 2 * S).dispatched, 1);
    assert_eq!(case.stream("ready")[0].text("cost"), "20");
    assert_eq!(case.settle_at(T0 + 4 * S - 1).dispatched, 0);
    case.configure_at(&(T0 + 3 * S).to_string(), "[defaults]\nrate = '20/s'\n");
    case.settle_at(T0 + 3 * S);
    assert_eq!(case.settle_at(T0 + 3 * S).dispatched, 0, "and nothing twice");
    assert_eq!(case.jobs("ready"), ["x", "y"], "20 slots of a twentieth of a second later");
}

#[test]
fn of_rate_and_job_rate_the_later_one_counts() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\njob_rate = '4/s'\ncatch_up = '0s'\n");
    case.settle_at(T0);
    for (job, cost) in [("1", "1"), ("2", "2"), ("3", "10"), ("4", "1"), ("5", "1")] {
        case.submit_at(T0, "b", job, &["COST", cost]);
    }
    assert_eq!(case.submit_at(T0, "b", "6", &[]).five, [1, 6, 1_000, -1, 1_250], "jobs ahead may cost 1");
    run(&mut case, T0 + 9 * S);
    let expected = [("1", 0), ("2", 250), ("3", 500), ("4", 1_500), ("5", 1_750), ("6", 2_000)];
    assert_eq!(left(&mut case), told(&expected));
    audit(&mut case, T0 + 3 * S);
}

#[test]
fn promise_1_holds_for_units_in_a_bucket_and_in_every_budget_above() {
    let toml = "[[budget]]\nmatch = 'top'\nrate = '50/s'\njob_rate = '20/s'\n[[budget]]\nmatch = 'mid'\nrate = '40/s'\nwithin = 'top'\n\
                [defaults]\nrate = '30/s'\ncapacity = 1000\nwithin = 'mid'\n[[bucket]]\nmatch = 'c'\nweight = 3\n";
    let mut case = Case::with(toml);
    case.settle_at(T0);
    let mut state = 7_u64;
    for bucket in ["a", "b", "c"] {
        for n in 0..150 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let cost = [1, 1, 2, 5, 12][(state >> 33) as usize % 5].to_string();
            case.submit_at(T0, bucket, &n.to_string(), &["COST", &cost]);
        }
    }
    run(&mut case, T0 + 90 * S);
    audit(&mut case, T0 + 90 * S);
    let seen: Vec<(String, u64, u64)> = case
        .stream("ready")
        .iter()
        .map(|e| {
            (e.text("bucket"), e.number("at_us"), if e.fields.contains_key("cost") { e.number("cost") } else { 1 })
        })
        .collect();
    assert_eq!(seen.len(), 450, "all have left");
    let windows = |of: Vec<(u64, u64)>, interval: u64, catch_up: u64, largest: u64| {
        for from in 0..of.len() {
            let mut units = 0;
            for (at, cost) in &of[from..] {
                units += cost;
                let most = largest + (at - of[from].0 + catch_up) / interval;
                assert!(units <= most + 1, "{units} units in {} us", at - of[from].0);
            }
        }
    };
    let units: Vec<(u64, u64)> = seen.iter().map(|(_, at, cost)| (*at, *cost)).collect();
    windows(units.clone(), 25_000, 2 * 12 * 20_000 + 12 * 25_000, 12);
    windows(units.iter().map(|(at, _)| (*at, 1)).collect(), 50_000, 20_000, 1);
    let (units, last) = (units.iter().map(|(_, cost)| cost).sum::<u64>(), seen[449].1 - T0);
    assert!(units * 25_000 * 85 / 100 < last, "{units} units in {last} us: not faster than the rate");
    assert!(
        last < units * 25_000 * 105 / 100 || last < 450 * 50_000 * 105 / 100,
        "{units} units in {last} us: nothing is wasted"
    );
}

#[test]
fn shares_are_of_units_not_of_jobs() {
    let toml =
        "[[budget]]\nmatch = 'up'\nrate = '100/s'\n[defaults]\nrate = '1000/s'\ncapacity = 2000\nwithin = 'up'\n";
    let mut case = Case::with(toml);
    case.settle_at(T0);
    for n in 0..1_000 {
        case.submit_at(T0, "cheap", &n.to_string(), &[]);
        if n < 200 {
            case.submit_at(T0, "dear", &n.to_string(), &["COST", "10"]);
        }
    }
    run(&mut case, T0 + 10 * S);
    let seen = case.stream("ready");
    let count = |bucket: &str| seen.iter().filter(|entry| entry.text("bucket") == bucket).count() as i64;
    let (cheap, dear) = (count("cheap"), 10 * count("dear"));
    assert!((cheap - dear).abs() <= 20, "{cheap} units beside {dear}");
    assert!((970..=1_030).contains(&(cheap + dear)), "{cheap} + {dear}");
}

#[test]
fn a_quota_counts_units_and_a_job_for_which_too_little_is_left_waits_for_the_next_window() {
    let mut case = Case::with(
        "[defaults]\nrate = '1000/s'\nquota = '10/h'\n[[bucket]]\nmatch = 'below'\nquota = []\nwithin = 'up'\n\
                               [[budget]]\nmatch = 'up'\nquota = '10/h'\n",
    );
    let t0 = T0 - T0 % (3_600 * S) + 3_600 * S;
    case.settle_at(t0);
    for bucket in ["b", "below"] {
        for (job, cost) in [("1", "6"), ("2", "6"), ("3", "1"), ("4", "11"), ("5", "1")] {
            case.submit_at(t0, bucket, job, &["COST", cost]);
        }
    }
    let jobs = |case: &mut Case, bucket: &str| -> Vec<String> {
        case.stream("ready").iter().filter(|e| e.text("bucket") == bucket).map(|e| e.text("job")).collect()
    };
    let mut now = t0;
    for (hour, expected) in [(0, "1"), (1, "123"), (2, "1234"), (3, "12345")] {
        while now < t0 + (hour + 1) * 3_600 * S {
            let reply = case.settle_at(now);
            now += u64::try_from(reply.wait_us).unwrap_or(3_600 * S).clamp(1, 600 * S);
        }
        for bucket in ["b", "below"] {
            assert_eq!(jobs(&mut case, bucket).concat(), expected, "{bucket} in hour {hour}");
        }
        audit(&mut case, now - 1);
    }
}

fn adjust(case: &mut Case, now: u64, entry: &str, units: &str) -> i64 {
    case.fcall("drip__adjust", &["ready"], &[now.to_string().as_str(), entry, units])
}

#[test]
fn a_correction_counts_once_while_the_entry_is_pending_and_moves_no_due() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncatch_up = '0s'\n");
    case.settle_at(T0);
    case.submit_at(T0, "b", "x", &["COST", "10"]);
    case.push_at(T0, "b", &["y"]);
    case.settle_at(T0);
    let entry = case.take("ready", 1).remove(0);
    assert_eq!(adjust(&mut case, T0 + 100 * MS, &entry.id, "+20"), 1);
    assert_eq!(adjust(&mut case, T0 + 100 * MS, &entry.id, "+20"), 0, "once");
    assert_eq!(case.due("b"), Some(T0 + S));
    let acked: i64 = case.fcall("drip__ack", &["ready"], &[(T0 + S).to_string().as_str(), &entry.id]);
    assert_eq!((acked, adjust(&mut case, T0 + S, &entry.id, "-1")), (1, 0), "afterwards nothing");
    assert_eq!(case.settle_at(T0 + S).dispatched, 1);
    assert!(case.keys().iter().all(|key| key != "adjusted"));
    for bad in ["", "x", "1.5", "++1", "-", "10000000000"] {
        let args = [T0.to_string(), entry.id.clone(), bad.to_owned()];
        assert_eq!(case.refusal("drip__adjust", &["ready"], &args), "BADARG", "{bad}");
    }
}

#[test]
fn an_ack_with_the_cost_puts_quotas_right_at_once() {
    let toml = "[[budget]]\nmatch = 'tokens'\nrate = '1000/s'\nquota = '100000/d'\ncatch_up = '0s'\n[defaults]\nrate = '1000/s'\ncatch_up = '0s'\nwithin = 'tokens'\n";
    let mut case = Case::with(toml);
    case.settle_at(T0);
    case.submit_at(T0, "a", "x", &["COST", "2000"]);
    case.settle_at(T0);
    case.submit_at(T0, "b", "y", &["COST", "10"]);
    let entry = case.take("ready", 1).remove(0);
    assert_eq!(case.settle_at(T0 + 500 * MS).dispatched, 0, "the budget owes two seconds");
    let args = [(T0 + 500 * MS).to_string(), entry.id.clone(), "cost".to_owned(), "700".to_owned()];
    assert_eq!(case.fcall::<i64>("drip__ack", &["ready"], &args), 1);
    audit(&mut case, T0 + 500 * MS);
    assert_eq!(case.settle_at(T0 + 2 * S - 1).dispatched, 0, "no due moves");
    assert_eq!(case.settle_at(T0 + 2 * S).dispatched, 1);
    let windows: String = case.cmd(&["HGET", &case.key("windows"), "{tokens}"]);
    assert!(windows.ends_with(":710"), "{windows}");
    assert_eq!(case.refusal("drip__ack", &["ready"], &[T0.to_string().as_str(), &entry.id, "COST", "-5"]), "BADARG");
}

#[test]
fn no_more_is_given_back_than_a_job_was_charged() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\nquota = '3/d'\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["1", "2"]);
    case.settle_at(T0);
    case.settle_at(T0 + MS);
    let entry = case.take("ready", 1).remove(0).id;
    let args = [(T0 + MS).to_string(), entry, "-3".to_owned()];
    assert_eq!(case.fcall::<i64>("drip__adjust", &["ready"], &args), 1);
    case.push_at(T0 + MS, "b", &["3", "4", "5", "6"]);
    let left: i64 = (2..20).map(|n| case.drain_at(T0 + n * MS).dispatched).sum();
    assert_eq!(left, 2, "one of the two jobs still counts");
}

#[test]
fn a_job_costs_no_more_than_its_bucket_lets_out_in_a_minute_or_its_policy_says() {
    let mut case = Case::with(
        "[defaults]\nrate = '10/s'\n[[bucket]]\nmatch = 'slow'\nrate = '2/h'\n[[bucket]]\nmatch = 'fast'\nrate = '50000/s'\n\
         [[bucket]]\nmatch = 'set'\ncost_max = 7\n[[bucket]]\nmatch = 'llm:*'\nwithin = 'llm'\nrate = '90000/m'\n\
         [[budget]]\nmatch = 'llm'\nrate = '20/s'\n",
    );
    case.settle_at(T0);
    for (bucket, most) in [("b", 600), ("slow", 1), ("fast", 100_000), ("set", 7), ("llm:a", 90_000)] {
        let now = T0.to_string();
        let most_text = most.to_string();
        assert_eq!(case.submit_at(T0, bucket, "x", &["COST", &most_text]).verdict, "queued", "{bucket}");
        let over = (most + 1).to_string();
        let keys = [format!("queue:{bucket}")];
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        assert_eq!(case.refusal("drip__submit", &keys, &[now.as_str(), "x", "COST", &over]), "BADARG", "{bucket}");
    }
    let rate =
        r#"{"match":"slow","what":"set","set":{"rate":{"text":"9/s","policy":{"count":9,"period_us":1000000}}}}"#;
    let _: (i64, Vec<String>, String) = case.fcall("drip__set", &["policy"], &[T0.to_string().as_str(), rate]);
    let args = [T0.to_string(), "x".into(), "COST".into(), "2".into()];
    assert_eq!(case.refusal("drip__submit", &["queue:slow"], &args), "BADARG", "a rate that is set allows no more");
    let set = r#"{"match":"slow","what":"set","set":{"cost_max":{"text":"50","policy":{"cost_max":50}}}}"#;
    let _: (i64, Vec<String>, String) = case.fcall("drip__set", &["policy"], &[T0.to_string().as_str(), set]);
    assert_eq!(case.submit_at(T0, "slow", "x", &["COST", "50"]).verdict, "queued");
}
