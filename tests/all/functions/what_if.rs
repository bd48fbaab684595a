//! `drip__what_if`: what a change or a push would do, compared with what it then does.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use crate::rig::{Case, Drained, MS, S, T0};

/// A forecast: jobs that wait, until the last of them leaves, until no retry waits any more either; −1: none.
type Forecast = (i64, i64, i64);

/// What `drip__what_if` replies: the verdict, how many jobs are dropped, how things stand, how they would, why it is not exact.
#[derive(Debug)]
struct Told {
    verdict: Vec<i64>,
    dropped: i64,
    before: Forecast,
    after: Forecast,
    why: Vec<String>,
}

fn change(bucket: &str, words: &[&str]) -> Json {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let set: serde_json::Map<String, Json> =
        dripd::config::settings::parse(&words, &dripd::model::subject::Subject::of_stored(bucket))
            .expect("good")
            .into_iter()
            .map(|setting| (setting.key, json!({ "text": setting.text, "policy": setting.policy })))
            .collect();
    json!({ "match": bucket, "set": set })
}

fn what_if(case: &mut Case, now: u64, bucket: &str, words: &[&str], jobs: u64) -> Told {
    let args = [now.to_string(), change(bucket, words).to_string(), jobs.to_string()];
    let (verdict, dropped, before, after, why) = case.fcall("drip__what_if", &[&format!("queue:{bucket}")], &args);
    Told { verdict, dropped, before, after, why }
}

fn set_for(case: &mut Case, now: u64, name: &str, words: &[&str], for_us: Option<u64>) {
    let mut c = change(name, words);
    c["is_glob"] = json!(name.contains('*'));
    if words.is_empty() {
        c["set"] = json!({ "pause": { "text": "", "policy": {} } });
    }
    if let Some(us) = for_us {
        c["for_us"] = json!(us);
    }
    let told: (i64, Vec<String>, String) = case.fcall("drip__set", &["policy"], &[now.to_string(), c.to_string()]);
    assert_eq!(told.0, 1, "{c}");
}

/// A daemon says that it is alive.
fn beat(case: &mut Case, now: u64) {
    let _: Vec<i64> = case.fcall("drip__beat", &["daemons"], &[now.to_string(), "d".to_owned(), "{}".to_owned()]);
}

/// Let time pass as a daemon does: drain whenever it is told to. Replies the time then, and whether nothing is to be done any more.
fn run_until(case: &mut Case, mut now: u64, end: u64) -> (u64, bool) {
    loop {
        let Drained { wait_us, .. } = case.settle_at(now);
        let Ok(wait_us) = u64::try_from(wait_us) else { return (end, true) };
        if now + wait_us > end {
            return (end, false);
        }
        now += wait_us;
    }
}

/// Let time pass until nothing is to be done any more. Replies when the last job left.
fn run(case: &mut Case, now: u64) -> Option<u64> {
    assert!(run_until(case, now, now + 366 * 86_400 * S).1, "all of it is over within a year");
    case.stream("ready").last().map(|entry| entry.number("at_us"))
}

#[test]
fn a_forecast_says_when_the_last_job_leaves_and_changes_nothing() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 10\n");
    beat(&mut case, T0);
    case.push_at(T0, "a", &["1", "2", "3", "4"]);
    assert_eq!(case.drain_at(T0).dispatched, 1);
    let keys = case.keys();
    let told = what_if(&mut case, T0, "a", &["rate=10/s"], 0);
    assert_eq!((told.before, told.after), ((3, 3_000_000, 3_000_000), (3, 300_000, 300_000)));
    assert_eq!((told.verdict, told.dropped, told.why), (vec![], 0, vec![]));
    let told = what_if(&mut case, T0, "a", &[], 9);
    assert_eq!((told.verdict, told.after), (vec![7, 10, 10, 1_000, 10_000], (10, 10_000_000, 10_000_000)));
    let told = what_if(&mut case, T0, "a", &["capacity=5", "overflow=drop-oldest"], 9);
    assert_eq!((told.verdict, told.dropped, told.after.0), (vec![9, 5, 5, -1, 5_000], 7, 5));
    let told = what_if(&mut case, T0, "a", &["capacity=2"], 1);
    assert_eq!((told.verdict, told.after.0), (vec![0, 3, 2, 1_000, -1], 3), "nothing is thrown out");
    let told = what_if(&mut case, T0, "idle", &[], 2);
    assert_eq!((told.before, told.after), ((0, -1, -1), (2, 1_000_000, 1_000_000)));
    assert_eq!(case.keys(), keys);
    assert_eq!(case.peek_at(T0, "a")[..3], [0, 3, 10]);
}

#[test]
fn a_forecast_says_why_it_is_only_a_lower_bound() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n[limits]\nmax_ready = 2\n");
    case.push_at(T0, "a", &["1", "2"]);
    assert_eq!(what_if(&mut case, T0, "a", &[], 0).why, ["no-daemon"]);
    beat(&mut case, T0);
    assert_eq!(what_if(&mut case, T0, "a", &[], 0).why, [""; 0]);
    assert_eq!(what_if(&mut case, T0, "a", &[], 1).why, ["room"]);
    case.drain_at(T0);
    let entry = case.take("ready", 1).remove(0);
    let _: i64 = case.fcall("drip__fail", &["ready"], &[T0.to_string(), entry.id]);
    let told = what_if(&mut case, T0, "a", &[], 0);
    assert_eq!((told.before, told.why), ((1, S as i64, 2 * S as i64), vec!["retries".to_owned()]));
    set_for(&mut case, T0, "a", &[], None);
    assert_eq!(what_if(&mut case, T0, "a", &[], 0).why, ["retries", "paused"]);
    case.push_at(T0, "b", &["1", "2", "3"]);
    case.drain_at(T0 + S);
    case.drain_at(T0 + 2 * S);
    beat(&mut case, T0 + 3 * S);
    let told = what_if(&mut case, T0 + 3 * S, "b", &[], 0);
    assert_eq!((told.before, told.why), ((1, 0, 0), vec!["held".to_owned()]));
}

#[test]
fn a_pause_that_ends_by_itself_is_waited_for_and_another_is_taken_as_over() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    beat(&mut case, T0);
    case.push_at(T0, "a", &["1", "2"]);
    set_for(&mut case, T0, "a", &[], Some(5 * S));
    let told = what_if(&mut case, T0, "a", &[], 0);
    assert_eq!((told.before, told.why), ((2, 6 * S as i64, 6 * S as i64), vec![]));
    set_for(&mut case, T0, "a*", &[], None);
    let told = what_if(&mut case, T0, "a", &[], 0);
    assert_eq!((told.before, told.why), ((2, 6 * S as i64, 6 * S as i64), vec!["paused".to_owned()]));
    case.settle_at(T0); // one change of globs spreads at a time
    set_for(&mut case, T0, "b*", &[], None);
    set_for(&mut case, T0, "b", &["capacity=5"], Some(5 * S));
    let told = what_if(&mut case, T0, "b", &[], 2);
    assert_eq!((told.after, told.why), ((2, S as i64, S as i64), vec!["paused".to_owned()]));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut case = Case::with("");
    let queue = case.queue("wrong");
    let _: String = case.cmd(&["SET", &queue, "x"]);
    let args = [T0.to_string(), change("wrong", &[]).to_string(), "1".to_owned()];
    assert_eq!(case.refusal("drip__what_if", &["queue:wrong"], &args), "WRONGTYPE");
    assert_eq!(case.refusal("drip__what_if", &["queue:a{"], &args), "BADBUCKET");
    assert_eq!(case.refusal("drip__what_if", &["queue:a"], &["", "x", "1"]), "BADARG");
    let args = [T0.to_string(), change("a", &[]).to_string(), "-1".to_owned()];
    assert_eq!(case.refusal("drip__what_if", &["queue:a"], &args), "BADARG");
}

/// Something that is done before the question.
#[derive(Debug, Clone)]
enum Step {
    Plain(u64),
    Atomic(u64),
    Drain,
    Advance(u64),
    /// Set rate and capacity of the name or of a glob, for so long.
    Set(bool, usize, u64, Option<u64>),
    /// Pause the name or a glob for so long.
    Pause(bool, u64),
    /// Another configuration.
    Configure(usize),
}

const RATES: [&str; 8] = ["1/s", "3/s", "7/10s", "10/s", "333/s", "1/m", "5/7s", "1000/s"];
const CATCH_UPS: [&str; 3] = ["0s", "20ms", "1s"];

fn toml(rate: usize, catch_up: usize, capacity: u64, drops: bool) -> String {
    let overflow = if drops { "drop-oldest" } else { "reject" };
    let (rate, catch_up) = (RATES[rate % RATES.len()], CATCH_UPS[catch_up % CATCH_UPS.len()]);
    format!("[defaults]\nrate = '{rate}'\ncatch_up = '{catch_up}'\ncapacity = {capacity}\noverflow = '{overflow}'\n")
}

fn step() -> impl Strategy<Value = Step> {
    let span = prop::sample::select(vec![1, 77, 20 * MS, 333 * MS, S, 5 * S, 61 * S]);
    prop_oneof![
        3 => (1..9_u64).prop_map(Step::Plain),
        4 => (1..9_u64).prop_map(Step::Atomic),
        5 => Just(Step::Drain),
        5 => span.clone().prop_map(Step::Advance),
        3 => (any::<bool>(), 0..RATES.len(), 1..12_u64, prop::option::of(span.clone())).prop_map(|(g, r, c, f)| Step::Set(g, r, c, f)),
        2 => (any::<bool>(), span).prop_map(|(glob, span)| Step::Pause(glob, span)),
        1 => (0..RATES.len()).prop_map(Step::Configure),
    ]
}

fn jobs(n: u64) -> Vec<String> {
    (0..n).map(|n| format!("job {n}")).collect()
}

fn apply(case: &mut Case, now: &mut u64, step: &Step) {
    let name = |glob: bool| if glob { "a*" } else { "a1" };
    match step {
        Step::Plain(n) | Step::Atomic(n) => {
            let jobs = jobs(*n);
            let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
            if matches!(step, Step::Plain(_)) {
                case.lpush("a1", &jobs);
                case.wake_at(*now, &["a1"]);
            } else {
                case.push_at(*now, "a1", &jobs);
            }
        }
        Step::Drain => drop(case.settle_at(*now)),
        Step::Advance(us) => *now = run_until(case, *now, *now + us).0,
        Step::Set(glob, rate, capacity, span) => {
            let words = [format!("rate={}", RATES[*rate]), format!("capacity={capacity}")];
            case.settle_at(*now); // as above
            set_for(case, *now, name(*glob), &[&words[0], &words[1]], *span);
        }
        Step::Pause(glob, span) => {
            case.settle_at(*now);
            set_for(case, *now, name(*glob), &[], Some(*span));
        }
        Step::Configure(rate) => {
            case.settle_at(*now);
            case.configure_at(&now.to_string(), &toml(*rate, 1, 9, false));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Whatever happened before, and whatever ends by itself meanwhile: what is predicted is what then happens.
    #[test]
    fn what_is_predicted_is_what_then_happens(
        first in (0..RATES.len(), 0..CATCH_UPS.len(), 1..12_u64, any::<bool>()),
        steps in prop::collection::vec(step(), 0..14),
        changes in prop::option::of((0..RATES.len(), 1..14_u64)),
        pushed in 0..9_u64,
    ) {
        let (mut case, mut now) = (Case::with(&toml(first.0, first.1, first.2, first.3)), T0);
        for step in &steps {
            apply(&mut case, &mut now, step);
        }
        beat(&mut case, now);
        let words: Vec<String> = changes.map(|(rate, capacity)| vec![format!("rate={}", RATES[rate]), format!("capacity={capacity}")]).unwrap_or_default();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let told = what_if(&mut case, now, "a1", &words, pushed);
        prop_assert_eq!(&told.why, &Vec::<String>::new(), "nothing but a rate keeps it");
        if !words.is_empty() {
            set_for(&mut case, now, "a1", &words, None);
        }
        if pushed > 0 {
            let jobs = jobs(pushed);
            let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
            let rejected = case.stream("rejected").len();
            let verdict = case.push_at(now, "a1", &jobs);
            prop_assert_eq!(&told.verdict[..], &verdict[..], "{:?}", told);
            let dropped = if told.verdict[3] < 0 { case.stream("rejected").len() - rejected } else { 0 };
            if told.verdict[3] < 0 {
                prop_assert!(told.dropped as usize <= dropped, "{:?}: {} were dropped", told, dropped);
            }
        }
        let queue = case.queue("a1");
        prop_assert_eq!(case.cmd::<i64>(&["LLEN", &queue]), told.after.0, "{:?}", told);
        let left = run(&mut case, now).filter(|_| told.after.0 > 0).map_or(-1, |at| at as i64 - now as i64);
        prop_assert_eq!(left, told.after.1, "{:?}", told);
    }

    /// With failed jobs the last one may leave later than predicted, never earlier.
    #[test]
    fn with_retries_the_prediction_is_a_lower_bound(
        rate in 0..RATES.len(), steps in prop::collection::vec((0..4_u8, 1..6_u64), 4..14), pushed in 0..5_u64,
    ) {
        let toml = format!("[defaults]\nrate = '{}'\nattempts = 100\nbackoff = {{ initial = '700ms', max = '9s' }}\n", RATES[rate]);
        let (mut case, mut now) = (Case::with(&toml), T0);
        for (what, n) in steps {
            match what {
                0 => apply(&mut case, &mut now, &Step::Atomic(n)),
                1 => apply(&mut case, &mut now, &Step::Advance(n * 400 * MS)),
                2 => apply(&mut case, &mut now, &Step::Plain(n)),
                _ => for entry in case.take("ready", n as usize) {
                    let _: i64 = case.fcall("drip__fail", &["ready"], &[now.to_string(), entry.id]);
                },
            }
        }
        beat(&mut case, now);
        let told = what_if(&mut case, now, "a1", &[], pushed);
        if pushed > 0 {
            apply(&mut case, &mut now, &Step::Atomic(pushed));
        }
        let left = run(&mut case, now).filter(|_| told.after.2 >= 0).map_or(-1, |at| at as i64 - now as i64);
        prop_assert!(told.after.2 <= left, "{:?}: the last left after {} us", told, left);
        prop_assert!(told.after.1 <= told.after.2, "{:?}", told);
    }
}

#[test]
fn a_forecast_counts_in_a_slow_down_and_says_what_it_cannot_know_of_quotas() {
    let mut case = Case::with("[[bucket]]\nmatch = 'q'\nquota = '1000/d'\n[defaults]\nrate = '1/s'\ncapacity = 100\n");
    beat(&mut case, T0);
    case.push_at(T0, "a", &["x"; 21]);
    case.drain_at(T0);
    set_for(&mut case, T0, "a", &["rate=2/s"], Some(10 * S));
    let pause = [T0.to_string(), "PAUSE".to_owned(), "5000".to_owned()];
    let _: (u64, u64) = case.fcall("drip__slow", &["queue:a"], &pause);
    let told = what_if(&mut case, T0 + MS, "a", &[], 0);
    assert_eq!(told.why, Vec::<String>::new(), "it is exact");
    let last = run(&mut case, T0 + MS).expect("they leave");
    assert_eq!(told.before.1, (last - T0 - MS) as i64);
    assert_eq!(what_if(&mut case, T0, "q", &[], 5).why, ["quota"]);
}

#[test]
fn slots_of_a_bucket_or_of_a_budget_above_it_make_a_forecast_a_lower_bound_that_says_so() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/s'\ncapacity = 100\n[[budget]]\nmatch = 'slots'\nconcurrency = 1\n\
         [[budget]]\nmatch = 'low'\nrate = '100/s'\nwithin = 'slots'\n[[budget]]\nmatch = 'paced'\nrate = '100/s'\n\
         [[bucket]]\nmatch = 'own*'\nconcurrency = 1\n[[bucket]]\nmatch = 'below'\nwithin = 'low'\n\
         [[bucket]]\nmatch = 'paced'\nwithin = 'paced'\n",
    );
    beat(&mut case, T0);
    for bucket in ["own", "own, for now without", "below", "paced", "plain"] {
        case.push_at(T0, bucket, &["1", "2", "3"]);
    }
    assert_eq!(what_if(&mut case, T0, "own", &[], 0).why, ["slots"]);
    assert_eq!(what_if(&mut case, T0, "below", &[], 0).why, ["slots", "budget"], "two levels up");
    assert_eq!(what_if(&mut case, T0, "paced", &[], 0).why, ["budget"]);
    assert_eq!(what_if(&mut case, T0, "plain", &["concurrency=2"], 0).why, ["slots"], "it would have some");
    assert_eq!(what_if(&mut case, T0, "own", &["concurrency=none"], 0).why, ["slots"], "as it is, it has");
    assert_eq!(what_if(&mut case, T0, "plain", &["within=slots"], 0).why, ["slots", "budget"]);
    let free = "own, for now without";
    set_for(&mut case, T0, free, &["concurrency=none"], Some(S));
    assert_eq!(what_if(&mut case, T0, free, &[], 0).why, ["slots"], "what is set ends before the last one leaves");

    // Whoever waits for a slot since long has earned nothing by it: the forecast counts from now, and the job leaves later still.
    assert_eq!(case.settle_at(T0).dispatched, 5, "one of each");
    let late = T0 + 60 * S;
    beat(&mut case, late);
    case.settle_at(late);
    let told = what_if(&mut case, late, "own", &[], 0);
    assert_eq!(told.before, (2, S as i64, S as i64), "reckoned as if the slot were free now");
    case.settle_at(late + S);
    let left = case.stream("ready").iter().filter(|entry| entry.text("bucket") == "own").count();
    assert_eq!(left, 1, "which it is not");
}

#[test]
fn delayed_jobs_costs_and_a_job_rate_make_a_forecast_a_lower_bound_that_says_so() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n[[bucket]]\nmatch = 'paced'\njob_rate = '1/m'\n");
    case.settle_at(T0);
    beat(&mut case, T0);
    let s = S as i64;
    for (job, cost) in [("1", "1"), ("2", "5"), ("3", "20")] {
        case.submit_at(T0, "costs", job, &["COST", cost]);
    }
    let told = what_if(&mut case, T0, "costs", &[], 1);
    assert_eq!(
        (told.before, told.why),
        ((3, 6 * s, 6 * s), vec!["costs".to_owned()]),
        "what the last one costs is paid after it"
    );
    assert_eq!(told.after, (4, 26 * s, 26 * s));
    let now = case.settle_at(T0).dispatched;
    assert_eq!((now, run(&mut case, T0 + 1)), (1, Some(T0 + 6 * S)));

    let mut case = Case::with("[defaults]\nrate = '1/s'\n[[bucket]]\nmatch = 'paced'\njob_rate = '1/m'\n");
    case.settle_at(T0);
    beat(&mut case, T0);
    case.push_at(T0, "aside", &["1", "2", "3"]);
    for delay in ["1", "1000", "60000"] {
        case.submit_at(T0, "aside", delay, &["DELAY", delay]);
    }
    case.submit_at(T0, "plain", "1", &[]);
    case.submit_at(T0, "plain", "2", &[]);
    assert_eq!(what_if(&mut case, T0, "plain", &[], 0).why, [""; 0], "jobs with options that cost 1 are as any other");
    let told = what_if(&mut case, T0, "aside", &[], 0);
    assert_eq!((told.before, told.why), ((3, 2 * s, 60 * s), vec!["delayed".to_owned()]));
    let told = what_if(&mut case, T0 + 2 * MS, "aside", &[], 0);
    assert_eq!(told.before.1, 3 * s - 2 * MS as i64, "one whose time has come takes turns");
    case.push_at(T0, "paced", &["1", "2"]);
    assert_eq!(what_if(&mut case, T0, "paced", &[], 0).why, ["job-rate"]);
    let end = run(&mut case, T0).expect("they left");
    assert!(end >= T0 + 60 * S, "{end}");
}
