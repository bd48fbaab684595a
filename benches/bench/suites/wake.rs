//! wake: from a push into an idle bucket to the hand of a worker that waits for it.

use std::io;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::JOB;
use super::lab::{Server, keys, queue};
use super::measure::{Over, PAIRS, Pairs, Times};
use super::report::{Bound, Report, Row};
use super::wire::{Wire, parts};
use dripd::store::keys::GROUP;
use dripd::words::policy::Route;

const PUSHES: usize = 100;

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
    std::thread::sleep(Duration::from_micros(fastrand::u64(1_000..3_000))); // whoever waits is waiting again
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

/// How a push reaches whoever waits.
struct Way {
    key: fn(usize) -> String,
    told: mpsc::Receiver<Instant>,
    times: Times,
    /// The p50 of each round, in milliseconds.
    rounds: Vec<f64>,
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let server = Server::start()?;
    let _daemon = server.daemon("[defaults]\nrate = \"1000/s\"\n")?;
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
        report.add(beside(p50(), "through a relay that decides nothing", relayed));
        let p99 = Row::new("wake", "LPUSH to a blocked worker, p99", mine.times.ms(99.0), "ms");
        report.add(p99.beside("LPUSH to BRPOP", direct.times.ms(99.0)));
        Ok(())
    })
}
