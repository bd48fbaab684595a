//! limiters: calls a second of each limiter, admitted and refused, beside a function that makes the same Redis calls, takes the
//! same arguments and replies five constants.

use std::io;
use std::time::Duration;

use super::lab::{Apart, Server};
use super::report::{Report, Row};
use super::wire::{Load, Reply, Wire, parts};
use super::{FLOORS, SLOW};

/// How many callers an admitted load is spread over.
const CALLERS: usize = 1_000;
const PIPELINE: usize = 16;
const SAMPLE: Duration = Duration::from_millis(150);

/// A limiter, as it is called.
struct Limiter {
    name: &'static str,
    /// What its state is, which says which floor is its own.
    state: &'static str,
    /// Limits that are never reached here.
    wide: &'static [&'static str],
    /// Limits that one call exhausts.
    narrow: &'static [&'static str],
}

const LIMITERS: [Limiter; 6] = [
    string("drip_fixed_window", &["1000000", "3600000"], &["1", "3600000"]),
    Limiter { name: "drip_sliding_window", state: "window", wide: &["10000", "3600000"], narrow: &["1", "3600000"] },
    string("drip_sliding_counter", &["1000000", "3600000"], &["1", "3600000"]),
    string("drip_token_bucket", &["1000000", "1", "3600000"], &["1", "1", "3600000"]),
    string("drip_leaky_meter", &["1000000", "1", "3600000"], &["1", "1", "3600000"]),
    string("drip_throttle", &["999999", "1", "3600"], &["0", "1", "3600"]),
];

const fn string(name: &'static str, wide: &'static [&'static str], narrow: &'static [&'static str]) -> Limiter {
    Limiter { name, state: "string", wide, narrow }
}

fn load(function: &str, keys: &[String], limits: &[&str]) -> Load {
    Load::of(keys.iter().map(|key| [&["FCALL", function, "1", key], limits].concat()))
}

impl Limiter {
    /// Every call is let through.
    fn admitted(&self, report: &mut Report, wire: &mut Wire) -> io::Result<()> {
        let keys = |of: &str| (0..CALLERS).map(|n| format!("{of}:{}:{n}", self.name)).collect::<Vec<_>>();
        self.answers(wire, &keys("admitted")[0], self.wide, 0)?;
        let mine = load(self.name, &keys("admitted"), self.wide);
        let floor = load(&format!("floor_{}_admitted", self.state), &keys("floor"), self.wide);
        self.measure(report, wire, "admitted", mine, floor)
    }

    /// Every call is refused: the one before them took all there is.
    fn refused(&self, report: &mut Report, wire: &mut Wire) -> io::Result<()> {
        let [key, floor_key] = ["refused", "floor:refused"].map(|of| format!("{of}:{}", self.name));
        self.answers(wire, &key, self.narrow, 0)?;
        self.answers(wire, &key, self.narrow, 1)?;
        if self.state == "window" {
            wire.call(&["ZADD", &floor_key, "1700000000000001", "1"])?;
        } else {
            wire.call(&["SET", &floor_key, "123456789012345678901234567890123"])?;
        }
        let mine = load(self.name, &[key], self.narrow);
        let floor = load(&format!("floor_{}_refused", self.state), &[floor_key], self.narrow);
        self.measure(report, wire, "refused", mine, floor)
    }

    /// Make sure that a call is admitted (0) or refused (1), so that a row measures what it says.
    fn answers(&self, wire: &mut Wire, key: &str, limits: &[&str], refused: i64) -> io::Result<()> {
        let reply = wire.call(&[&["FCALL", self.name, "1", key], limits].concat())?;
        match parts(&reply).first() {
            Some(Reply::Integer(n)) if *n == refused => Ok(()),
            _ => Err(io::Error::other(format!("{} {limits:?} replied {reply:?}", self.name))),
        }
    }

    fn measure(
        &self,
        report: &mut Report,
        wire: &mut Wire,
        what: &str,
        mut mine: Load,
        mut floor: Load,
    ) -> io::Result<()> {
        let wire = std::cell::RefCell::new(wire);
        report.pairs(
            |pairs| {
                Row::of("limiters", format!("{}, {what}, pipeline {PIPELINE}", self.name), pairs.mine, "/s")
                    .beside("the same calls and no more", pairs.beside.median)
                    .ratio(pairs.ratio)
            },
            || wire.borrow_mut().rate(&mut mine, PIPELINE, SAMPLE),
            || wire.borrow_mut().rate(&mut floor, PIPELINE, SAMPLE),
        )?;
        Ok(())
    }
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let server = Server::start()?;
    server.record(SLOW)?; // a daemon brings the functions
    let mut wire = server.wire()?;
    wire.call(&["FUNCTION", "LOAD", FLOORS])?;
    let _apart = Apart::of(&[&server])?;
    for limiter in &LIMITERS {
        limiter.admitted(report, &mut wire)?;
        limiter.refused(report, &mut wire)?;
    }
    Ok(())
}
