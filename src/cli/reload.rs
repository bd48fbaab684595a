//! `dripd reload`: have the daemons of this machine read their configuration again.

use super::{Exit, Failure, say};
use crate::config::Config;
use crate::system::control::{self, Answer, Reload};
use crate::system::processes::{self, Running};

/// The most daemons that are named one by one.
const MOST_NAMED: usize = 5;

/// Have every daemon of this machine that reads the same configuration read it again.
pub(super) async fn run(config: &Config) -> Result<Exit, Failure> {
    let source = config.source();
    let (answers, passed_over) = control::ask_all(&Reload { source: source.clone() }).await;
    let (mut live, mut others, mut answered) = (0, passed_over, Vec::new());
    for answer in answers {
        match answer {
            Answer::Live => live += 1,
            Answer::Refused { why } => return Err(Failure::of_lines(Exit::BadConfig, why)),
            Answer::Failed { why } => return Err(Failure::new(Exit::Failed, why)),
            Answer::Waits { why } => return Err(Failure::new(Exit::Unavailable, why)),
            Answer::NotMine { pid, source } => {
                others.push(format!("process {pid} reads {source}: name that file with --config"));
                answered.push(pid);
            }
        }
    }
    if live > 0 {
        say(&format!("{source}: live"));
        return Ok(Exit::Done);
    }
    let running = processes::daemons();
    others.extend(running.iter().filter(|daemon| !answered.contains(&daemon.pid)).map(out_of_reach));
    Err(Failure::new(
        Exit::Failed,
        format!("no dripd that can be asked from here reads {source}: {}", in_short(others)),
    ))
}

/// The reason why a daemon could not be asked, and the command that reaches it.
fn out_of_reach(daemon: &Running) -> String {
    let Running { pid, user, unit } = daemon;
    match (unit, processes::is_mine(daemon)) {
        (Some(unit), _) => format!("process {pid} is a service: systemctl reload {unit}"),
        (None, false) => format!("process {pid} is run by {user}: as that user or as root, kill -HUP {pid}"),
        (None, true) => {
            format!("process {pid} listens in another $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR: kill -HUP {pid}")
        }
    }
}

fn in_short(mut daemons: Vec<String>) -> String {
    if daemons.is_empty() {
        let seen = if processes::are_all_seen() {
            "none runs"
        } else {
            "none is seen, and this user does not see all processes"
        };
        return format!("{seen}; start one with `dripd run`");
    }
    let more = daemons.len().saturating_sub(MOST_NAMED);
    daemons.truncate(MOST_NAMED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    daemons.join("; ") + &more
}
