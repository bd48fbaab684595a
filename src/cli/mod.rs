//! The command line: the commands, a file for each family, and the exit codes that tell their outcomes.

mod acl;
mod args;
mod change;
mod charts;
mod check;
mod columns;
mod dead;
mod demo;
mod explain;
mod failure;
mod functions;
mod healthcheck;
mod help;
mod into_file;
mod job;
mod limit;
mod log;
mod manual;
mod partition;
mod pause;
mod purge;
mod push;
mod record;
mod reload;
mod run;
mod screen;
mod set;
mod settings;
mod simulate;
mod slow;
mod status;
mod told;
mod top;
mod work;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use failure::Failure;
use help::Notes;

use crate::config::{Config, Environment};
use crate::model::escape;
use crate::model::partitioning::ranges;
use crate::operate::pause::Direction;
use crate::store::acl::Role;
use crate::store::{Address, Layout, Partitions, StoreError};

/// How long a command tries to reach Redis.
const TRY_FOR: Duration = Duration::from_secs(5);

/// Turns bursts into a steady drip: per-key queues in Redis, emptied at a constant rate.
#[derive(Debug, Parser)]
#[command(name = "dripd", version, max_term_width = 100)]
struct Cli {
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help = "The configuration file [default: $DRIPD_CONFIG, ./config.toml, /etc/dripd/config.toml]"
    )]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon
    Run(run::Run),
    /// Put jobs into buckets
    Push(push::Push),
    /// Take jobs and run them
    Work(work::Work),
    /// Say how things stand, with everything or with one bucket
    Status(status::Show),
    /// Watch the buckets that come first, and pause them, on the whole terminal
    Top(top::Show),
    /// Look at a submitted job by its id, or take it back
    Job(job::Job),
    /// Throw away what waits in a bucket
    Purge(purge::Purge),
    /// Look at jobs that were given up, put them back, or drop them
    Dead(dead::Dead),
    /// Ask a limiter whether something may be done now; needs no daemon
    Limit(limit::Limit),
    /// Set keys of a policy at run time, over what the file says
    Set(set::Set),
    /// Take keys that were set back to what the file says
    Unset(set::Unset),
    /// Let nothing leave a bucket; it takes jobs until it is full
    Pause(pause::Pause),
    /// Let a paused bucket go on
    Resume(pause::Resume),
    /// Slow down a bucket or a budget for a while, as its other side asks, or end that
    Slow(slow::Slow),
    /// Say how much more the other side of a bucket or a budget lets through, or forget that
    Told(told::Told),
    /// Take nothing into a bucket; what is there goes on
    Close(pause::Close),
    /// Take jobs into a closed bucket again
    Open(pause::Open),
    /// List what is set, paused or closed at run time: since when, until when, by whom, why
    Settings(settings::List),
    /// Say why a bucket waits, and where each number comes from
    Explain(explain::Explain),
    /// Say what a change or a push would do to the jobs that wait
    WhatIf(explain::WhatIf),
    /// Say what would become of traffic under a configuration, before it goes live
    Simulate(simulate::Simulate),
    /// Write what comes into the buckets of a running system as a trace, for `simulate`
    Record(record::Record),
    /// Have a running daemon read its configuration again
    Reload,
    /// Ask the daemon of this machine or container how it is
    Healthcheck(healthcheck::Healthcheck),
    /// Check a configuration and say what it means
    Check(check::Check),
    /// Print the Lua function library
    Functions,
    /// Print the rights in Redis that a user of a role needs, and no others
    Acl(acl::Acl),
    /// Say in which partition a bucket lives, where keys are cut into several
    Partition(partition::Show),
    /// Print what a shell needs to complete commands and options
    Completions(manual::Completions),
    /// Write the man pages into a directory
    #[command(hide = true)]
    Man(manual::Man),
    /// Show the main job: bursts in, a steady drip out
    Demo(demo::Demo),
}

/// The outcome of a command, as an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command did what was asked for.
    Done,
    /// The command failed, or its outcome is not known.
    Failed,
    /// The command line, or something in it, is wrong.
    Usage,
    /// Redis cannot be used.
    Unavailable,
    /// A bucket was full, or a limiter refused: try later.
    Rejected,
    /// The configuration is bad.
    BadConfig,
    /// INT or TERM came before the command was done.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Unavailable => 69,
            Exit::Rejected => 75,
            Exit::BadConfig => 78,
            Exit::Interrupted => 130,
        })
    }
}

impl Command {
    /// The action in the words of the user, which follows `cannot` in a message, and the role in Redis that may do it.
    fn action(&self) -> (String, Role) {
        match self {
            Self::Push(push) => (push.action(), Role::Submitter),
            Self::Work(work) => (work.action(), Role::Worker),
            Self::Status(show) => (show.action(), Role::Observer),
            Self::Job(job) => (job.action(), if job.only_looks() { Role::Observer } else { Role::Operator }),
            Self::Purge(purge) => (purge.action(), Role::Operator),
            Self::Dead(dead) => {
                (dead.action().to_owned(), if dead.only_looks() { Role::Observer } else { Role::Operator })
            }
            Self::Limit(limit) => (limit.action(), Role::Submitter),
            Self::Set(set) => (set.action(), Role::Operator),
            Self::Unset(unset) => (unset.action(), Role::Operator),
            Self::Pause(pause) => (format!("pause {}", pause.target.subject(pause.kind.budget)), Role::Operator),
            Self::Resume(resume) => (format!("resume {}", resume.target.subject(resume.kind.budget)), Role::Operator),
            Self::Slow(slow) => (slow.action(), Role::Operator),
            Self::Told(told) => (told.action(), Role::Operator),
            Self::Close(close) => (format!("close {}", close.target.subject(false)), Role::Operator),
            Self::Open(open) => (format!("open {}", open.target.subject(false)), Role::Operator),
            Self::Settings(_) => ("list what is set".to_owned(), Role::Observer),
            Self::Explain(explain) => (explain.action(), Role::Observer),
            Self::Top(_) => ("show the buckets".to_owned(), Role::Observer),
            Self::WhatIf(what_if) => (what_if.action(), Role::Observer),
            Self::Record(_) => ("record what comes".to_owned(), Role::Observer),
            Self::Simulate(_) => ("simulate it".to_owned(), Role::Daemon),
            Self::Run(_) => (run::ACTION.to_owned(), Role::Daemon),
            Self::Healthcheck(healthcheck) => (healthcheck.action(), Role::Operator),
            Self::Reload => ("reload".to_owned(), Role::Operator),
            Self::Demo(_) => ("show it".to_owned(), Role::Operator),
            Self::Check(_)
            | Self::Functions
            | Self::Acl(_)
            | Self::Partition(_)
            | Self::Completions(_)
            | Self::Man(_) => ("print it".to_owned(), Role::Operator),
        }
    }
}

/// The definition of the command line, with notes at the end of every help.
fn command() -> clap::Command {
    with_notes(Cli::command(), "").mut_subcommands(|command| {
        let group = command.get_name().to_owned();
        with_notes(command, "").mut_subcommands(|command| with_notes(command, &format!("{group} ")))
    })
}

/// A command with its notes; `group` is what is typed before its name.
fn with_notes(command: clap::Command, group: &str) -> clap::Command {
    match Notes::of(&format!("{group}{}", command.get_name())) {
        Some(notes) => command.after_help(notes.text()),
        None => command,
    }
}

/// Read the command line, run the command, and return its exit code.
pub fn main() -> ExitCode {
    let matches = command().try_get_matches().unwrap_or_else(|why| refuse(why));
    let name = matches.subcommand_name().unwrap_or_default().to_owned();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|why| refuse(why));
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(why) => {
            say_err(&format!("dripd {name}: cannot start: {why}"));
            return Exit::Failed.into();
        }
    };
    let (action, role) = cli.command.action();
    let exit = match runtime.block_on(dispatch(cli)) {
        Ok(exit) => with_missed(&name, exit, role),
        Err(failure) => {
            say_err(&format!("dripd {name}: {}", failure.said(&action, role)));
            failure.exit
        }
    };
    runtime.shutdown_background(); // a read of standard input may still be pending
    exit.into()
}

async fn dispatch(cli: Cli) -> Result<Exit, Failure> {
    let environment = Environment::read();
    let load = || Config::load(cli.config.as_deref(), &environment);
    match cli.command {
        Command::Run(run) => run.run(cli.config.clone(), environment.clone(), load).await,
        Command::Push(push) => push.run(&load()?).await,
        Command::Work(work) => work.run(load).await,
        Command::Status(show) => show.run(&load()?).await,
        Command::Top(show) => show.run(&load()?).await,
        Command::Job(job) => job.run(&load()?).await,
        Command::Purge(purge) => purge.run(&load()?).await,
        Command::Dead(dead) => dead.run(&load()?).await,
        Command::Limit(limit) => limit.run(load).await,
        Command::Set(set) => set.run(&load()?).await,
        Command::Unset(unset) => unset.run(&load()?).await,
        Command::Pause(pause::Pause { target, lasts, kind }) => {
            pause::stop(&load()?, Direction::Out, target, kind.budget, lasts).await
        }
        Command::Slow(slow) => slow.run(&load()?).await,
        Command::Told(told) => told.run(&load()?).await,
        Command::Resume(pause::Resume { target, kind }) => {
            pause::resume(&load()?, Direction::Out, target, kind.budget).await
        }
        Command::Close(pause::Close { target, lasts }) => {
            pause::stop(&load()?, Direction::In, target, false, lasts).await
        }
        Command::Open(pause::Open { target }) => pause::resume(&load()?, Direction::In, target, false).await,
        Command::Settings(list) => list.run(&load()?).await,
        Command::Explain(explain) => explain.run(&load()?).await,
        Command::WhatIf(what_if) => what_if.run(&load()?).await,
        Command::Record(record) => record.run(&load()?).await,
        Command::Simulate(simulate) => {
            let load_other = |path: &std::path::Path| Config::load(Some(path), &environment);
            simulate.run(load()?, load_other).await
        }
        Command::Reload => reload::run(&load()?).await,
        Command::Healthcheck(healthcheck) => {
            healthcheck.run(&Config::http_listen(cli.config.as_deref(), &environment)?).await
        }
        Command::Check(check) => check.run(cli.config.as_deref(), &environment),
        Command::Functions => functions::run(),
        Command::Acl(acl) => acl.run(&load()?),
        Command::Partition(show) => Ok(show.run(&load()?)),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
        Command::Demo(demo) => demo.run().await,
    }
}

/// The partitions that the command has connected to, which record those that were skipped.
static CONNECTED: OnceLock<Partitions> = OnceLock::new();

/// Report the partitions that a command over all of them had to skip: its output and its changes are about the others
/// only. Where any was skipped, `Done` becomes `Unavailable`.
fn with_missed(name: &str, exit: Exit, role: Role) -> Exit {
    let missed = CONNECTED.get().map(Partitions::skipped).unwrap_or_default();
    let mut told = BTreeMap::<String, Vec<u8>>::new();
    for (number, why) in &missed {
        match why {
            StoreError::Away { .. } => say_err(&format!("dripd {name}: {why}")), // the error names its partition
            why => told.entry(why.in_words(role)).or_default().push(*number),
        }
    }
    for (why, numbers) in told {
        let of = if numbers.len() > 1 { "partitions" } else { "partition" };
        say_err(&format!("dripd {name}: {of} {}: {why}", ranges(&numbers)));
    }
    if missed.is_empty() || exit != Exit::Done { exit } else { Exit::Unavailable }
}

/// Connect as every command but `run` does: for at most five seconds, in which a partition that is away is waited for
/// too.
async fn connect(config: &Config) -> Result<Partitions, Failure> {
    let until = Instant::now() + TRY_FOR;
    Ok(connect_now(config).await?.patient(until))
}

/// Connect for a command that goes over all partitions: one that is away is reported, and not waited for.
async fn connect_now(config: &Config) -> Result<Partitions, Failure> {
    let (address, layout) = (Address::of(&config.redis)?, Layout::of(&config.redis));
    let since = Instant::now();
    loop {
        match Partitions::connect(&address, &layout).await {
            Ok(whole) => {
                let _ = CONNECTED.set(whole.clone());
                return Ok(whole);
            }
            Err(why) if since.elapsed() >= TRY_FOR || why.is_final() => return Err(why.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Print a line, with unsafe characters escaped. A failed write changes nothing: what the command did is done.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{}", escape::line(line));
}

/// Print lines, with unsafe characters escaped.
fn say_all(lines: &str) {
    let _ = writeln!(std::io::stdout(), "{}", escape::lines(lines));
}

/// Print a value as JSON, or as text for people.
fn show(as_json: bool, value: &impl serde::Serialize, text: impl FnOnce() -> String) {
    if as_json { say_json(value) } else { say_all(text().trim_end()) }
}

/// Print a value as JSON, on one line.
fn say_json(value: &impl serde::Serialize) {
    let json = serde_json::to_string(value).expect("it is text and numbers");
    let _ = writeln!(std::io::stdout(), "{}", escape::escaped_json(&json));
}

/// Print lines on standard error, with unsafe characters escaped.
fn say_err(lines: &str) {
    let _ = writeln!(std::io::stderr(), "{}", escape::lines(lines));
}

/// End as clap does for a wrong command line. Where an argument has invisible characters, the error is made again from
/// the escaped arguments.
fn refuse(why: clap::Error) -> ! {
    let args = || std::env::args_os().map(|arg| arg.to_string_lossy().into_owned());
    if args().all(|arg| arg.chars().all(escape::is_visible)) {
        why.exit(); // clap prints in colour
    }
    let safe = command().try_get_matches_from(args().map(|arg| escape::line(&arg).into_owned()));
    let why = safe.err().unwrap_or(why);
    say_err(why.render().to_string().trim_end());
    std::process::exit(why.exit_code());
}

/// Print a text byte for byte. A reader that has seen enough (`| head`) is no failure.
fn print(text: &[u8]) -> Result<Exit, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(why) if why.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Failed, format!("cannot write to standard output: {why}")))
        }
        _ => Ok(Exit::Done),
    }
}
