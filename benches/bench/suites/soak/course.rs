//! How the run goes on: what everybody's memory is, part by part, and whether it grew after stores had filled up.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::lab::{Daemon, Server};
use super::report::{Bound, Report, Row, figure};
use super::wire::Wire;
use super::{Books, PARTS, WARMS_UP};

/// What is sampled: its name, its unit, by how much it may grow between two parts of the run that are compared, in its unit and in percent.
/// Of each part the least sample counts: what is garbage, or a buffer for a moment, is not growth.
const SAMPLED: [(&str, &str, f64, f64); 8] = [
    ("daemon", "MB", 1.0, 5.0),
    ("its descriptors", "", 2.0, 0.0),
    ("dripd work", "MB", 1.0, 5.0),
    ("Redis, resident", "MB", 2.0, 5.0),
    ("Redis, used", "MB", 0.5, 5.0),
    ("Lua of functions", "MB", 0.2, 5.0),
    ("keys", "", 50.0, 5.0),
    ("keys that end", "", 50.0, 5.0),
];

const SAMPLE_EVERY: Duration = Duration::from_secs(5);
const MINUTE_US: u64 = 60_000_000;

/// The least of each figure in each part so far.
pub(super) struct Course {
    parts: Vec<[f64; SAMPLED.len()]>,
    began_us: u64,
    ended_us: u64,
}

impl Course {
    pub(super) fn new() -> Self {
        Self { parts: Vec::new(), began_us: 0, ended_us: 0 }
    }

    /// Sample until the time is over, and say after each part how things stand.
    #[expect(clippy::too_many_arguments, reason = "it looks at everybody")]
    pub(super) fn follow(
        &mut self,
        report: &mut Report,
        lasts: Duration,
        wire: &mut Wire,
        server: &Server,
        daemon: &Daemon,
        worker: &Daemon,
        books: &Books,
        breaks_off: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let counted = ["accepted", "rejected", "finished", "failed", "dead", "forgotten", "throttled"];
        let head = ["until", "CPU of Redis, daemon"].iter().map(|name| (*name).to_owned());
        let sampled = SAMPLED.iter().map(|(name, unit, ..)| format!("{name} {unit}").trim_end().to_owned());
        report.course(head.chain(sampled).chain(counted.map(str::to_owned)).collect());
        let began = Instant::now();
        self.began_us = now_us(wire)?;
        let mut spent = super::lab::spent(server, std::slice::from_ref(daemon))?;
        for part in 1..=PARTS {
            let (ends, from) = (lasts.mul_f64(part as f64 / PARTS as f64), began.elapsed());
            let mut least = [f64::INFINITY; SAMPLED.len()];
            loop {
                let left = ends.saturating_sub(began.elapsed());
                std::thread::sleep(left.min(SAMPLE_EVERY));
                if breaks_off() {
                    return Ok(()); // whoever joins it learns why
                }
                for (least, now) in least.iter_mut().zip(sample(wire, server, daemon, worker)?) {
                    *least = least.min(now);
                }
                if began.elapsed() >= ends {
                    break;
                }
            }
            self.parts.push(least);
            let now = super::lab::spent(server, std::slice::from_ref(daemon))?;
            let took = began.elapsed().saturating_sub(from).as_secs_f64() * 1e4; // microseconds in a percent
            let cost = std::mem::replace(&mut spent, now);
            let cost = now - cost;
            let count = |of: &AtomicU64| figure(of.load(Ordering::Relaxed) as f64);
            let all = [&books.accepted, &books.rejected, &books.finished, &books.failed, &books.dead];
            let counts = all.into_iter().chain([&books.forgotten, &books.throttled]).map(count);
            let head = [
                format!("{} min", figure(ends.as_secs_f64() / 60.0)),
                format!("{} %, {} %", figure(cost.redis_us / took), figure(cost.daemon_us / took)),
            ];
            report.course(head.into_iter().chain(least.map(figure)).chain(counts).collect());
        }
        self.ended_us = now_us(wire)?;
        Ok(())
    }

    /// The first and the last whole minute of the run, by the server's clock.
    pub(super) fn whole_minutes(&self) -> (u64, u64) {
        (self.began_us / MINUTE_US + 1, self.ended_us / MINUTE_US - 1)
    }

    /// Compare the two parts after the stores had filled up with the last two.
    pub(super) fn judge(&self, report: &mut Report) {
        for (n, (name, unit, by, percent)) in SAMPLED.iter().enumerate() {
            let least = |parts: &[[f64; SAMPLED.len()]]| parts.iter().map(|part| part[n]).fold(f64::INFINITY, f64::min);
            let (before, after) = (least(&self.parts[WARMS_UP..WARMS_UP + 2]), least(&self.parts[PARTS - 2..]));
            let most = by.max(before * percent / 100.0);
            let what = format!("{name}: growth from parts 3 and 4 of {PARTS} ({}) to the last two", figure(before));
            report.add(Row::new("soak", what, after - before, unit).value_goal(Bound::AtMost(most)));
        }
    }
}

fn now_us(wire: &mut Wire) -> io::Result<u64> {
    let reply = wire.call(&["TIME"])?;
    let number = |n: usize| {
        super::wire::parts(&reply).get(n).and_then(super::wire::text).and_then(|text| text.parse::<u64>().ok())
    };
    match (number(0), number(1)) {
        (Some(seconds), Some(micros)) => Ok(seconds * 1_000_000 + micros),
        _ => Err(io::Error::other(format!("TIME replied {reply:?}"))),
    }
}

fn sample(wire: &mut Wire, server: &Server, daemon: &Daemon, worker: &Daemon) -> io::Result<[f64; SAMPLED.len()]> {
    const MB: f64 = 1_048_576.0;
    let keyspace = wire.text(&["INFO", "keyspace"])?;
    let of_keys = |name: &str| -> f64 {
        let fields = keyspace.lines().find_map(|line| line.strip_prefix("db0:")).unwrap_or_default().split(',');
        let mut fields = fields.map(|field| field.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
        fields.find_map(|found| found).unwrap_or(0.0)
    };
    Ok([
        daemon.memory()?.0,
        daemon.descriptors()? as f64,
        worker.memory()?.0,
        server.memory()?,
        wire.info("memory", "used_memory")? / MB,
        wire.info("memory", "used_memory_vm_functions")? / MB,
        of_keys("keys"),
        of_keys("expires"),
    ])
}
