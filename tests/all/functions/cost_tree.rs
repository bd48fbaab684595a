//! Costs in a tree of budgets: what every node lets out in units and in jobs, what children lose of their rates, and what becomes of
//! an adjustment.

use super::flow::{set_at, unset_at};
use crate::rig::{Case, Entry, MS, S, Server, T0, load_library};

/// A job that left: its bucket, when, and its cost.
#[derive(Clone)]
struct Left {
    bucket: String,
    at: u64,
    cost: u64,
}

fn cost_of(entry: &Entry) -> u64 {
    if entry.fields.contains_key("cost") { entry.number("cost") } else { 1 }
}

fn left(case: &mut Case) -> Vec<Left> {
    let of = |entry: &Entry| Left { bucket: entry.text("bucket"), at: entry.number("at_us"), cost: cost_of(entry) };
    case.stream("ready").iter().map(of).collect()
}

/// Random numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Drain at each moment that the replies name, later by what `late` says, until nothing waits or a time is over.
fn run(case: &mut Case, until: u64, mut late: impl FnMut() -> u64) {
    let mut now = T0;
    while now <= until {
        let reply = case.settle_at(now);
        if reply.wait_us < 0 {
            break;
        }
        now += u64::try_from(reply.wait_us).expect("a time").max(1) + late();
    }
    let wrong: Vec<String> = case.fcall("drip__audit", &["policy"], &[now.to_string()]);
    assert_eq!(wrong, Vec::<String>::new());
}

fn submit_all(case: &mut Case, jobs: &[(&str, u64)]) {
    for jobs in jobs.chunks(1_000) {
        let mut pipe = redis::pipe();
        for (bucket, cost) in jobs {
            let call = pipe.cmd("FCALL").arg("drip__submit").arg(1).arg(case.queue(bucket)).arg(T0.to_string());
            call.arg("x").arg("COST").arg(cost.to_string()).ignore();
        }
        pipe.exec(&mut case.redis).expect("submitted");
    }
}

/// Promise 1 for one node: in every window as many units as the largest job, and what the rate allows in it. `count` jobs or units in
/// `period_us`; a microsecond is what may be rounded. Replies how much more could have left in the fullest window of more than an instant.
#[track_caller]
fn bound(what: &str, jobs: &[Left], count: u64, period_us: u64, catch_up_us: u64) -> u64 {
    let largest = jobs.iter().map(|job| job.cost).max().expect("some left");
    let mut closest = u64::MAX;
    for (first, from) in jobs.iter().enumerate() {
        let mut units = 0;
        for job in &jobs[first..] {
            units += job.cost;
            let most = largest + (job.at - from.at + catch_up_us + 1) * count / period_us;
            assert!(units <= most, "{what}: {units} units in {} us, {most} may leave", job.at - from.at);
            // What had left before this job is paid for, to the microsecond.
            let paid_for = (units - job.cost) * period_us / count;
            assert!(paid_for <= job.at - from.at + catch_up_us + 1, "{what}: {paid_for} us in {}", job.at - from.at);
            if job.at > from.at {
                closest = closest.min(most - units);
            }
        }
    }
    closest
}

fn of(jobs: &[Left], belongs: impl Fn(&str) -> bool) -> Vec<Left> {
    jobs.iter().filter(|job| belongs(&job.bucket)).cloned().collect()
}

fn each_as_one(jobs: &[Left]) -> Vec<Left> {
    jobs.iter().map(|job| Left { cost: 1, ..job.clone() }).collect()
}

#[test]
fn every_node_keeps_its_exact_bound_in_units_and_in_jobs_however_late_the_drains_are() {
    let toml = "[limits]\nmax_ready = 1000000\n[[budget]]\nmatch = 'top'\nrate = '70/s'\njob_rate = '13/s'\ncatch_up = '20ms'\n\
                [[budget]]\nmatch = 'mid'\nrate = '53/s'\nwithin = 'top'\ncatch_up = '20ms'\n[defaults]\ncost_max = 100000\nrate = '30/s'\njob_rate = '7/s'\n\
                capacity = 1000\ncatch_up = '20ms'\nwithin = 'mid'\n[[bucket]]\nmatch = 'c'\nwithin = 'top'\n";
    let mut case = Case::with(toml);
    case.settle_at(T0);
    let mut dice = Dice(7);
    let jobs: Vec<(&str, u64)> =
        (0..600).map(|n| (["a", "b", "c"][n % 3], [1, 1, 2, 5, 12][dice.below(5) as usize])).collect();
    submit_all(&mut case, &jobs);
    run(&mut case, T0 + 600 * S, || if dice.below(3) == 0 { dice.below(40 * MS) } else { 0 });
    let seen = left(&mut case);
    assert_eq!(seen.len(), 600, "all have left");
    let mut nodes = vec![("top", seen.clone(), 70, 13), ("mid", of(&seen, |bucket| bucket != "c"), 53, 1_000_000)];
    nodes.extend(["a", "b", "c"].map(|name| (name, of(&seen, |bucket| bucket == name), 30, 7)));
    for (name, jobs, units, requests) in nodes {
        let spare = bound(name, &jobs, units, S, 20 * MS);
        assert_eq!(spare, 0, "{name}: drains are late enough to reach what may leave");
        bound(&format!("{name}, jobs"), &each_as_one(&jobs), requests, S, 20 * MS);
    }
}

#[test]
fn a_node_inside_a_budget_makes_up_for_what_its_jobs_and_those_of_its_parent_take_and_no_more() {
    let toml = "[limits]\nmax_ready = 1000000\n[[budget]]\nmatch = 'top'\nrate = '70/s'\n[[budget]]\nmatch = 'mid'\nrate = '53/s'\n\
                within = 'top'\n[defaults]\ncost_max = 100000\nrate = '30/s'\ncapacity = 1000\nwithin = 'mid'\n";
    let mut case = Case::with(toml);
    case.settle_at(T0);
    let mut dice = Dice(11);
    let jobs: Vec<(&str, u64)> =
        (0..450).map(|n| (["a", "b", "c"][n % 3], [1, 1, 2, 5, 12][dice.below(5) as usize])).collect();
    submit_all(&mut case, &jobs);
    run(&mut case, T0 + 600 * S, || if dice.below(3) == 0 { dice.below(40 * MS) } else { 0 });
    let seen = left(&mut case);
    assert_eq!(seen.len(), 450, "all have left");
    bound("top", &seen, 70, S, 20 * MS);
    // The longest of 20 ms, its own largest job, and two of the largest job of the budget above.
    bound("mid", &seen, 53, S, (12 * S).div_ceil(53).max(2 * (12 * S).div_ceil(70)));
    for name in ["a", "b", "c"] {
        let most = (12 * S).div_ceil(30).max(2 * (12 * S).div_ceil(53));
        bound(name, &of(&seen, |bucket| bucket == name), 30, S, most);
    }
}

#[test]
fn tokens_and_requests_are_paced_side_by_side() {
    let toml = "[[budget]]\nmatch = 'model'\nrate = '90000/m'\njob_rate = '500/m'\ncatch_up = '0s'\n\
                [defaults]\ncost_max = 100000\nrate = '90000/m'\ncatch_up = '0s'\nwithin = 'model'\n";
    let mut case = Case::with(toml);
    case.settle_at(T0);
    let costs = [10, 10, 10, 900, 10, 180, 181, 1, 4_000, 1, 1];
    submit_all(&mut case, &costs.map(|cost| ("chat", cost)));
    run(&mut case, T0 + 60 * S, || 0);
    let seen = left(&mut case);
    assert_eq!(seen.iter().map(|job| job.cost).collect::<Vec<_>>(), costs);
    // 180 tokens take as long as a request does, 120 ms: of a cheaper job the request counts, of a dearer one its tokens.
    for (job, next) in seen.iter().zip(&seen[1..]) {
        let pays = (job.cost * 2_000).div_ceil(3).max(120 * MS);
        assert!((next.at - job.at).abs_diff(pays) <= 1, "{} after a job of {}", next.at - job.at, job.cost);
    }
}

#[test]
fn a_job_that_is_larger_than_any_interval_leaves_at_once_and_is_paid_for_after() {
    let toml = "[[budget]]\nmatch = 'top'\nrate = '1000/s'\ncatch_up = '0s'\n[[budget]]\nmatch = 'mid'\nrate = '100/s'\nwithin = 'top'\n\
                catch_up = '0s'\n[defaults]\ncost_max = 100000\nrate = '10/s'\ncatch_up = '0s'\nwithin = 'mid'\n[[bucket]]\nmatch = 'aside'\nwithin = 'top'\n";
    let mut case = Case::with(toml);
    case.settle_at(T0);
    submit_all(&mut case, &[("a", 5_000)]);
    case.settle_at(T0);
    submit_all(&mut case, &[("a", 1), ("b", 1), ("aside", 1)]);
    run(&mut case, T0 + 600 * S, || 0);
    let seen: Vec<(String, u64)> = left(&mut case).into_iter().map(|job| (job.bucket, (job.at - T0) / S)).collect();
    // 5,000 units take the budget above 5 s, that in the middle 50 s, and its own bucket 500 s.
    let expected = [("a", 0), ("aside", 5), ("b", 50), ("a", 500)].map(|(bucket, at)| (bucket.to_owned(), at));
    assert_eq!(seen, expected);
}

#[test]
fn nothing_overtakes_a_job_for_which_a_quota_above_has_too_little_left() {
    const DAY: u64 = 86_400 * S;
    // On the budget itself, and two levels above the bucket.
    for mid in [
        "",
        "[[budget]]\nmatch = 'mid'\nrate = '1000/s'\nwithin = 'up'\n[[bucket]]\nmatch = 'dear'\nrate = '10/s'\nwithin = 'mid'\n",
    ] {
        let mut case = Case::with(&format!(
            "[[budget]]\nmatch = 'up'\nrate = '100/s'\nquota = '100/d'\n{mid}[defaults]\ncost_max = 100000\nrate = '1/s'\nwithin = 'up'\n"
        ));
        case.settle_at(T0);
        submit_all(&mut case, &[("dear", 60)]);
        case.settle_at(T0);
        // The tag of the dear one is 60 jobs ahead of the other's: in each window the turn of that one comes first.
        submit_all(&mut case, &[("dear", 100)]);
        submit_all(&mut case, &[("small", 1); 150]);
        run(&mut case, T0 + 5 * DAY, || 0);
        let midnight = T0 / DAY * DAY + DAY;
        let mut days = |which: &str| -> Vec<u64> {
            let of_it = left(&mut case).into_iter().filter(|job| job.bucket == which);
            of_it.map(|job| if job.at < midnight { 0 } else { 1 + (job.at - midnight) / DAY }).collect()
        };
        let (dear, small) = (days("dear"), days("small"));
        assert_eq!((dear.len(), small.len()), (2, 150), "dear jobs left on days {dear:?}");
        assert!(
            dear[1] <= 2 && !small.contains(&dear[1]),
            "a window for itself as soon as its turn has come: {dear:?}, {small:?}"
        );
    }
}

#[test]
fn a_dear_job_pays_as_one_where_from_then_on_only_jobs_are_counted() {
    let mut case = Case::with(
        "[[budget]]\nmatch = 'acme'\njob_rate = '500/m'\ncatch_up = '0s'\n[defaults]\ncost_max = 100000\nrate = '1000000/s'\nwithin = 'acme'\n",
    );
    case.settle_at(T0);
    set_at(&mut case, T0, "{acme}", "rate", r#"{"count":1000,"period_us":1000000}"#);
    submit_all(&mut case, &[("a", 100_000), ("a", 1)]);
    case.settle_at(T0);
    assert_eq!(left(&mut case).len(), 1, "the next one would leave after 100 s");
    unset_at(&mut case, T0 + 50 * MS, "{acme}", "rate");
    run(&mut case, T0 + 10 * S, || 0);
    assert_eq!(left(&mut case).last().expect("two").at, T0 + 120 * MS, "a request takes 120 ms");
}

#[test]
fn a_job_that_pays_for_a_year_pays_for_as_long_as_its_cost_takes_at_a_new_rate() {
    let mut case = Case::with("[defaults]\ncost_max = 100000\nrate = '1/h'\n");
    case.settle_at(T0);
    submit_all(&mut case, &[("a", 100_000), ("a", 1)]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    let year = 366 * 86_400 * S;
    assert_eq!(case.due("a"), Some(T0 + year), "at most");
    // 100,000 half hours are more than that, too; 100,000 quarters of a minute are not.
    let now = T0 + 10 * S;
    set_at(&mut case, now, "a", "rate", r#"{"count":2,"period_us":3600000000}"#);
    assert_eq!(case.due("a"), Some(T0 + year));
    set_at(&mut case, now, "a", "rate", r#"{"count":4,"period_us":60000000}"#);
    assert_eq!(case.due("a"), Some(T0 + 1_500_000 * S));
}

/// What the child that loses most of its rate loses of it, in percent: ten children whose jobs cost 5, 50 and 500 on average, and which ask for so
/// many percent of their budget together.
fn most_lost(load: u64) -> f64 {
    let own = 5_000 * load / 1_000;
    let toml = format!(
        "[limits]\nmax_ready = 1000000\n[[budget]]\nmatch = 'up'\nrate = '5000/s'\n\
         [defaults]\ncost_max = 100000\nrate = '{own}/s'\ncapacity = 100000\nwithin = 'up'\n"
    );
    let mut case = Case::with(&toml);
    case.settle_at(T0);
    let (mut dice, seconds) = (Dice(load), 60);
    let names: Vec<String> = (0..10).map(|n| format!("c{n}")).collect();
    let mut jobs = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let mean = [5, 50, 500][n % 3];
        let mut units = 0;
        while units < own * (seconds + 5) {
            let cost = 1 + dice.below(2 * mean - 1);
            units += cost;
            jobs.push((name.as_str(), cost));
        }
    }
    submit_all(&mut case, &jobs);
    run(&mut case, T0 + seconds * S, || 0);
    let seen = left(&mut case);
    let lost = names.iter().map(|name| {
        let own_jobs = of(&seen, |bucket| bucket == name);
        let (last, before) = own_jobs.split_last().expect("some left");
        let paid_for = before.iter().map(|job| job.cost).sum::<u64>() as f64 / own as f64;
        100.0 * (1.0 - paid_for * 1e6 / (last.at - own_jobs[0].at) as f64)
    });
    lost.fold(f64::MIN, f64::max)
}

#[test]
fn children_with_jobs_of_very_different_costs_lose_less_than_a_fiftieth_of_their_rates() {
    for load in [80, 95] {
        let lost = most_lost(load);
        println!("at {load} %: {lost:.2} % lost");
        assert!(lost < 2.0, "at {load} %: {lost:.2} % lost");
    }
}

/// A tree in which a job of 1,000 has left, and its entry, which a worker holds.
fn held(case: &mut Case) -> String {
    case.settle_at(T0);
    submit_all(case, &[("a", 1_000)]);
    case.settle_at(T0);
    submit_all(case, &[("a", 1), ("b", 1)]);
    case.take("ready", 1).remove(0).id
}

const TREE: &str = "[[budget]]\nmatch = 'top'\nrate = '1000/s'\njob_rate = '10/s'\nquota = '100000/d'\ncatch_up = '0s'\n\
                    [[budget]]\nmatch = 'mid'\nrate = '500/s'\nwithin = 'top'\ncatch_up = '0s'\n\
                    [defaults]\ncost_max = 100000\nrate = '250/s'\ncatch_up = '0s'\nwithin = 'mid'\n";

fn adjust(case: &mut Case, now: u64, entry: &str, units: &str) -> i64 {
    case.fcall("drip__adjust", &["ready"], &[now.to_string().as_str(), entry, units])
}

/// When the two jobs that wait leave, in ms after the job that was adjusted, and what the quota of the day has counted.
#[track_caller]
fn then_leave(case: &mut Case, from: u64, expected: [(&str, u64); 2], counted: u64) {
    let mut now = from;
    while now <= T0 + 60 * S {
        let reply = case.settle_at(now);
        if reply.wait_us < 0 {
            break;
        }
        now += u64::try_from(reply.wait_us).expect("a time").max(1);
    }
    let seen: Vec<(String, u64)> =
        left(case).into_iter().filter(|job| job.cost == 1).map(|job| (job.bucket, (job.at - T0) / MS)).collect();
    assert_eq!(seen, expected.map(|(bucket, at)| (bucket.to_owned(), at)));
    let windows: String = case.cmd(&["HGET", &case.key("windows"), "{top}"]);
    assert!(windows.ends_with(&format!(":{counted}")), "{windows}");
}

/// The credit of each node that has some, in microseconds.
fn credits(case: &mut Case) -> Vec<(String, i64)> {
    let key = case.key("paid");
    let found: std::collections::BTreeMap<String, String> = case.cmd(&["HGETALL", &key]);
    let credit = |text: String| text.split(' ').nth(8).expect("nine words").parse::<i64>().expect("a number");
    found.into_iter().map(|(node, text)| (node, credit(text))).filter(|(_, credit)| *credit != 0).collect()
}

fn told(list: [(&str, i64); 3]) -> Vec<(String, i64)> {
    list.map(|(node, credit)| (node.to_owned(), credit)).into()
}

#[test]
fn a_correction_down_gives_credit_to_every_level_and_moves_no_due() {
    for (units, credit, counted) in [
        ("-900", [("a", 3_600_000), ("{mid}", 1_800_000), ("{top}", 900_000)], 102),
        ("-1000", [("a", 4_000_000), ("{mid}", 2_000_000), ("{top}", 1_000_000)], 2),
        ("-1000000", [("a", 4_000_000), ("{mid}", 2_000_000), ("{top}", 1_000_000)], 2),
        ("+500", [("a", -2_000_000), ("{mid}", -1_000_000), ("{top}", -500_000)], 1_502),
        ("+100000000", [("a", -3_600_000_000), ("{mid}", -3_600_000_000), ("{top}", -3_600_000_000)], 100_001_002),
    ] {
        let mut case = Case::with(&TREE.replace("100000/d", "1000000000/d"));
        let entry = held(&mut case);
        assert_eq!(adjust(&mut case, T0 + 10 * MS, &entry, units), 1);
        assert_eq!(credits(&mut case), told(credit), "{units}");
        if units != "+100000000" {
            then_leave(&mut case, T0 + 10 * MS, [("b", 2_000), ("a", 4_000)], counted);
        }
    }
}

#[test]
fn of_a_correction_and_an_ack_with_the_cost_the_first_one_counts() {
    let mut case = Case::with(TREE);
    let entry = held(&mut case);
    assert_eq!(adjust(&mut case, T0 + 10 * MS, &entry, "-900"), 1);
    assert_eq!(adjust(&mut case, T0 + 10 * MS, &entry, "+900"), 0, "once");
    let args = [(T0 + 20 * MS).to_string(), entry.clone(), "COST".to_owned(), "5000".to_owned()];
    assert_eq!(case.fcall::<i64>("drip__ack", &["ready"], &args), 1, "it is done all the same");
    assert_eq!(case.fcall::<i64>("drip__ack", &["ready"], &args), 0, "once");
    assert_eq!(adjust(&mut case, T0 + 30 * MS, &entry, "+900"), 0, "after the ack");
    assert_eq!(credits(&mut case), told([("a", 3_600_000), ("{mid}", 1_800_000), ("{top}", 900_000)]));
    then_leave(&mut case, T0 + 30 * MS, [("b", 2_000), ("a", 4_000)], 102);
}

#[test]
fn after_a_plain_xack_nothing_is_adjusted() {
    let mut case = Case::with(TREE);
    let entry = held(&mut case);
    let (stream, done) = (case.key("ready"), entry.as_str());
    assert_eq!(case.cmd::<i64>(&["XACK", &stream, "workers", done]), 1);
    assert_eq!(adjust(&mut case, T0 + 10 * MS, &entry, "-900"), 0);
    then_leave(&mut case, T0 + 10 * MS, [("b", 2_000), ("a", 4_000)], 1_002);
}

#[test]
fn a_correction_needs_nothing_that_memory_held() {
    for (units, cost, a, counted) in
        [("-900", None, 3_600_000, 102), ("+500", None, -2_000_000, 1_502), ("", Some("100"), 3_600_000, 102)]
    {
        let server = Server::start(&[]);
        let mut case = Case::on(&server, TREE);
        let entry = held(&mut case);
        let forget = |case: &mut Case| {
            let _: String = case.cmd(&["FUNCTION", "FLUSH"]);
            load_library(&mut case.redis);
        };
        forget(&mut case);
        let now = T0 + 10 * MS;
        if let Some(cost) = cost {
            let args = [now.to_string(), entry.clone(), "COST".to_owned(), cost.to_owned()];
            assert_eq!(case.fcall::<i64>("drip__ack", &["ready"], &args), 1);
        } else {
            assert_eq!(adjust(&mut case, now, &entry, units), 1);
        }
        forget(&mut case);
        assert_eq!(adjust(&mut case, now, &entry, "+7"), 0, "once");
        assert_eq!(credits(&mut case), told([("a", a), ("{mid}", a / 2), ("{top}", a / 4)]));
        then_leave(&mut case, now, [("b", 2_000), ("a", 4_000)], counted);
    }
}
