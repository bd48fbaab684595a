//! What a submit foretells: whoever is told `late` could not have left in time, and a job leaves about when it is expected to.

use std::collections::BTreeMap;

use crate::rig::{Case, MS, T0};

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Drain at each moment that the replies name, from one time to another.
fn run(case: &mut Case, mut now: u64, until: u64) {
    loop {
        let reply = case.settle_at(now);
        let Ok(wait) = u64::try_from(reply.wait_us) else { return };
        now += wait.max(1);
        if now >= until {
            return;
        }
    }
}

/// When each job left.
fn left(case: &mut Case) -> BTreeMap<String, u64> {
    case.stream("ready").iter().map(|entry| (entry.text("job"), entry.number("at_us"))).collect()
}

const TREES: &str = "[defaults]\nrate = '20/s'\ncapacity = 60\ncatch_up = '0s'\n\
    [[bucket]]\nmatch = 'up:*'\nrate = '25/s'\nwithin = 'up'\n[[bucket]]\nmatch = 'up:heavy'\nwithin = 'up'\nweight = 4\n\
    [[budget]]\nmatch = 'up'\nrate = '30/s'\ncatch_up = '0s'\nwithin = 'top'\n\
    [[budget]]\nmatch = 'top'\nrate = '28/s'\ncatch_up = '0s'\n[limits]\nmax_ready = 100000\n";

/// Of each that is refused as `late` the same goes in without a deadline: when that leaves is when the refused one would have.
#[test]
fn of_ten_thousand_submits_none_that_was_late_could_have_left_in_time() {
    let mut case = Case::with(TREES);
    let (mut dice, mut now, mut late, mut counts) = (Dice(20_261_122), T0, Vec::new(), BTreeMap::new());
    case.settle_at(T0);
    for n in 0..10_000_u64 {
        let bucket = ["a", "b", "up:x", "up:y", "up:heavy"][dice.roll(5) as usize];
        let ttl = 1 + dice.roll(4_000);
        let said = case.submit_at(now, bucket, &format!("{n}"), &["TTL", &ttl.to_string()]);
        *counts.entry(said.verdict.clone()).or_insert(0_u64) += 1;
        if said.verdict == "late" {
            assert!(said.five[3] > 0, "it says for how long at least: {:?}", said.five);
            let twin = format!("{n}-twin");
            if case.submit_at(now, bucket, &twin, &[]).five[0] == 1 {
                late.push((twin, bucket, now, ttl));
            }
        }
        let next = now + 1 + dice.roll(22 * MS);
        run(&mut case, now, next);
        now = next;
    }
    run(&mut case, now, now + 60_000 * MS);
    let left = left(&mut case);
    let in_time: Vec<_> = late.iter().filter(|(twin, _, at, ttl)| left[twin] <= at + ttl * MS).collect();
    println!("{counts:?}; {} twins of late ones left, {} of them in time", late.len(), in_time.len());
    assert!(late.len() > 500 && counts["queued"] > 2_000, "{counts:?}, {} twins", late.len());
    assert!(in_time.is_empty(), "{in_time:?}");
}

const STEADY: &str = "[defaults]\nrate = '1000/s'\ncapacity = 60\ncatch_up = '0s'\n\
    [[bucket]]\nmatch = 'up:heavy'\nwithin = 'up'\nweight = 4\n[[bucket]]\nmatch = 'up:*'\nwithin = 'up'\n\
    [[budget]]\nmatch = 'up'\nrate = '40/s'\ncatch_up = '0s'\n[limits]\nmax_ready = 100000\n\
    [[bucket]]\nmatch = 'alone'\nrate = '20/s'\n";

#[test]
fn at_steady_load_a_job_leaves_about_when_it_is_expected_to() {
    let mut case = Case::with(STEADY);
    let (mut dice, mut now, mut told) = (Dice(7), T0, BTreeMap::new());
    case.settle_at(T0);
    let buckets = ["up:x", "up:y", "up:heavy", "alone"];
    for n in 0..6_000_u64 {
        let bucket = buckets[dice.roll(4) as usize];
        // As many come as leave: a queue is filled up to about as deep as it was.
        let queue = case.queue(bucket);
        if case.cmd::<u64>(&["LLEN", &queue]) <= 8 + dice.roll(8) {
            let said = case.submit_at(now, bucket, &format!("{n}"), &[]);
            assert!(said.expected_ms >= said.five[4], "never below eta: {:?}", said.five);
            // Not those of the beginning, when nobody waits yet.
            if now > T0 + 5_000 * MS {
                told.insert(format!("{n}"), (now, u64::try_from(said.expected_ms).expect("it waits")));
            }
        }
        let next = now + 1 + dice.roll(12 * MS);
        run(&mut case, now, next);
        now = next;
    }
    let left = left(&mut case);
    let mut ratios: Vec<f64> = told
        .iter()
        .filter_map(|(job, (at, expected))| Some((left.get(job)? - at) as f64 / MS as f64 / (*expected).max(1) as f64))
        .collect();
    ratios.sort_by(f64::total_cmp);
    let mut errors: Vec<f64> = ratios.iter().map(|ratio| (ratio - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let (median, far) =
        (errors[errors.len() / 2], ratios.iter().filter(|ratio| **ratio < 0.5 || **ratio > 2.0).count());
    println!("{} jobs: the median is off by {:.1} %, {far} by more than a factor of two", ratios.len(), 100.0 * median);
    assert!(ratios.len() > 500, "{}", ratios.len());
    assert!(median <= 0.25, "{median}");
    assert!(far * 20 <= ratios.len(), "{far} of {}", ratios.len());
}
