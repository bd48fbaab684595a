//! What holds under faults: a load is on, something goes wrong, and a checker that sees nothing but the history says whether every promise was
//! kept. `make chaos` makes each fault some times, for ten minutes or so, and prints a table; a short form is among the tests.

mod checker;
mod faults;
mod history;
mod stage;

use std::time::Duration;

use checker::{Judgement, judge};
use faults::{FAULTS, Fault};
use history::{Answer, History};
use stage::{Stage, now_us};

/// How long the load is on before a fault, and after it.
const BETWEEN: Duration = Duration::from_millis(1_500);

/// Make a fault so many times. Replies what happened, and for how long nothing left after it, at worst.
fn suffer((_, make): Fault, times: usize) -> (History, Duration) {
    let mut stage = Stage::open();
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
    let times: Vec<u64> = left.collect();
    let outage = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0);
    (history, Duration::from_micros(outage))
}

/// A row of the table.
fn row(fault: &str, times: usize, history: &History, judgement: &Judgement, outage: Duration) -> String {
    let of = |answer| history.pushes.iter().filter(|push| push.answer == answer).count();
    let Judgement { lost, twice, again, intruders, out_of_order, too_fast, too_many } = judgement;
    format!(
        "| {fault} | {times} | {} | {} | {} | {} | {} ({again}) | {} | {} | {} | {} | {:.1} s |",
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

const HEAD: &str = "| fault | times | pushed | accepted | delivered | lost | twice (allowed) | rejected, and left | out of order | too fast | too many in flight | longest outage |\n\
                    |---|---|---|---|---|---|---|---|---|---|---|---|";

#[test]
fn whatever_goes_wrong_nothing_is_lost_left_twice_or_too_fast() {
    let fault = FAULTS.iter().find(|(name, _)| *name == "several at once").expect("one of them");
    let (history, outage) = suffer(*fault, 2);
    let judgement = judge(&history);
    assert!(judgement.is_good(), "{judgement:?}\n{HEAD}\n{}", row(fault.0, 2, &history, &judgement, outage));
    // A history of nothing would be good, too.
    let accepted = history.pushes.iter().filter(|push| push.answer == Answer::Accepted).count();
    assert!(accepted > 200 && judgement.again > 0, "{accepted} accepted, {} left again", judgement.again);
}

/// `make chaos`. `$DRIPD_CHAOS` names one fault, and `$DRIPD_CHAOS_TIMES` says how many times each is made.
#[test]
#[ignore = "it takes ten minutes; run `make chaos`"]
fn every_fault_some_times() {
    let only = std::env::var("DRIPD_CHAOS").ok();
    let times = std::env::var("DRIPD_CHAOS_TIMES").map_or(5, |times| times.parse().expect("a number"));
    println!("{HEAD}");
    let mut broken = Vec::new();
    for fault in FAULTS.iter().filter(|(name, _)| only.as_ref().is_none_or(|only| name.contains(only.as_str()))) {
        let (history, outage) = suffer(*fault, times);
        let judgement = judge(&history);
        println!("{}", row(fault.0, times, &history, &judgement, outage));
        if !judgement.is_good() {
            broken.push((fault.0, judgement));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
