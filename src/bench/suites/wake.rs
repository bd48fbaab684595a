//! wake: from a push into an idle bucket to the hand of a worker that waits for it.

use std::io;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::JOB;
use crate::bench::lab::{Server, keys, queue};
use crate::bench::measure::{Over, PAIRS, Pairs, Times};
use crate::bench::report::{Bound, Report, Row};
use crate::bench::wire::{Wire, parts};
use crate::policy::Route;
use crate::store::keys::GROUP;

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

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let server = Server::start()?;
    let _daemon = server.daemon("[defaults]\nrate = \"1000/s\"\n")?;
    let ready = keys().ready(&Route::default());
    let (worker, direct) = (mpsc::channel(), mpsc::channel());
    let mut wire = server.wire()?;
    let over = &Over::default();
    std::thread::scope(|scope| {
        let _set = over.when_dropped();
        let (takes, pops) = (server.wire()?, server.wire()?);
        let (tell_worker, tell_direct) = (worker.0, direct.0);
        scope.spawn(move || {
            let words =
                ["XREADGROUP", "GROUP", GROUP, "w", "COUNT", "1", "BLOCK", "100", "NOACK", "STREAMS", &ready, ">"];
            wait_again_and_again(takes, &words, &tell_worker, over)
        });
        scope.spawn(move || wait_again_and_again(pops, &["BRPOP", "direct", "0.1"], &tell_direct, over));
        let (mut mine, mut beside, mut pairs) = (Times::new(), Times::new(), Vec::new());
        for round in 0..=PAIRS {
            let (mut woken, mut popped) = (Times::new(), Times::new());
            for n in 0..PUSHES {
                woken.add(time(&mut wire, &queue(&format!("wake-{round}-{n}")), &worker.1)?);
                popped.add(time(&mut wire, "direct", &direct.1)?);
            }
            if round > 0 {
                pairs.push((woken.ms(50.0), popped.ms(50.0)));
                mine.join(&woken);
                beside.join(&popped);
            }
        }
        let pairs = Pairs::of(&pairs);
        report.add(
            Row::new("wake", "LPUSH to a blocked worker, p50", mine.ms(50.0), "ms")
                .beside("LPUSH to BRPOP", beside.ms(50.0))
                .ratio(pairs.ratio)
                .ratio_goal(Bound::AtMost(3.0)),
        );
        report.add(Row::new("wake", "the same, p99", mine.ms(99.0), "ms").beside("LPUSH to BRPOP", beside.ms(99.0)));
        Ok(())
    })
}
