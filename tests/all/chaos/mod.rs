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
mod line;
mod nodes;
mod players;
mod primaries;
mod proxy;
mod server;
mod stage;

use std::time::{Duration, Instant};

use cast::now_us;
use checker::{Judgement, judge_all};
use faults::{FAULTS, Fault};
use history::{Answer, History};
use stage::Stage;

/// How long the load is on before a fault, and after it.
const BETWEEN: Duration = Duration::from_secs(1);

/// Make a fault so many times. Replies what happened in each partition, and for how long nothing left in one of them after it, at worst; or
/// why it cannot be made here.
fn suffer(Fault(_, setting, make): Fault, times: usize) -> Result<(Vec<History>, Duration), String> {
    let mut stage = Stage::open(setting)?;
    let mut began = Vec::new();
    for _ in 0..times {
        stage.go_on(50);
        std::thread::sleep(BETWEEN);
        began.push(now_us());
        make(&mut stage);
        std::thread::sleep(BETWEEN);
    }
    stage.go_on(50);
    let ended = now_us();
    let histories = stage.close();
    let outage = histories.iter().map(|history| outage_us(history, began[0], ended)).max().unwrap_or(0);
    Ok((histories, Duration::from_micros(outage)))
}

/// For how long nothing left between two moments, at worst.
fn outage_us(history: &History, began: u64, ended: u64) -> u64 {
    let left = history.entries.iter().map(|entry| entry.left_us).filter(|at| *at >= began && *at <= ended);
    let times: Vec<u64> = std::iter::once(began).chain(left).collect();
    times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0)
}

/// A row of the table.
fn row(fault: &str, times: usize, histories: &[History], judgement: &Judgement, outage: Duration) -> String {
    let pushed: usize = histories.iter().map(|history| history.pushes.len()).sum();
    let delivered: usize = histories.iter().map(|history| history.entries.len()).sum();
    let Judgement { lost, not_kept, twice, again, intruders, out_of_order, too_fast, too_many } = judgement;
    format!(
        "| {fault} | {times} | {pushed} | {} | {delivered} | {} ({not_kept}) | {} ({again}) | {} | {} | {} | {} | {:.1} s |",
        accepted(histories),
        lost.len(),
        twice.len(),
        intruders.len(),
        out_of_order.len(),
        too_fast.len(),
        too_many.len(),
        outage.as_secs_f64(),
    )
}

fn accepted(histories: &[History]) -> usize {
    let pushes = histories.iter().flat_map(|history| &history.pushes);
    pushes.filter(|push| push.answer == Answer::Accepted).count()
}

const HEAD: &str = "| fault | times | pushed | accepted | delivered | lost (allowed) | twice (allowed) | rejected, and left | out of order | too fast | too many in flight | longest outage |\n\
                    |---|---|---|---|---|---|---|---|---|---|---|---|";

/// The short form of a fault: everything is promised, and whatever was broken besides would be seen.
fn suffer_well(fault: &str, times: usize) {
    let fault = FAULTS.iter().find(|one| one.0 == fault).expect("one of them");
    let (histories, outage) = suffer(*fault, times).expect("it needs nothing");
    let judgement = judge_all(&histories);
    assert!(judgement.is_good(), "{judgement:?}\n{HEAD}\n{}", row(fault.0, times, &histories, &judgement, outage));
    // A history of nothing would be good, too.
    let accepted = accepted(&histories);
    assert!(accepted > 200 && judgement.again > 0, "{accepted} accepted, {} left again", judgement.again);
    histories.iter().for_each(broken::would_be_seen);
}

#[test]
fn whatever_goes_wrong_nothing_is_lost_left_twice_or_too_fast() {
    suffer_well("several at once", 2);
}

#[test]
fn whatever_goes_wrong_in_a_cluster_nothing_is_lost_left_twice_or_too_fast() {
    suffer_well("a loaded slot is moved and comes back", 1);
}

/// `make chaos`. `$DRIPD_CHAOS` names one fault, and `$DRIPD_CHAOS_TIMES` says how many times each is made.
#[test]
#[ignore = "it takes ten minutes or more; run `make chaos`"]
fn every_fault_some_times() {
    let only = std::env::var("DRIPD_CHAOS").ok();
    let times = std::env::var("DRIPD_CHAOS_TIMES").map_or(3, |times| times.parse().expect("a number"));
    println!("{HEAD}");
    let (mut broken, mut made) = (Vec::new(), 0);
    for fault in FAULTS.iter().filter(|fault| only.as_ref().is_none_or(|only| fault.0.contains(only.as_str()))) {
        let since = Instant::now();
        let (histories, outage) = match suffer(*fault, times) {
            Ok(seen) => seen,
            Err(why) => {
                println!("| {} | SKIPPED: {why} |", fault.0);
                continue;
            }
        };
        made += 1;
        let judgement = judge_all(&histories);
        println!("{}", row(fault.0, times, &histories, &judgement, outage));
        eprintln!("{}: {:.0} s", fault.0, since.elapsed().as_secs_f64());
        if !judgement.is_good() {
            broken.push((fault.0, judgement));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(made > 0, "no fault was made: that proves nothing");
}
