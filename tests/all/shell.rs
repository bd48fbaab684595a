//! The built program at work for a test: a directory with its configuration, commands, workers, and what they say.

use std::io::Write as _;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::rig::{Case, Server, dripd, server, test_config};

/// Write the configuration of a case on the shared server.
pub fn configure(home: &Path, case: &Case, toml: &str) {
    let text = format!("[redis]\nurl = '{}'\nprefix = '{}'\n{toml}", server().url(), case.prefix);
    // In one step: a daemon that reads it meanwhile must not find half of it.
    let new = home.join("config.toml.new");
    std::fs::write(&new, test_config(&text)).expect("a configuration");
    std::fs::rename(new, home.join("config.toml")).expect("in its place");
}

/// A case with its own directory, in which commands find its configuration.
pub struct Shell {
    pub case: Case,
    pub home: tempfile::TempDir,
}

impl Shell {
    /// Run a command that must do it; replies what it printed.
    #[track_caller]
    pub fn must_run(&self, args: &[&str]) -> String {
        let (code, out, err) = self.run(args);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        out
    }

    pub fn new(toml: &str) -> Self {
        let (case, home) = (Case::with(toml), tempfile::tempdir().expect("a directory"));
        configure(home.path(), &case, toml);
        Self { case, home }
    }

    /// The same on a server of its own, for tests that kill connections, pause it or look at its figures.
    pub fn on(server: &Server, toml: &str) -> Self {
        let (case, home) = (Case::on(server, toml), tempfile::tempdir().expect("a directory"));
        let text = format!("[redis]\nurl = '{}'\nprefix = '{}'\n{toml}", server.url(), case.prefix);
        std::fs::write(home.path().join("config.toml"), test_config(&text)).expect("a configuration");
        Self { case, home }
    }

    /// The directory.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = dripd();
        command.args(args).current_dir(self.home.path()).env("RUST_LOG", "info");
        command.env("RUNTIME_DIRECTORY", self.home.path().join("run")); // where its daemon's control socket is
        command
    }

    pub fn run(&self, args: &[&str]) -> (i32, String, String) {
        said(&self.command(args).stdin(Stdio::null()).output().expect("it runs"))
    }

    pub fn pipe(&self, args: &[&str], input: &[u8]) -> (i32, String, String) {
        let mut child = self.spawn(args);
        let mut stdin = child.stdin.take().expect("piped");
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().expect("it ends");
        feeder.join().expect("fed");
        said(&output)
    }

    pub fn spawn(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().expect("it runs")))
    }

    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a path").to_owned()
    }
}

/// A program that is ended when its test is over, however that ends.
pub struct Running(pub Option<Child>);

impl Running {
    pub fn wait_with_output(mut self) -> std::io::Result<Output> {
        self.0.take().expect("it runs until here").wait_with_output()
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().expect("it is only taken at its end")
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().expect("it is only taken at its end")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Run a command that is asked for at a terminal, and type an answer.
pub fn at_a_terminal(shell: &Shell, args: &[&str], answer: &str) -> (i32, String, String) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let mut operator = std::fs::File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal"));
    grantpt(&operator).and_then(|()| unlockpt(&operator)).expect("a terminal");
    let name = ptsname(&operator, Vec::new()).expect("it has a name");
    let name = name.to_str().expect("a path");
    let terminal = std::fs::OpenOptions::new().read(true).write(true).open(name).expect("a terminal");
    operator.write_all(answer.as_bytes()).expect("typed");
    said(&shell.command(args).stdin(terminal).output().expect("it runs"))
}

pub fn said(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Send a signal to a program that the test started.
pub fn signal(pid: u32, name: &str) {
    let done = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
    assert!(done.expect("sh runs").success(), "kill -{name} {pid}");
}

/// A stopped process, which goes on when this is dropped, whatever becomes of the test.
pub struct Stopped(u32);

impl Stopped {
    pub fn stop(pid: u32) -> Self {
        signal(pid, "STOP");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, "CONT");
    }
}

/// A line of `/proc/<pid>/<file>` that begins with a name, as a number; `None` when the program is gone.
pub fn proc(pid: u32, file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// A worker that runs until told to stop. What it logs is in a file of the shell's directory.
pub struct Work {
    pub child: Child,
    log: PathBuf,
}

impl Work {
    pub fn start(shell: &Shell, args: &[&str]) -> Self {
        let args: Vec<&str> = ["work"].into_iter().chain(args.iter().copied()).collect();
        Self::spawn(shell, shell.command(&args))
    }

    /// The same, of a command that says more.
    pub fn spawn(shell: &Shell, mut command: Command) -> Self {
        let log =
            (1..1_000).map(|n| shell.home().join(format!("work-{n}.log"))).find(|path| !path.exists()).expect("a name");
        let file = std::fs::File::create(&log).expect("a log");
        command.env("RUST_LOG", "debug").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        Self { child: command.spawn().expect("it runs"), log }
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    /// The line of the log about a job that says something.
    #[track_caller]
    pub fn said(&self, job: &str, what: &str) -> String {
        let log = self.log();
        let found = log.lines().find(|line| line.contains(what) && line.contains(job));
        found.unwrap_or_else(|| panic!("no line with {what:?} and {job:?} in\n{log}")).to_owned()
    }

    pub fn stop(mut self) -> (Option<i32>, Duration, String) {
        let since = Instant::now();
        self.signal("TERM");
        let code = self.child.wait().expect("it ends").code();
        (code, since.elapsed(), self.log())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
