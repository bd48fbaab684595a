//! Random sequences of submits with all options, pushes, drains, workers, cancellations and purges. After each step what is stored hangs
//! together; at the end every accepted job is in exactly one place, and no rate was passed.

use std::collections::{BTreeMap, BTreeSet};

use crate::rig::{Case, Entry, MS, S, T0, rand_u64};
use crate::roles::as_roles;

const STEPS: usize = 250;
const BUCKETS: [&str; 4] = ["a", "b", "up:x", "up:y"];
const TOML: &str = "[defaults]\nrate = '20/s'\ncapacity = 12\ndedup = '5s'\nattempts = 3\ncatch_up = '0s'\n\
    backoff = { initial = '200ms', max = '400ms' }\n\
    [[bucket]]\nmatch = 'b'\njob_rate = '10/s'\nconcurrency = 1\nordered = true\n\
    [[bucket]]\nmatch = 'up:*'\nwithin = 'up'\nquota = '400/m'\n\
    [[budget]]\nmatch = 'up'\nrate = '30/s'\njob_rate = '25/s'\n[limits]\nbatch = 7\n";

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn one_of<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.roll(of.len() as u64) as usize]
    }
}

/// What was asked for and came of it.
#[derive(Default)]
struct World {
    /// Accepted jobs, by bucket.
    accepted: BTreeMap<String, &'static str>,
    /// Those that were cancelled while they waited, or purged.
    gone: BTreeSet<String>,
    /// Every dispatch: bucket, when, cost.
    left: Vec<(String, u64, u64)>,
    seen: usize,
    next: u64,
    ids: Vec<(&'static str, String, String)>,
    /// The last job of each id.
    last: BTreeMap<(&'static str, String), String>,
}

fn submit(case: &mut Case, dice: &mut Dice, world: &mut World, now: u64) {
    let bucket = dice.one_of(&BUCKETS);
    let bucket = BUCKETS.into_iter().find(|name| *name == bucket).expect("one of them");
    world.next += 1;
    let (job, mut options) = (format!("{bucket}-{}", world.next), Vec::<String>::new());
    if dice.roll(2) == 0 {
        options.extend(["ID".to_owned(), format!("id{}", dice.roll(30))]);
    }
    if dice.roll(3) == 0 {
        options.extend(["DELAY".to_owned(), dice.roll(2_000).to_string()]);
    }
    if dice.roll(3) == 0 {
        options.extend(["TTL".to_owned(), (1 + dice.roll(3_000)).to_string()]);
    }
    if dice.roll(2) == 0 {
        options.extend(["COST".to_owned(), (1 + dice.roll(9)).to_string()]);
    }
    if dice.roll(4) == 0 {
        options.extend(["HEADER".to_owned(), "h".to_owned(), world.next.to_string()]);
    }
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let reply = case.submit_at(now, bucket, &job, &options);
    let is_new = ["queued", "delayed"].contains(&reply.verdict.as_str());
    assert_eq!(reply.five[0] == 1, is_new || reply.verdict == "duplicate", "{reply:?}");
    assert!(reply.expected_ms >= reply.five[4], "{reply:?}");
    assert_eq!(reply.five[3] >= 0, reply.five[0] == 0, "{reply:?}");
    if is_new {
        world.accepted.insert(job.clone(), bucket);
        world.last.insert((bucket, reply.id.clone()), job.clone());
        world.ids.push((bucket, reply.id, job));
    }
}

fn finish(case: &mut Case, dice: &mut Dice, entry: &Entry, now: u64) {
    let (now, id) = (now.to_string(), entry.id.as_str());
    match dice.roll(5) {
        0 => drop(case.fcall::<i64>("drip__fail", &["ready"], &[now.as_str(), id])),
        1 => drop(case.fcall::<i64>("drip__fail", &["ready"], &[now.as_str(), id, "KEEP", "RETRY_IN", "50"])),
        2 => {
            let _: i64 = case.fcall("drip__adjust", &["ready"], &[now.as_str(), id, dice.one_of(&["+3", "-2", "-50"])]);
            let _: i64 = case.fcall("drip__ack", &["ready"], &[now.as_str(), id]);
        }
        3 => drop(case.fcall::<i64>("drip__ack", &["ready"], &[now.as_str(), id, "COST", "4"])),
        _ => drop(case.fcall::<i64>("drip__ack", &["ready"], &[now.as_str(), id])),
    }
}

fn audit(case: &mut Case, now: u64, step: usize) {
    let wrong: Vec<String> = case.fcall("drip__audit", &["policy"], &[now.to_string()]);
    assert_eq!(wrong, Vec::<String>::new(), "step {step}");
}

fn step(case: &mut Case, dice: &mut Dice, world: &mut World, now: u64) {
    match dice.roll(10) {
        0..=3 => submit(case, dice, world, now),
        4 => {
            let bucket = dice.one_of(&BUCKETS);
            let bucket = BUCKETS.into_iter().find(|name| *name == bucket).expect("one of them");
            world.next += 1;
            let job = format!("{bucket}-{}", world.next);
            if case.push_at(now, bucket, &[job.as_str()])[0] == 1 {
                world.accepted.insert(job, bucket);
            }
        }
        5..=6 => drop(case.drain_at(now)),
        7..=8 => {
            for entry in case.take("ready", 1 + dice.roll(3) as usize) {
                finish(case, dice, &entry, now);
            }
        }
        _ => {
            if let Some((bucket, id, job)) = world.ids.pop()
                && world.last[&(bucket, id.clone())] == job
                && case.find_at(now, bucket, &id).0 != "left"
                && case.cancel_at(now, bucket, &id) == 1
            {
                world.gone.insert(job);
            }
        }
    }
}

/// The dispatches since the last look.
fn watch(case: &mut Case, world: &mut World, all: &mut BTreeMap<String, Entry>) {
    for entry in case.stream("ready") {
        if !all.contains_key(&entry.id) {
            let cost = if entry.fields.contains_key("cost") { entry.number("cost") } else { 1 };
            world.left.push((entry.text("bucket"), entry.number("at_us"), cost));
            all.insert(entry.id.clone(), entry);
        }
    }
    world.seen = all.len();
}

fn in_no_window_more_than(left: &[(u64, u64)], interval: u64, largest: u64, about: &str) {
    for from in 0..left.len() {
        let mut units = 0;
        for (at, cost) in &left[from..] {
            units += cost;
            let most = largest + (at - left[from].0 + 1) / interval;
            assert!(units <= most, "{about}: {units} units in {} us", at - left[from].0);
        }
    }
}

#[test]
fn whatever_is_submitted_cancelled_and_finished_no_job_is_lost_or_doubled_and_no_rate_is_passed() {
    as_roles();
    for _ in 0..4 {
        let seed = rand_u64();
        eprintln!("seed {seed}");
        let (mut case, mut dice, mut world, mut all) =
            (Case::with(TOML), Dice(seed), World::default(), BTreeMap::new());
        let mut now = T0;
        case.settle_at(now);
        for n in 0..STEPS {
            now += dice.roll(120) * MS;
            step(&mut case, &mut dice, &mut world, now);
            watch(&mut case, &mut world, &mut all);
            audit(&mut case, now, n);
        }
        for _ in 0..600 {
            now += 100 * MS;
            case.settle_at(now);
            watch(&mut case, &mut world, &mut all);
            for entry in case.take("ready", 50) {
                let _: i64 = case.fcall("drip__ack", &["ready"], &[now.to_string().as_str(), &entry.id]);
            }
        }
        case.settle_at(now + 60 * S);
        audit(&mut case, now + 60 * S, STEPS);
        let mut ends: BTreeMap<String, usize> = BTreeMap::new();
        let dispatched: BTreeSet<String> = all.values().map(|entry| entry.text("job")).collect();
        let rejected: Vec<String> = case.stream("rejected").iter().map(|entry| entry.text("job")).collect();
        for job in dispatched.iter().chain(&rejected).chain(&world.gone) {
            *ends.entry(job.clone()).or_default() += 1;
        }
        for (job, bucket) in &world.accepted {
            let known = ends.get(job).copied().unwrap_or(0);
            let was_cancelled_later = world.gone.contains(job) && (dispatched.contains(job) || rejected.contains(job));
            assert!(
                known == 1 || was_cancelled_later && known == 2,
                "seed {seed}: {job} of {bucket} ended {known} times"
            );
        }
        assert!(ends.keys().all(|job| world.accepted.contains_key(job)), "seed {seed}");
        let of = |is: &dyn Fn(&str) -> bool| -> Vec<(u64, u64)> {
            world.left.iter().filter(|(bucket, ..)| is(bucket)).map(|(_, at, cost)| (*at, *cost)).collect()
        };
        let jobs = |left: &[(u64, u64)]| -> Vec<(u64, u64)> { left.iter().map(|(at, _)| (*at, 1)).collect() };
        // An adjustment gives back at most what one job was charged, so a window may hold that much more.
        in_no_window_more_than(&jobs(&of(&|bucket| bucket == "b")), 100_000, 1, "jobs of b");
        in_no_window_more_than(&jobs(&of(&|bucket| bucket.starts_with("up:"))), 40_000, 1 + 1, "jobs of up");
        case.settle_at(now + 2 * 3_600 * S); // a credit is kept for an hour
        let kept = case.keys();
        let is_left = |key: &String| {
            ["delayed", "jobs", "paid", "turns", "adjusted", "retries"].iter().any(|word| key.starts_with(word))
        };
        assert!(!kept.iter().any(is_left), "seed {seed}: {kept:?}");
    }
}
