//! Costs that are corrected, in the worlds of a simulation: jobs always wait, each says what it will cost and comes back later with what it
//! really cost, and the functions must let out as much as the law of credit does that is written down here once more, event by event.

mod law;
mod trees;

use fastrand::Rng;
use law::{Law, World};

use super::flow::{set_at, unset_at};
use crate::rig::{Case, S, T0};

/// A job that left: when, in seconds, what it really cost, and what it was charged.
#[derive(Debug, Clone, Copy)]
struct Out {
    at: f64,
    real: f64,
    charged: f64,
}

/// What leaves in a world in so many seconds, by the functions.
fn by_functions(world: &World) -> Vec<Out> {
    let mut case = Case::with(&format!(
        "[limits]\nmax_ready = 1000000\n[defaults]\ncost_max = 100000\nlease = '7d'\nrate = '{}/s'\n{}",
        world.rate,
        if world.job_rate_until > 0.0 { "job_rate = '5/s'\n" } else { "" }
    ));
    let (mut rng, mut now, mut out) = (Rng::with_seed(1), T0, Vec::new());
    let mut flight: std::collections::BTreeMap<(u64, usize), (String, f64)> = std::collections::BTreeMap::new();
    let (mut held, mut waiting, mut rates) = (Vec::new(), None, world.rates.iter().copied().peekable());
    let mut has_job_rate = world.job_rate_until > 0.0;
    let seconds = |now: u64| (now - T0) as f64 / 1e6;
    while seconds(now) < world.seconds && out.len() < law::jobs_most() {
        if has_job_rate && seconds(now) >= world.job_rate_until {
            set_at(&mut case, now, "b", "job_rate", r#"{"job_count":0,"job_period_us":0}"#);
            has_job_rate = false;
        }
        while let Some((_, rate)) = rates.next_if(|(at, _)| seconds(now) >= *at) {
            set_at(&mut case, now, "b", "rate", &format!(r#"{{"count":{rate},"period_us":1000000}}"#));
        }
        let come = world.comes(seconds(now));
        if waiting.is_none() && come <= seconds(now) {
            let estimate = (world.estimate)(&mut rng, seconds(now)).max(1);
            case.submit_at(now, "b", "x", &["COST", &estimate.to_string()]);
            waiting = Some(estimate);
        }
        let drained = case.drain_at(now);
        if drained.dispatched > 0 {
            let estimate = waiting.take().expect("one waits");
            let entry = case.take("ready", 1).remove(0);
            let real = world.real_of(&mut rng, estimate, seconds(now));
            let charged = if entry.fields.contains_key("charged") { entry.number("charged") } else { estimate };
            out.push(Out { at: seconds(now), real, charged: charged as f64 });
            if (world.is_known)(&mut rng, estimate, real) {
                let back = now + ((world.latency)(&mut rng, seconds(now)) * 1e6) as u64;
                flight.insert((back, out.len()), (entry.id, real));
            }
            continue;
        }
        let due = u64::try_from(drained.wait_us).map_or(u64::MAX, |wait| now + wait.max(1));
        let change = rates.peek().map_or(f64::MAX, |(at, _)| *at).min(if has_job_rate {
            world.job_rate_until
        } else {
            f64::MAX
        });
        let come = if waiting.is_none() { T0 + (come * 1e6).ceil() as u64 } else { u64::MAX };
        let next = due.min(come).min(if change < 1e9 { T0 + (change * 1e6) as u64 } else { u64::MAX });
        match flight.first_key_value() {
            Some(((back, _), _)) if *back <= next => {
                let ((back, _), back_with) = flight.pop_first().expect("the first");
                now = now.max(back);
                held.push(back_with);
                if held.len() >= world.burst {
                    for (id, real) in held.drain(..) {
                        let args = [now.to_string(), id, "COST".into(), (real as u64).to_string()];
                        assert_eq!(case.fcall::<i64>("drip__ack", &["ready"], &args), 1);
                    }
                }
            }
            _ => now = next,
        }
    }
    out
}

/// What counts of a world: the share of the rate that was used, and the worst windows, in what jobs really cost; after its warm-up, where it
/// lasts for longer than that.
fn figures(out: &[Out], world: &World) -> [(&'static str, f64); 4] {
    let end = out.last().expect("some left").at;
    let warm = if end > 2.0 * world.warm { world.warm } else { 0.0 };
    let after: Vec<Out> = out.iter().copied().filter(|job| job.at >= warm).collect();
    let used = after.iter().map(|job| job.real).sum::<f64>() / (end - warm) / world.rate as f64;
    let of = |jobs: &[Out], window: f64| worst(jobs, window, |job| job.real) / world.rate as f64 / window;
    [
        ("used", used),
        ("worst 10 s", of(&after, 10.0)),
        ("worst 60 s", of(&after, 60.0)),
        ("from the start", of(out, 60.0)),
    ]
}

fn worst(jobs: &[Out], window: f64, of: impl Fn(&Out) -> f64) -> f64 {
    let (mut first, mut sum, mut most) = (0, 0.0, 0.0_f64);
    for job in jobs {
        sum += of(job);
        while jobs[first].at < job.at - window {
            sum -= of(&jobs[first]);
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

/// Promise 1 in charged units: at most the largest charge and what the rate allows, in windows of a second and of a minute.
fn keeps_its_promise(name: &str, out: &[Out], rate: f64) {
    let largest = out.iter().map(|job| job.charged).fold(0.0, f64::max);
    for window in [0.1, 1.0, 60.0] {
        let most = largest + rate * (window + 0.020) + 1.0;
        let units = worst(out, window, |job| job.charged);
        assert!(units <= most, "{name}: {units} units in {window} s, {most} may leave");
    }
}

#[test]
fn the_functions_let_out_what_the_law_says_in_every_world() {
    let chosen = std::env::var("DRIPD_WORLD").unwrap_or_default();
    for world in law::worlds().into_iter().filter(|world| world.name.contains(&chosen)) {
        let (out, expected) = (by_functions(&world), Law::run(&world));
        if world.rates.is_empty() {
            keeps_its_promise(world.name, &out, world.rate as f64);
        }
        println!("{}: {} jobs", world.name, out.len());
        for ((what, found), (_, by_law)) in figures(&out, &world).into_iter().zip(figures(&expected, &world)) {
            println!("  {what}: {found:.3}, by the law {by_law:.3}");
            assert!((found - by_law).abs() <= 0.05 * by_law.max(0.2), "{}: {what} {found}, {by_law}", world.name);
        }
    }
}

/// A job of this cost leaves, and is corrected at once. Replies what it was charged.
fn corrected(case: &mut Case, now: u64, cost: u64, real: u64) -> u64 {
    case.submit_at(now, "b", "x", &["COST", &cost.to_string()]);
    assert_eq!(case.settle_at(now).dispatched, 1);
    let entry = case.take("ready", 1).remove(0);
    let args = [now.to_string(), entry.id.clone(), "COST".into(), real.to_string()];
    assert_eq!(case.fcall::<i64>("drip__ack", &["ready"], &args), 1);
    if entry.fields.contains_key("charged") { entry.number("charged") } else { cost }
}

#[test]
fn two_seconds_of_credit_halve_a_price_and_two_of_debt_double_it() {
    let mut case = Case::with("[defaults]\ncost_max = 100000\nrate = '1000/s'\n");
    assert_eq!(corrected(&mut case, T0, 2_000, 0), 2_000, "no credit yet");
    // 2 s of credit. A job of 2 s takes 2 x min(1, 2/(2+2)) of it.
    assert_eq!(corrected(&mut case, T0 + 10 * S, 2_000, 2_000), 1_000);
    // 1 s is left.
    assert_eq!(corrected(&mut case, T0 + 20 * S, 300, 2_000), 300 - 100);
    // 0.9 s less 1.7 s.
    assert_eq!(corrected(&mut case, T0 + 20 * S + 200_000, 1_000, 1_000), 1_000 + 400);
}

#[test]
fn time_without_work_pays_debt_and_time_with_work_does_not() {
    let toml = "[defaults]\ncost_max = 100000\nrate = '1000/s'\n";
    let mut case = Case::with(toml);
    corrected(&mut case, T0, 1_000, 6_000); // 5 s of debt; it is due at 1 s
    assert_eq!(
        corrected(&mut case, T0 + 4 * S, 1_000, 1_000),
        1_000 + 1_000,
        "3 s are paid by then, half of 2 s is charged"
    );
    let mut case = Case::with(toml);
    case.submit_at(T0, "b", "x", &["COST", "1000"]);
    case.submit_at(T0, "b", "y", &["COST", "1000"]);
    case.settle_at(T0);
    let entry = case.take("ready", 1).remove(0).id;
    let args = [T0.to_string(), entry, "COST".to_owned(), "6000".to_owned()];
    assert_eq!(case.fcall::<i64>("drip__ack", &["ready"], &args), 1);
    set_at(&mut case, T0, "b", "pause", "{}");
    unset_at(&mut case, T0 + 60 * S, "b", "pause");
    case.settle_at(T0 + 60 * S);
    assert_eq!(case.take("ready", 1)[0].number("charged"), 1_000 + 2_500, "it waited all the time");
    let mut case = Case::with(toml);
    corrected(&mut case, T0, 1_000, 4_000_000); // an hour at most, and forgotten after an hour
    assert_eq!(corrected(&mut case, T0 + 3_601 * S, 1_000, 1_000), 1_000);
    assert!(case.keys().iter().all(|key| key != "paid") || case.settle_at(T0 + 9_000 * S).dispatched == 0);
}

#[test]
fn each_try_pays_and_is_corrected_by_itself() {
    let mut case =
        Case::with("[defaults]\ncost_max = 100000\nrate = '1000/s'\nbackoff = { initial = '1s', max = '1s' }\n");
    case.submit_at(T0, "b", "x", &["COST", "1000"]);
    case.settle_at(T0);
    let entry = case.take("ready", 1).remove(0);
    let args = [T0.to_string(), entry.id.clone(), "COST".to_owned(), "100".to_owned(), "REASON".into(), "no".into()];
    assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &args), 1);
    case.settle_at(T0 + S);
    let again = case.take("ready", 1).remove(0);
    // 0.9 s of credit, of which a job of 1 s takes 1/2.9.
    assert_eq!((again.number("cost"), again.number("charged"), again.number("attempt")), (1_000, 690, 2));
    for bad in [&["COST"][..], &["COST", "-1"], &["COST", "x"]] {
        let args: Vec<String> =
            [T0.to_string(), again.id.clone()].into_iter().chain(bad.iter().map(|word| (*word).to_owned())).collect();
        assert_eq!(case.refusal("drip__fail", &["ready"], &args), "BADARG", "{bad:?}");
    }
    let args = [(T0 + S).to_string(), again.id, "COST".to_owned(), "1000".to_owned(), "DEAD".into()];
    assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &args), 2);
}

#[test]
fn refunds_in_a_row_do_not_break_the_promise() {
    let mut case =
        Case::with("[limits]\nmax_ready = 1000\n[defaults]\ncost_max = 100\nrate = '100/s'\ncapacity = 1000\n");
    for n in 0..500 {
        case.submit_at(T0, "b", &n.to_string(), &["COST", "5"]);
    }
    let (mut held, mut out, mut now) = (std::collections::VecDeque::new(), Vec::new(), T0);
    while now < T0 + 20 * S {
        case.settle_at(now);
        for entry in case.take("ready", 100) {
            let charged = if entry.fields.contains_key("charged") { entry.number("charged") } else { 5 };
            out.push(Out { at: (now - T0) as f64 / 1e6, real: 0.0, charged: charged as f64 });
            held.push_back(entry.id);
        }
        let is_answered = held.len() > 40 || now > T0 + 5 * S;
        if let Some(id) = if is_answered { held.pop_front() } else { None } {
            let args = [now.to_string(), id, "COST".into(), "0".into()];
            assert_eq!(case.fcall::<i64>("drip__ack", &["ready"], &args), 1);
        }
        now += 3_000;
    }
    keeps_its_promise("refunds", &out, 100.0);
    assert_eq!(out.len(), 500, "a job that costs nothing is charged one unit at last");
}
