//! profile: where the microseconds of a job go in Redis, from what its own counters say of each command that the functions call, and
//! from what is left when something is taken away: the decisions, the append-only file, the daemon.

use std::io;

use super::drain::drain;
use super::fill::{ready, schedule};
use super::in_redis::{DRAIN, drain_once, emptied};
use super::lab::{Server, queue, spent};
use super::measure::{PAIRS, Spread};
use super::report::{Report, Row};
use super::wire::Wire;
use super::{FLOORS, SLOW};

/// Buckets with a job each, due at once.
const BUCKETS: usize = 100_000;

/// A part of what a job takes.
struct Part {
    what: &'static str,
    /// Any design that keeps queues, due times and a ready stream in Redis takes it.
    is_needed: bool,
    /// In one run, out of what was measured.
    of: fn(&Run) -> f64,
}

/// From the bottom of the pile to its top.
const PARTS: [Part; 8] = [
    Part { what: "add the job to the ready stream", is_needed: true, of: |run| run.alone.of(&["xadd"]) },
    Part {
        what: "read the job and take it from its queue",
        is_needed: true,
        of: |run| run.alone.of(&["llen", "lindex", "rpop", "ltrim", "del"]),
    },
    Part {
        what: "find who is due, and set the next due",
        is_needed: true,
        of: |run| run.alone.of(&["zrange", "zadd", "zrem"]),
    },
    Part {
        what: "a function, and its calls of these commands",
        is_needed: true,
        of: |run| run.bare.fcall - run.bare.nested(),
    },
    Part {
        what: "dripd's decisions, and what else it reads",
        is_needed: false,
        of: |run| run.alone.fcall - run.alone.of(&NEEDED) - (run.bare.fcall - run.bare.nested()),
    },
    Part {
        what: "around the calls: report the changed queues",
        is_needed: false,
        of: |run| run.alone.redis - run.alone.fcall,
    },
    Part { what: "the append-only file", is_needed: true, of: |run| run.durable.redis - run.alone.redis },
    Part {
        what: "the daemon: looks at what changed, its start",
        is_needed: false,
        of: |run| run.running - run.durable.redis,
    },
];

/// The commands that a bare function calls too.
const NEEDED: [&str; 9] = ["xadd", "llen", "lindex", "rpop", "ltrim", "del", "zrange", "zadd", "zrem"];

/// What one job took, in microseconds of Redis.
#[derive(Debug, Default)]
struct Taken {
    /// Each command inside of the functions, by name.
    commands: Vec<(String, f64)>,
    /// The calls of the functions, those commands included.
    fcall: f64,
    /// Processor time of Redis in all.
    redis: f64,
}

impl Taken {
    fn of(&self, names: &[&str]) -> f64 {
        self.commands.iter().filter(|(name, _)| names.contains(&name.as_str())).map(|(_, us)| us).sum()
    }

    fn nested(&self) -> f64 {
        self.commands.iter().map(|(_, us)| us).sum()
    }
}

/// One measurement of everything.
struct Run {
    /// By a function that makes the same calls and decides nothing; without an append-only file, as the next.
    bare: Taken,
    /// By dripd's functions, called one after the other.
    alone: Taken,
    /// The same with an append-only file.
    durable: Taken,
    /// With a daemon that calls them: processor time of Redis.
    running: f64,
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let (forgetful, durable) = (Server::start_with(&["--appendonly", "no"])?, Server::start()?);
    let mut runs = Vec::new();
    for round in 0..=PAIRS {
        let run = Run {
            bare: taken(&forgetful, &["floor_drain", "100"])?,
            alone: taken(&forgetful, &DRAIN)?,
            durable: taken(&durable, &DRAIN)?,
            running: in_the_system(&durable)?,
        };
        if round > 0 {
            runs.push(run);
        }
    }
    let spread = |of: &dyn Fn(&Run) -> f64| Spread::of(&runs.iter().map(of).collect::<Vec<_>>());
    for part in PARTS {
        let spread = spread(&part.of);
        report.point("profile", part.what, spread.median, f64::from(u8::from(part.is_needed)));
        report.add(Row::of("profile", format!("a job in Redis: {}", part.what), spread, "us"));
    }
    let alone = spread(&|run| run.durable.redis).median;
    let row = Row::of("profile", "a job in Redis, in the running system", spread(&|run| run.running), "us");
    report.add(row.beside("the functions alone", alone));
    Ok(())
}

/// What a job takes when these buckets are drained by a function, a hundred a call, while the changed queues are reported to a
/// connection.
fn taken(server: &Server, function: &[&str; 2]) -> io::Result<Taken> {
    let mut wire = emptied(server, SLOW)?;
    wire.call(&["FUNCTION", "LOAD", "REPLACE", FLOORS])?;
    schedule(&mut wire, "profile", BUCKETS)?;
    let mut listener = server.wire()?;
    listener.track(&queue(""))?;
    wire.call(&["CONFIG", "RESETSTAT"])?;
    let before = spent(server, &[])?;
    while wire.int(&["XLEN", &ready()])? < BUCKETS as i64 {
        drain_once(&mut wire, function)?;
    }
    let redis = (spent(server, &[])? - before).a_job(BUCKETS).redis_us;
    let commands = nested(&mut wire)?;
    Ok(Taken { commands, fcall: wire.cost("fcall")?.1 / BUCKETS as f64, redis })
}

/// What each command took that is not one of the bench's own, in microseconds a job.
fn nested(wire: &mut Wire) -> io::Result<Vec<(String, f64)>> {
    let text = wire.text(&["INFO", "commandstats"])?;
    let names = text.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':')).map(|(name, _)| name);
    let own = |name: &&str| !name.contains('|') && !["fcall", "xlen", "info", "hello", "ping"].contains(name);
    names.filter(own).map(|name| Ok((name.to_owned(), wire.cost(name)?.1 / BUCKETS as f64))).collect()
}

/// Processor time of Redis for a job, where a daemon finds the same buckets due.
fn in_the_system(server: &Server) -> io::Result<f64> {
    schedule(&mut emptied(server, SLOW)?, "profile", BUCKETS)?;
    Ok(drain(server, SLOW, BUCKETS)?.cost().redis_us)
}
