//! idle: what a daemon costs that has nothing to do.

use std::io;
use std::time::Duration;

use super::SLOW;
use super::lab::{Server, wait_for_quiet};
use super::memory::due_in_an_hour;
use super::report::{Bound, Report, Row};

const LASTING: Duration = Duration::from_secs(10);

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let servers = [("nothing to do", Server::start()?), ("100,000 buckets due in an hour", due_in_an_hour(100_000)?)];
    let daemons = servers.iter().map(|(_, server)| server.daemon(SLOW)).collect::<io::Result<Vec<_>>>()?;
    servers.iter().try_for_each(|(_, server)| wait_for_quiet(&mut server.wire()?))?;
    let look = || -> io::Result<Vec<(f64, u64)>> {
        let each = servers.iter().zip(&daemons);
        each.map(|((_, server), daemon)| {
            Ok((server.wire()?.info("stats", "total_commands_processed")?, daemon.ticks()?))
        })
        .collect()
    };
    let before = look()?;
    std::thread::sleep(LASTING);
    let after = look()?;
    for (((state, _), (calls, ticks)), (calls_after, ticks_after)) in servers.iter().zip(before).zip(after) {
        // One of them is the INFO of the second look.
        let calls = (calls_after - calls - 1.0) / LASTING.as_secs_f64();
        report.add(Row::new("idle", format!("{state}: commands"), calls, "/s").value_goal(Bound::AtMost(2.0)));
        let ticks = (ticks_after - ticks) as f64;
        report.add(Row::new("idle", format!("{state}: CPU in 10 s"), ticks, "ticks").value_goal(Bound::AtMost(2.0)));
    }
    Ok(())
}
