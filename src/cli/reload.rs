//! `dripd reload`: have the daemons of this machine read their configuration again.

use super::{Exit, Failure, say};
use crate::config::Config;
use crate::system::control::{self, Answer, Reload};

/// Have every daemon of this machine that reads the same configuration read it again.
pub(super) async fn run(config: &Config) -> Result<Exit, Failure> {
    let source = config.source();
    let answers = control::ask_all(&Reload { source: source.clone() }).await;
    let (mut live, mut others) = (0, Vec::new());
    for answer in answers {
        match answer {
            Answer::Live => live += 1,
            Answer::Refused { why } => return Err(Failure::new(Exit::BadConfig, why)),
            Answer::Failed { why } => return Err(Failure::new(Exit::Failed, why)),
            Answer::NotMine { pid, source } => others.push(format!("process {pid} reads {source}")),
        }
    }
    if live > 0 {
        say(&format!("{source}: live"));
        return Ok(Exit::Done);
    }
    let others = if others.is_empty() { "none runs".to_owned() } else { others.join(", ") };
    Err(Failure::new(
        Exit::Failed,
        format!("no dripd on this machine reads {source}: {others}; name the file with --config"),
    ))
}
