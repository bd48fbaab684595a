//! The commands that the documents show do what they say.
//!
//! A block that begins with ```` ```sh runnable ```` is run, in the order of its page, by `sh -eu` in a directory that the page
//! has for itself, with the built program on the PATH. One that begins with ```` ```sh runnable service ```` goes on in the
//! background until its page is over; where that is a daemon, the page goes on when it serves. A block ```` ```text output ````
//! right behind one of them is what it prints: exactly, or, of a service, sooner or later. In it `…` stands for any text.
//!
//! The built-in Redis of a page has a port of its own, so 7379 is another number in everything that is run. `BLOCK 2000` is a longer wait there: it
//! ends with the job that the page waits for, which may need more than two seconds where much else is run.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use super::{Page, pages};
use crate::rig::{dripd, eventually, free_port, without_door};

/// How long one block may take.
const BLOCK_ENDS_WITHIN: Duration = Duration::from_secs(60);

/// How long a service may take to stop: five seconds are promised, the rest is for a machine that is busy.
const STOPS_WITHIN: Duration = Duration::from_secs(20);

/// A block that is run, and what it prints, where the page says so.
struct Runnable {
    script: String,
    is_service: bool,
    output: Option<String>,
}

fn runnables(page: &Page) -> Vec<Runnable> {
    let mut found = Vec::<Runnable>::new();
    let mut last_runs = false;
    for (info, text) in &page.blocks {
        let words: Vec<&str> = info.split_whitespace().collect();
        match &words[..] {
            ["sh", "runnable", rest @ ..] => {
                assert!(matches!(rest, [] | ["service"]), "{}: {info:?} is no mark", page.name());
                found.push(Runnable { script: text.clone(), is_service: !rest.is_empty(), output: None });
                last_runs = true;
                continue;
            }
            ["text", "output"] => {
                assert!(last_runs, "{}: an output stands behind no block that is run: {text}", page.name());
                found.last_mut().expect("the one before").output = Some(text.clone());
            }
            [_, rest @ ..] => assert!(!rest.contains(&"runnable"), "{}: {info:?} is not run", page.name()),
            [] => {}
        }
        last_runs = false;
    }
    found
}

/// Whether a line is what a page says, where `…` is any text.
fn fits(line: &str, said: &str) -> bool {
    let mut parts = said.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim_end).collect()
}

/// Whether what was printed is what the page says.
fn is_said(printed: &str, said: &str) -> bool {
    let (printed, said) = (lines(printed), lines(said));
    printed.len() == said.len() && printed.iter().zip(&said).all(|(line, said)| fits(line, said))
}

/// A block under way, in a process group of its own, which ends with the value: a daemon stops its Redis before it goes.
struct Block {
    child: Child,
    out: PathBuf,
}

impl Block {
    fn start(script: &str, n: usize, bench: &Bench) -> Self {
        let (out, err) = (bench.dir().join(format!(".out-{n}")), bench.dir().join(format!(".err-{n}")));
        let file = |path: &Path| File::create(path).expect("a file");
        let mut command = Command::new("sh");
        let script = script.replace("7379", &bench.port.to_string()).replace("BLOCK 2000", "BLOCK 30000");
        command.args(["-eu", "-c", &script]);
        bench.surround(&mut command).stdin(Stdio::null()).stdout(file(&out)).stderr(file(&err)).process_group(0);
        Self { child: command.spawn().expect("sh runs"), out }
    }

    fn printed(&self) -> String {
        std::fs::read_to_string(&self.out).expect("its output")
    }

    fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let since = Instant::now();
        let _ = kill_process_group(self.group(), Signal::TERM);
        while self.child.try_wait().is_ok() && test_kill_process_group(self.group()).is_ok() {
            if since.elapsed() > STOPS_WITHIN {
                let _ = kill_process_group(self.group(), Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A time zone where it is about noon: a time of this day is shown without its date, and what the pages show is still this day.
fn where_it_is_noon() -> String {
    let hour = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs() / 3_600 % 24;
    let hour = i64::try_from(hour).expect("below 24");
    format!("NOON{:+}", hour - 12) // POSIX: what is added to the time there to have that of Greenwich
}

/// What a page is run with.
struct Bench {
    home: tempfile::TempDir,
    port: u16,
    path: std::ffi::OsString,
}

impl Bench {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let bin = home.path().join("bin");
        std::fs::create_dir(&bin).expect("a directory");
        let link = |from: &Path, name: &str| std::os::unix::fs::symlink(from, bin.join(name)).expect("a link");
        link(Path::new(env!("CARGO_BIN_EXE_dripd")), "dripd");
        let path = dripd().get_envs().find_map(|(name, value)| (name == "PATH").then_some(value?.to_owned()));
        let path = path.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
        let find = |name: &str| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
        if find("redis-cli").is_none() {
            let client = find("valkey-cli").expect("redis-cli or valkey-cli on the PATH: apt-get install redis-tools");
            link(&client, "redis-cli"); // the same program under the name that the pages use
        }
        let path = std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&path))).expect("a PATH");
        let bench = Self { home, port: free_port(), path };
        std::fs::create_dir(bench.dir()).expect("a directory");
        let toml = format!("[redis]\nport = {}\n", bench.port);
        std::fs::write(bench.dir().join("config.toml"), without_door(&toml)).expect("written");
        let examples = std::path::absolute("examples").expect("a path");
        std::os::unix::fs::symlink(examples, bench.dir().join("examples")).expect("a link");
        bench
    }

    fn dir(&self) -> PathBuf {
        self.home.path().join("here")
    }

    /// Where a command runs, and what is in its environment.
    fn surround<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for (name, value) in dripd().get_envs() {
            if value.is_none() {
                command.env_remove(name);
            }
        }
        let url = format!("redis://127.0.0.1:{}", self.port);
        command.current_dir(self.dir()).env("PATH", &self.path).env("HOME", self.home.path()).env("REDIS_URL", url);
        command.env("TZ", where_it_is_noon());
        command.env("RUNTIME_DIRECTORY", self.home.path().join("run"))
    }

    fn a_daemon_serves(&self) -> bool {
        let status = self.surround(dripd().args(["status", "--json"])).output().expect("it runs");
        String::from_utf8_lossy(&status.stdout).contains("\"pid\":")
    }
}

/// Run the blocks of a page.
fn run(page: &Page) {
    let bench = Bench::new();
    let blocks = runnables(page);
    let mut services = Vec::new();
    for (n, block) in blocks.iter().enumerate() {
        let mut running = Block::start(&block.script, n, &bench);
        let what = format!("{}, block {}:\n{}", page.name(), n + 1, block.script);
        if block.is_service {
            if block.script.contains("dripd run") {
                eventually(&what, || bench.a_daemon_serves());
            }
            services.push((running, what, block));
        } else {
            let since = Instant::now();
            let status = loop {
                match running.child.try_wait().expect("it can be waited for") {
                    Some(status) => break status,
                    None => assert!(since.elapsed() < BLOCK_ENDS_WITHIN, "it does not end: {what}"),
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            let (printed, err) = (running.printed(), bench.dir().join(format!(".err-{n}")));
            let err = std::fs::read_to_string(err).expect("what it said");
            assert!(status.success(), "{what}it ended with {status}:\n{printed}{err}");
            if let Some(said) = &block.output {
                assert!(is_said(&printed, said), "{what}it printed:\n{printed}{err}and should print:\n{said}");
            }
        }
        // A service has said what the page shows before the next block goes on: the reader waits for it too.
        for (running, what, block) in &services {
            let Some(said) = &block.output else { continue };
            eventually(&format!("{what}prints:\n{said}"), || {
                let printed = running.printed();
                lines(said).iter().all(|said| lines(&printed).iter().any(|line| fits(line, said)))
            });
        }
    }
    while let Some((running, ..)) = services.pop() {
        drop(running); // the daemon, which came first, goes last
    }
}

fn run_pages(pages: &[&Page]) {
    for page in pages {
        run(page);
    }
}

#[test]
fn the_commands_of_the_readme_do_what_it_says() {
    let pages = pages();
    let readme = pages.iter().find(|page| page.path == Path::new("README.md")).expect("a README");
    assert!(runnables(readme).len() >= 5, "the README shows how it is used");
    run_pages(&[readme]);
}

#[test]
fn the_commands_of_the_other_documents_do_what_they_say() {
    let pages = pages();
    let others = pages.iter().filter(|page| page.path != Path::new("README.md") && !runnables(page).is_empty());
    let others: Vec<_> = others.collect();
    assert!(others.len() >= 4, "{} pages with blocks that are run", others.len());
    std::thread::scope(|scope| {
        for page in others {
            scope.spawn(move || run_pages(&[page]));
        }
    });
}

#[test]
fn an_output_is_compared_line_by_line_and_an_ellipsis_is_any_text() {
    for (line, said) in [("a", "a"), ("", ""), ("a1b2c", "a…b…c"), ("abc", "…"), ("id 5-0", "id …"), ("x", "…x")]
    {
        assert!(fits(line, said), "{line:?} {said:?}");
    }
    for (line, said) in [("a", "b"), ("ab", "a"), ("a", "ab"), ("abd", "a…c"), ("", "a"), ("ac", "a…b…c")] {
        assert!(!fits(line, said), "{line:?} {said:?}");
    }
    assert!(is_said("a\nb 7\n", "a\nb …\n") && !is_said("a\n", "a\nb\n") && !is_said("a\nb\n", "a\n"));
}
