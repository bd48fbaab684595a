//! The law of credit by itself, and the worlds in which it was simulated before it was built: one rate, and jobs that always wait.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;

use super::Out;

const CATCH_UP: f64 = 0.020;
const HALVES: f64 = 2.0;
const CREDIT_MOST: f64 = 60.0;
const DEBT_MOST: f64 = 3_600.0;

/// A world ends after so many jobs, if not before.
pub(super) fn jobs_most() -> usize {
    std::env::var("DRIPD_JOBS").ok().and_then(|text| text.parse().ok()).unwrap_or(400)
}

pub(super) struct World {
    pub(super) name: &'static str,
    /// Units a second, and others from some second on.
    pub(super) rate: u64,
    pub(super) rates: &'static [(f64, u64)],
    pub(super) seconds: f64,
    /// What counts after this.
    pub(super) warm: f64,
    pub(super) estimate: fn(&mut Rng, f64) -> u64,
    pub(super) real: fn(&mut Rng, f64, f64) -> f64,
    pub(super) latency: fn(&mut Rng, f64) -> f64,
    /// So many answers come together.
    pub(super) burst: usize,
    /// Whether a worker says what a job cost.
    pub(super) is_known: fn(&mut Rng, u64, f64) -> bool,
    /// Jobs come in the first so many seconds of each so many; (0, 0): always.
    pub(super) busy: (f64, f64),
    /// 5 jobs a second at most until then.
    pub(super) job_rate_until: f64,
}

impl World {
    pub(super) fn real_of(&self, rng: &mut Rng, estimate: u64, at: f64) -> f64 {
        (self.real)(rng, estimate as f64, at).clamp(0.0, 100_000.0).floor()
    }

    /// From when on a job is there.
    pub(super) fn comes(&self, at: f64) -> f64 {
        let (first, of) = self.busy;
        if of == 0.0 || at % of < first { at } else { ((at / of).floor() + 1.0) * of }
    }
}

/// A node with a rate.
#[derive(Debug, Clone, Default)]
pub(super) struct Law {
    pub(super) due: f64,
    pub(super) credit: f64,
}

impl Law {
    /// "A job of t = cost x interval takes x = credit x min(1, t / (2 s + max(0, credit))) from it and is charged t - x, in whole units, at
    /// least 1." "Time without work pays debt."
    pub(super) fn charge(&mut self, cost: f64, interval: f64, idle: f64) -> f64 {
        if self.credit < 0.0 {
            self.credit = (self.credit + idle).min(0.0);
        }
        let part = (cost * interval / (HALVES + self.credit.max(0.0))).min(1.0);
        let charged = (cost - self.credit / interval * part + 0.5).floor().max(1.0);
        self.credit -= (cost - charged) * interval;
        charged
    }

    /// "A correction adds (base - real) x interval: up to a minute, or one such job if longer; down to an hour of debt."
    pub(super) fn correct(&mut self, base: f64, real: f64, interval: f64) {
        let credit = self.credit + (base - real) * interval;
        self.credit = credit.min(CREDIT_MOST.max(base * interval)).max(-DEBT_MOST);
    }

    pub(super) fn run(world: &World) -> Vec<Out> {
        let (mut rng, mut node, mut now, mut job_due, mut out) =
            (Rng::with_seed(1), Self::default(), 0.0_f64, 0.0_f64, Vec::new());
        let mut flight: BinaryHeap<Reverse<(u64, usize, u64, u64)>> = BinaryHeap::new();
        let mut held = Vec::new();
        let micros = |at: f64| (at * 1e6) as u64;
        while now < world.seconds && out.len() < jobs_most() {
            let rate_at = |at: f64| world.rates.iter().rev().find(|(from, _)| at >= *from).map_or(world.rate, |r| r.1);
            let interval = 1.0 / rate_at(now) as f64;
            let next = |node: &Self, now: f64| node.due.max(now).max(job_due);
            let (mut wait, mut leaves) = (next(&node, now), world.comes(next(&node, now)));
            while let Some(Reverse((back, _, base, real))) = flight.peek().copied() {
                if back > micros(leaves) {
                    break;
                }
                flight.pop();
                now = now.max(back as f64 / 1e6);
                held.push((base as f64, real as f64));
                if held.len() >= world.burst {
                    held.drain(..).for_each(|(base, real)| node.correct(base, real, interval));
                }
                wait = next(&node, now);
                leaves = world.comes(wait);
            }
            now = leaves;
            let estimate = (world.estimate)(&mut rng, now).max(1);
            let real = world.real_of(&mut rng, estimate, now);
            let idle = if world.busy.1 > 0.0 { (now - wait).max(0.0) } else { 0.0 };
            let charged = node.charge(estimate as f64, interval, idle);
            out.push(Out { at: now, real, charged });
            node.due = node.due.max(now - CATCH_UP) + charged * interval;
            if now < world.job_rate_until {
                job_due = job_due.max(now - CATCH_UP) + 0.2;
            }
            if (world.is_known)(&mut rng, estimate, real) {
                let back = micros(now + (world.latency)(&mut rng, now));
                flight.push(Reverse((back, out.len(), estimate, real as u64)));
            }
        }
        out
    }
}

const fn world(
    name: &'static str,
    rate: u64,
    estimate: fn(&mut Rng, f64) -> u64,
    real: fn(&mut Rng, f64, f64) -> f64,
    latency: fn(&mut Rng, f64) -> f64,
) -> World {
    World {
        name,
        rate,
        rates: &[],
        seconds: 400.0,
        warm: 100.0,
        estimate,
        real,
        latency,
        burst: 1,
        is_known: |_, _, _| true,
        busy: (0.0, 0.0),
        job_rate_until: 0.0,
    }
}

fn between(rng: &mut Rng, least: f64, most: f64) -> f64 {
    least + rng.f64() * (most - least)
}

#[rustfmt::skip] // a row each
pub(super) fn worlds() -> Vec<World> {
    let llm = |name| world(name, 1_500, |_, _| 300, |_, _, _| 120.0, |_, _| 2.0);
    vec![
        llm("an LLM: says 300, costs 120"),
        world("answers after 0.1 s", 1_500, |_, _| 300, |_, _, _| 120.0, |_, _| 0.1),
        world("costs 30 to 300, answers after 1 to 8 s", 1_500, |_, _| 300, |r, _, _| between(r, 30.0, 300.0), |r, _| between(r, 1.0, 8.0)),
        world("says 100 to 4000, costs 10 to 100 % of that", 5_000, |r, _| r.u64(100..=4_000), |r, e, _| e * between(r, 0.1, 1.0), |r, _| between(r, 0.5, 20.0)),
        world("exact", 1_500, |_, _| 120, |_, _, _| 120.0, |_, _| 2.0),
        world("too low", 1_500, |_, _| 100, |_, _, _| 150.0, |_, _| 2.0),
        World { seconds: 150.0, warm: 60.0, ..world("small costs", 100, |_, _| 5, |_, _, _| 1.0, |_, _| 0.2) },
        world("one of 50 costs 40 times as much", 1_500, |_, _| 300, |r, _, _| if r.f64() < 0.02 { 4_000.0 } else { 100.0 }, |_, _| 3.0),
        world("half cost nothing", 1_500, |_, _| 300, |r, _, _| if r.bool() { 300.0 } else { 0.0 }, |_, _| 3.0),
        World { burst: 40, ..llm("answers 40 at once") },
        World { burst: 400, ..llm("answers 400 at once") },
        World { seconds: 2_400.0, warm: 1_200.0, ..world("two minutes an answer", 150, |_, _| 10, |_, _, _| 4.0, |_, _| 120.0) },
        World { seconds: 900.0, warm: 500.0, ..world("0.1 s beside two minutes", 1_500, |_, _| 300, |r, _, _| between(r, 30.0, 200.0), |r, _| if r.f64() < 0.3 { 120.0 } else { 0.1 }) },
        world("says 1 to 1000, costs 40 %", 1_500, |r, _| 10.0_f64.powf(between(r, 0.0, 3.0)) as u64, |_, e, _| 0.4 * e, |_, _| 2.0),
        world("says 1 or 1000, costs 50 and a tenth", 1_500, |r, _| if r.bool() { 1 } else { 1_000 }, |_, e, _| 50.0 + e / 10.0, |_, _| 2.0),
        world("only the cheap tenth is corrected", 1_500, |_, _| 300, |r, _, _| if r.f64() < 0.1 { 30.0 } else { 300.0 }, |_, _| 2.0),
        World { is_known: |r, _, _| r.f64() > 0.2, ..llm("one of five is never corrected") },
        World { seconds: 600.0, ..world("five times too high, exact from 300 s on", 1_500, |_, _| 500, |_, _, t| if t < 300.0 { 100.0 } else { 500.0 }, |_, _| 2.0) },
        World { busy: (10.0, 40.0), ..world("jobs for 10 of 40 s", 1_500, |_, _| 300, |_, _, _| 120.0, |_, _| 4.0) },
        World { rates: &[(150.0, 150), (250.0, 1_500)], ..llm("a rate of 1500, 150, 1500") },
        World { job_rate_until: 200.0, ..llm("5 jobs a second at most until 200 s") },
        World { seconds: 3_600.0, ..world("10/s, says 60, costs 24", 10, |_, _| 60, |_, _, _| 24.0, |_, _| 5.0) },
        World { seconds: 3_600.0, warm: 600.0, ..world("50/s, says 4096, costs 300", 50, |_, _| 4_096, |_, _, _| 300.0, |_, _| 5.0) },
        World { seconds: 1_200.0, warm: 600.0, ..world("40 times too high", 1_500, |_, _| 4_000, |_, _, _| 100.0, |_, _| 5.0) },
        world("10 times too low", 1_500, |_, _| 10, |_, _, _| 100.0, |_, _| 5.0),
        World { seconds: 800.0, warm: 400.0, ..world("3.5 times too low, 20 s", 1_500, |_, _| 100, |_, _, _| 350.0, |_, _| 20.0) },
        World { seconds: 1_200.0, warm: 600.0, ..world("3.5 times too low, 60 s", 1_500, |_, _| 100, |_, _, _| 350.0, |_, _| 60.0) },
        World { seconds: 400.0, warm: 200.0, ..world("all answers each 15 s", 1_500, |_, _| 300, |_, _, _| 120.0, |_, t| 15.01 - t % 15.0) },
    ]
}
