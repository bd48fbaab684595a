//! wake: from a push into an idle bucket to the hand of a worker that waits for it, and what such a push costs Redis.

use std::cell::RefCell;
use std::io;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::JOB;
use super::lab::{Server, keys, queue, spent};
use super::measure::{Cost, Over, PAIRS, Pairs, Times};
use super::report::{Bound, Report, Row};
use super::wire::{Wire, parts};
use dripd::model::route::Route;
use dripd::store::keys::GROUP;

const POLICIES: &str = "[defaults]\nrate = \"1000/s\"\n";

/// Pushes of a round.
const PUSHES: usize = 100;

/// How far pushes are apart in the rows that say so: three intervals of their buckets.
const GAP: Duration = Duration::from_millis(3);

/// How long the calls of one push may take, the end of the interval included.
const SETTLE: Duration = Duration::from_millis(10);

/// Send the same command again and again, and tell when each answer with something in it was there.
fn wait_again_and_again(mut wire: Wire, words: &[&str], told: &mpsc::Sender<Instant>, over: &Over) -> io::Result<()> {
    while !over.is_set() {
        let reply = wire.call(words)?;
        if !parts(&reply).is_empty() {
            told.send(Instant::now()).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

/// How long it takes from a push until the waiting one is told.
fn time(wire: &mut Wire, key: &str, told: &mpsc::Receiver<Instant>) -> io::Result<Duration> {
    let start = Instant::now();
    wire.call(&["LPUSH", key, JOB])?;
    let at = told.recv_timeout(Duration::from_secs(10)).map_err(io::Error::other)?;
    Ok(at.duration_since(start))
}

/// What a daemon cannot do without, and nothing else: be told of a push, and add an entry to a stream.
fn relay(mut told: Wire, mut adds: Wire, over: &Over) -> io::Result<()> {
    while !over.is_set() {
        if told.discard()? {
            adds.call(&["XADD", "relayed", "*", "job", JOB])?;
        }
    }
    Ok(())
}

/// The p50 of pushes that are [`GAP`] apart, in milliseconds.
fn spaced(wire: &mut Wire, told: &mpsc::Receiver<Instant>, key: impl Fn(usize) -> String) -> io::Result<f64> {
    let mut times = Times::new();
    for n in 0..PUSHES {
        let next = Instant::now() + GAP;
        times.add(time(wire, &key(n), told)?);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(times.ms(50.0))
}

/// How a push reaches whoever waits.
struct Way {
    key: fn(usize) -> String,
    told: mpsc::Receiver<Instant>,
    times: Times,
    /// The p50 of each round, in milliseconds.
    rounds: Vec<f64>,
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    times(report)?;
    calls(report)
}

/// Calls of functions, and processor time, of one push into an idle bucket: of many, less those of a daemon that has nothing to
/// do for as long. No worker waits, so nothing else runs.
fn calls(report: &mut Report) -> io::Result<()> {
    let server = Server::start()?;
    let daemons = [server.daemon(POLICIES)?];
    let mut wire = server.wire()?;
    let mut stretch = |key: Option<fn(usize) -> String>| -> io::Result<(f64, Cost)> {
        let before = spent(&server, &daemons)?;
        wire.call(&["CONFIG", "RESETSTAT"])?;
        for n in 0..PUSHES {
            if let Some(key) = key {
                wire.call(&["LPUSH", &key(n), JOB])?;
            }
            std::thread::sleep(SETTLE);
        }
        let cost = spent(&server, &daemons)? - before;
        Ok((wire.cost("fcall")?.0, cost))
    };
    stretch(Some(|n| queue(&format!("first-{n}"))))?; // the first ones do not count
    let (idle_calls, idle) = stretch(None)?;
    let (calls, cost) = stretch(Some(|n| queue(&format!("calls-{n}"))))?;
    // What an idle daemon calls is not the same number in each second.
    let goal = Bound::AtMost(2.0 + 0.05);
    report.add(
        Row::new("wake", "FCALLs of one LPUSH into an idle bucket", (calls - idle_calls) / PUSHES as f64, "")
            .cost((cost - idle).a_job(PUSHES))
            .value_goal(goal),
    );
    Ok(())
}

fn times(report: &mut Report) -> io::Result<()> {
    let server = Server::start()?;
    let _daemon = server.daemon(POLICIES)?;
    let ready = keys().ready(&Route::default());
    let (mut wire, over) = (server.wire()?, &Over::default());
    wire.call(&["XGROUP", "CREATE", "relayed", GROUP, "$", "MKSTREAM"])?;
    let mut watch = server.wire()?;
    watch.track("relay:")?;
    while watch.discard()? {} // its own replies
    let take =
        |stream| ["XREADGROUP", "GROUP", GROUP, "w", "COUNT", "1", "BLOCK", "100", "NOACK", "STREAMS", stream, ">"];
    std::thread::scope(|scope| {
        let _set = over.when_dropped();
        let way = |words: Vec<String>, key| -> io::Result<Way> {
            let (waits, (tell, told)) = (server.wire()?, mpsc::channel());
            scope.spawn(move || {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                wait_again_and_again(waits, &words, &tell, over)
            });
            Ok(Way { key, told, times: Times::new(), rounds: Vec::new() })
        };
        let mut ways = [
            way(take(&ready).map(str::to_owned).to_vec(), |n| queue(&format!("wake-{n}")))?,
            way(["BRPOP", "direct", "0.1"].map(str::to_owned).to_vec(), |_| "direct".to_owned())?,
            way(take("relayed").map(str::to_owned).to_vec(), |n| format!("relay:{n}"))?,
        ];
        let adds = server.wire()?;
        scope.spawn(move || relay(watch, adds, over));
        for round in 0..=PAIRS {
            let mut of_round = [Times::new(), Times::new(), Times::new()];
            for n in 0..PUSHES {
                for (way, times) in ways.iter().zip(&mut of_round) {
                    // Whoever waits is waiting again by then.
                    std::thread::sleep(Duration::from_micros(fastrand::u64(1_000..3_000)));
                    times.add(time(&mut wire, &(way.key)(round * PUSHES + n), &way.told)?);
                }
            }
            for (way, times) in ways.iter_mut().zip(&of_round).filter(|_| round > 0) {
                way.rounds.push(times.ms(50.0));
                way.times.join(times);
            }
        }
        let [mine, direct, relayed] = &ways;
        let beside = |row: Row, name: &str, other: &Way| {
            let pairs: Vec<_> = mine.rounds.iter().copied().zip(other.rounds.iter().copied()).collect();
            row.beside(name, other.times.ms(50.0)).ratio(Pairs::of(&pairs).ratio)
        };
        let p50 = || Row::new("wake", "LPUSH to a blocked worker, p50", mine.times.ms(50.0), "ms");
        report.add(beside(p50(), "LPUSH to BRPOP", direct).ratio_goal(Bound::AtMost(3.0)));
        report.add(beside(p50(), "through a relay that decides nothing", relayed).ratio_goal(Bound::AtMost(1.6)));
        let p99 = Row::new("wake", "LPUSH to a blocked worker, p99", mine.times.ms(99.0), "ms");
        report.add(p99.beside("LPUSH to BRPOP", direct.times.ms(99.0)));
        let mut round = 0;
        let (wire, told) = (RefCell::new(&mut wire), &mine.told);
        report.pairs(
            |pairs| {
                Row::of("wake", "LPUSH every 3 ms into one bucket at 1,000/s, p50", pairs.mine, "ms")
                    .beside("into different buckets", pairs.beside.median)
                    .ratio(pairs.ratio)
                    .ratio_goal(Bound::AtMost(1.5))
            },
            || spaced(&mut wire.borrow_mut(), told, |_| queue("one")),
            || {
                round += 1;
                spaced(&mut wire.borrow_mut(), told, |n| queue(&format!("different-{round}-{n}")))
            },
        )?;
        Ok(())
    })
}
