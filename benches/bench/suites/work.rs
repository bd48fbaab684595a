//! work: from the push to the acknowledgement, with workers that do nothing else.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::lab::{Server, keys, queue, spent};
use super::measure::{Costs, Over};
use super::report::{Report, Row};
use super::wire::{Load, Wire, parts, text};
use super::{FAST, JOB};
use dripd::model::route::Route;
use dripd::store::keys::GROUP;

const BUCKETS: usize = 10;

/// Take jobs one at a time and acknowledge each, as the contract has it, until it is over.
fn work(mut wire: Wire, name: &str, stream: &str, done: &AtomicUsize, over: &Over) -> io::Result<()> {
    while !over.is_set() {
        let taken =
            wire.call(&["XREADGROUP", "GROUP", GROUP, name, "COUNT", "1", "BLOCK", "50", "STREAMS", stream, ">"])?;
        let entry = parts(&taken).first().and_then(|stream| parts(parts(stream).get(1)?).first());
        let Some(id) = entry.and_then(|entry| text(parts(entry).first()?)) else { continue };
        done.fetch_add(usize::try_from(wire.int(&["XACK", stream, GROUP, id])?).unwrap_or(0), Ordering::Relaxed);
    }
    Ok(())
}

/// Jobs a second from the first push to the last acknowledgement.
fn jobs_a_second(server: &Server, load: &mut Load, stream: &str, workers: usize, jobs: usize) -> io::Result<f64> {
    let (done, over) = (AtomicUsize::new(0), Over::default());
    let mut wire = server.wire()?;
    std::thread::scope(|scope| {
        let _set = over.when_dropped();
        for n in 0..workers {
            let (wire, name, done, over) = (server.wire()?, format!("w{n}"), &done, &over);
            scope.spawn(move || work(wire, &name, stream, done, over));
        }
        let start = Instant::now();
        wire.run(load, jobs, 16)?;
        while done.load(Ordering::Relaxed) < jobs {
            if start.elapsed().as_secs() > 60 {
                return Err(io::Error::other(format!(
                    "{} of {jobs} jobs were done in 60 s",
                    done.load(Ordering::Relaxed)
                )));
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        Ok(jobs as f64 / start.elapsed().as_secs_f64())
    })
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let (mine, bare) = (Server::start()?, Server::start()?);
    let daemons = [mine.daemon(FAST)?];
    let ready = keys().ready(&Route::default());
    bare.wire()?.call(&["XGROUP", "CREATE", &ready, GROUP, "0", "MKSTREAM"])?;
    let queues: Vec<String> = (0..BUCKETS).map(|n| queue(&format!("work-{n}"))).collect();
    for (workers, jobs) in [(1, 5_000), (10, 10_000), (100, 10_000)] {
        let mut pushes = Load::of(queues.iter().map(|queue| vec!["LPUSH", queue, JOB]));
        let mut adds = Load::of([vec!["XADD", ready.as_str(), "*", "bucket", "work-0", "job", JOB]].into_iter());
        let costs = Costs::default();
        report.pairs(
            |pairs| {
                Row::of("work", format!("push to acknowledgement, {workers} workers"), pairs.mine, "/s")
                    .beside("XADD, XREADGROUP, XACK alone", pairs.beside.median)
                    .ratio(pairs.ratio)
                    .cost(costs.median())
            },
            || {
                let before = spent(&mine, &daemons)?;
                let rate = jobs_a_second(&mine, &mut pushes, &ready, workers, jobs)?;
                costs.add((spent(&mine, &daemons)? - before).a_job(jobs));
                Ok(rate)
            },
            || jobs_a_second(&bare, &mut adds, &ready, workers, jobs),
        )?;
    }
    Ok(())
}
