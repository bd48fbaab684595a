//! Asking before something that cannot be taken back.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use super::{Exit, Failure};

/// What was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// By `--yes`, before anybody could ask.
    YesAtOnce,
    /// After a question, which may have taken any time.
    Yes,
    /// Anything but a yes, or the end of the input.
    No,
}

/// Ask whether to go on, unless `--yes` says so. `count` names what is at stake, for who cannot be asked.
pub(super) fn ask(count: &str, question: &str, yes: bool) -> Result<Answer, Failure> {
    if yes {
        return Ok(Answer::YesAtOnce);
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let why = format!("{count}: there is no terminal to ask at, so say --yes to go on");
        return Err(Failure::new(Exit::Usage, why));
    }
    let mut stderr = std::io::stderr();
    write!(stderr, "{question} [y/N] ")?;
    stderr.flush()?;
    let mut line = String::new();
    stdin.lock().read_line(&mut line)?;
    let is_yes = matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    Ok(if is_yes { Answer::Yes } else { Answer::No })
}
