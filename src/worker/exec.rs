//! A command per job: the job on standard input, the rest in the environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Job, Outcome};
use crate::model::escape::escaped;

/// The exit code that says: do not try again (`EX_DATAERR`).
const DEAD: i32 = 65;

/// The exit code that says: not so fast (`EX_TEMPFAIL`).
const THROTTLED: i32 = 75;

/// The variable with the job's deadline, and the prefix of the variables with its headers.
const DEADLINE: &str = "DRIPD_DEADLINE_US";
const HEADER: &str = "DRIPD_HEADER_";

/// How often a group that was asked to end is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The command of each job.
#[derive(Debug, Clone)]
pub struct Exec {
    program: OsString,
    args: Vec<OsString>,
    limit: Option<Duration>,
    grace: Duration,
}

/// Kills the whole process group of a run that is dropped before it ended.
struct Group(Option<Pid>);

impl Group {
    /// Ask the group to end, and give it some time. What is there after that is killed when this is dropped: a shell may be gone long
    /// before the programs that it started.
    async fn end(mut self, child: &mut Child, grace: Duration) {
        let Some(pid) = self.0 else { return };
        let _ = kill_process_group(pid, Signal::TERM);
        let gone = async {
            let _ = child.wait().await;
            while test_kill_process_group(pid) != Err(Errno::SRCH) {
                sleep(LOOK_AGAIN).await;
            }
        };
        if timeout(grace, gone).await.is_ok() {
            self.0 = None;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Exec {
    /// A command and its arguments, or, as one word with white space in it, a line for the shell. A run longer than
    /// `limit` is ended and has failed. Whatever is ended gets TERM, and KILL after `grace`.
    ///
    /// # Errors
    ///
    /// When there is no such program: better said once at the start than for every job.
    pub fn new(mut command: Vec<OsString>, limit: Option<Duration>, grace: Duration) -> Result<Self, String> {
        if let [line] = &command[..]
            && line.as_bytes().iter().any(u8::is_ascii_whitespace)
        {
            command = vec!["sh".into(), "-c".into(), line.clone()];
        }
        if command.is_empty() || command[0].is_empty() {
            return Err("no command is given".to_owned());
        }
        let args = command.split_off(1);
        let program = command.remove(0);
        if !is_program(&program) {
            return Err(format!("cannot run {}: there is no such program", escaped(program.as_bytes())));
        }
        Ok(Self { program, args, limit, grace })
    }

    /// The time from TERM to KILL.
    pub(super) fn grace(&self) -> Duration {
        self.grace
    }

    pub(super) async fn run(&self, job: &Job, stop: &CancellationToken) -> Outcome {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::piped()).process_group(0);
        command
            .env("DRIPD_BUCKET", job.bucket.as_str())
            .env("DRIPD_ATTEMPT", job.attempt.to_string())
            .env("DRIPD_ID", &job.id)
            .env("DRIPD_COST", job.cost.to_string());
        options(&mut command, job);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(why) => {
                return Outcome::GivenBack(None, format!("cannot run {}: {why}", self.program.to_string_lossy()));
            }
        };
        let mut group = Group(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
        let mut stdin = child.stdin.take().expect("standard input is piped");
        let mut feed = std::pin::pin!(async {
            let _ = stdin.write_all(&job.body).await; // a command need not read its job
            drop(stdin);
            std::future::pending::<()>().await;
        });
        let limit = async {
            match self.limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            biased;
            status = child.wait() => {
                group.0 = None;
                return status.map_or_else(|why| Outcome::Failed(format!("cannot wait for the command: {why}")), judge);
            }
            () = &mut feed => unreachable!("feeding never ends by itself"),
            () = limit => Outcome::Failed(format!("ran longer than {:?}", self.limit.unwrap_or_default())),
            () = stop.cancelled() => Outcome::stopped(),
        };
        // Its exit code says nothing now: many programs end with 0 when they are asked to end, whatever was left to do. The job is
        // fed on meanwhile, for half of it could be taken for the whole.
        tokio::select! {
            () = group.end(&mut child, self.grace) => outcome,
            () = &mut feed => unreachable!("feeding never ends by itself"),
        }
    }
}

/// Put the deadline and the headers of a job into the environment. This worker may itself run as a job: nothing of that one is passed on.
fn options(command: &mut Command, job: &Job) {
    for (name, _) in std::env::vars_os() {
        if name.as_bytes().starts_with(HEADER.as_bytes()) || name == DEADLINE {
            command.env_remove(name);
        }
    }
    if let Some(deadline_us) = job.deadline_us {
        command.env(DEADLINE, deadline_us.to_string());
    }
    for (name, value) in &job.headers {
        command.env(format!("{HEADER}{}", name.to_ascii_uppercase().replace('-', "_")), value);
    }
}

/// Whether a program is there, looked for as `execvp` does: by its path, or on the PATH.
fn is_program(name: &OsStr) -> bool {
    if name.as_bytes().contains(&b'/') {
        return Path::new(name).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

fn judge(status: ExitStatus) -> Outcome {
    match (status.code(), status.signal()) {
        (Some(0), _) => Outcome::Done,
        (Some(DEAD), _) => Outcome::Dead(format!("exit code {DEAD}")),
        (Some(THROTTLED), _) => Outcome::Throttled(None, format!("exit code {THROTTLED}")),
        (Some(code), _) => Outcome::Failed(format!("exit code {code}")),
        (None, signal) => Outcome::Failed(format!("ended by signal {}", signal.unwrap_or_default())),
    }
}
