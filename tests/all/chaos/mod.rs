//! What holds under faults: a load is on, something goes wrong, and a checker that sees nothing but the history says whether every promise was
//! kept. `make chaos` makes each fault some times, for ten minutes or so, and prints a table; a short form is among the tests.

mod broken;
mod cast;
mod checker;
mod clients;
mod clock;
mod disk;
mod failover;
mod faults;
mod history;
mod proxy;
mod server;
mod stage;

use std::time::Duration;

use cast::now_us;
use checker::{Judgement, judge};
use faults::{FAULTS, Fault};
use history::{Answer, History};
use stage::Stage;

/// How long the load is on before a fault, and after it.
const BETWEEN: Duration = Duration::from_millis(1_500);

/// Make a fault so many times. Replies what happened, and for how long nothing left after it, at worst; or why it cannot be made here.
fn suffer(Fault(_, setting, make): Fault, times: usize) -> Result<(History, Duration), String> {
    let mut stage = Stage::open(setting)?;
    let mut began = Vec::new();
    for _ in 0..times {
        let before = stage.delivered();
        crate::rig::eventually("jobs leave", || stage.delivered() > before + 50);
        std::thread::sleep(BETWEEN);
        began.push(now_us());
        make(&mut stage);
        std::thread::sleep(BETWEEN);
    }
    let before = stage.delivered();
    crate::rig::eventually("jobs leave again", || stage.delivered() > before + 50);
    let ended = now_us();
    let history = stage.close();
    let left = history.entries.iter().map(|entry| entry.left_us).filter(|at| *at >= began[0] && *at <= ended);
    let times: Vec<u64> = std::iter::once(began[0]).chain(left).collect();
    let outage = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0);
    Ok((history, Duration::from_micros(outage)))
}

/// A row of the table.
fn row(fault: &str, times: usize, history: &History, judgement: &Judgement, outage: Duration) -> String {
    let of = |answer| history.pushes.iter().filter(|push| push.answer == answer).count();
    let Judgement { lost, not_kept, twice, again, intruders, out_of_order, too_fast, too_many } = judgement;
    format!(
        "| {fault} | {times} | {} | {} | {} | {} ({not_kept}) | {} ({again}) | {} | {} | {} | {} | {:.1} s |",
        history.pushes.len(),
        of(Answer::Accepted),
        history.entries.len(),
        lost.len(),
        twice.len(),
        intruders.len(),
        out_of_order.len(),
        too_fast.len(),
        too_many.len(),
        outage.as_secs_f64(),
    )
}

const HEAD: &str = "| fault | times | pushed | accepted | delivered | lost (allowed) | twice (allowed) | rejected, and left | out of order | too fast | too many in flight | longest outage |\n\
                    |---|---|---|---|---|---|---|---|---|---|---|---|";

#[test]
fn whatever_goes_wrong_nothing_is_lost_left_twice_or_too_fast() {
    let fault = FAULTS.iter().find(|fault| fault.0 == "several at once").expect("one of them");
    let (history, outage) = suffer(*fault, 2).expect("it needs nothing");
    let judgement = judge(&history);
    assert!(judgement.is_good(), "{judgement:?}\n{HEAD}\n{}", row(fault.0, 2, &history, &judgement, outage));
    // A history of nothing would be good, too.
    let accepted = history.pushes.iter().filter(|push| push.answer == Answer::Accepted).count();
    assert!(accepted > 200 && judgement.again > 0, "{accepted} accepted, {} left again", judgement.again);
    broken::would_be_seen(&history);
}

/// `make chaos`. `$DRIPD_CHAOS` names one fault, and `$DRIPD_CHAOS_TIMES` says how many times each is made.
#[test]
#[ignore = "it takes ten minutes or more; run `make chaos`"]
fn every_fault_some_times() {
    let only = std::env::var("DRIPD_CHAOS").ok();
    let times = std::env::var("DRIPD_CHAOS_TIMES").map_or(3, |times| times.parse().expect("a number"));
    println!("{HEAD}");
    let mut broken = Vec::new();
    for fault in FAULTS.iter().filter(|fault| only.as_ref().is_none_or(|only| fault.0.contains(only.as_str()))) {
        let (history, outage) = match suffer(*fault, times) {
            Ok(seen) => seen,
            Err(why) => {
                println!("| {} | SKIPPED: {why} |", fault.0);
                continue;
            }
        };
        let judgement = judge(&history);
        println!("{}", row(fault.0, times, &history, &judgement, outage));
        if !judgement.is_good() {
            broken.push((fault.0, judgement));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
