//! Whoever runs the system: a command every two seconds, as a person or a script would give them.

use std::io;
use std::time::Duration;

use super::RELOADED;
use super::lab::Daemon;
use super::measure::Over;

const EVERY: Duration = Duration::from_secs(2);

const COMMANDS: [&[&str]; 18] = [
    &["set", "operated:0", "rate=7/s", "--reason", "soak"],
    &["status", "--json"],
    &["explain", "operated:0", "--json"],
    &["unset", "operated:0"],
    &["pause", "operated:1", "--for", "3s"],
    &["settings", "--json"],
    &["reload"],
    &["set", "operated:*", "capacity=40", "--for", "10s"],
    &["slow", "operated:0", "1s"],
    &["status", "exact:0"],
    &["what-if", "operated:0", "rate=1/s"],
    &["purge", "operated:1", "--yes"],
    &["dead", "list"],
    &["dead", "drop", "--bucket", "dropped:*", "--yes"],
    &["dead", "retry", "--yes"],
    &["explain", "tree:a", "--budget"],
    &["set", "tree:c", "weight=2", "--budget", "--for", "5s"],
    &["check"],
];

/// Give a command. Any exit code but these is an error that says all that it said.
pub(super) fn call(daemon: &Daemon, args: &[&str], good: &[i32]) -> io::Result<()> {
    let said = daemon.command(args).output()?;
    if said.status.code().is_some_and(|code| good.contains(&code)) {
        return Ok(());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Err(io::Error::other(format!("dripd {args:?}: {}: {}{}", said.status, text(&said.stdout), text(&said.stderr))))
}

/// One command after the other until it is over. A reload finds another file each time.
pub(super) fn run(daemon: &Daemon, over: &Over) -> io::Result<()> {
    let mut reloads = 0;
    for command in COMMANDS.iter().cycle() {
        std::thread::sleep(EVERY);
        if over.is_set() {
            break;
        }
        if *command == ["reload"] {
            daemon.rewrite(RELOADED[reloads % 2], RELOADED[(reloads + 1) % 2])?;
            reloads += 1;
        }
        call(daemon, command, &[0])?;
    }
    Ok(())
}
