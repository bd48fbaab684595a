//! The dashboard in a real browser.

pub mod actions;
mod browser;
pub mod connection;
pub mod dead_letters;
pub mod pages;
pub mod tokens;

use browser::{Browser, DESK};

use crate::rig::{Case, Daemon, free_port};
use crate::shell::Shell;

/// What the pages of the tests are about: nothing leaves, so that what is shown stays as it is.
const STILL: &str = "[defaults]\nrate = '1/h'\ncapacity = 100\n";

/// The tokens of a door: one that may read, one that may operate, and one that may operate some buckets only.
const READ: &str = "look-at-it";
const OPERATE: &str = "open-sesame";
const NARROW: &str = "acme-alone";

/// A daemon with its door.
struct Door {
    shell: Shell,
    daemon: Daemon,
    port: u16,
    _tokens: tempfile::TempDir,
}

impl Door {
    /// Where there is no browser the test is at its end.
    fn start(toml: &str) -> Self {
        browser::tools();
        let (tokens, port) = (tempfile::tempdir().expect("a directory"), free_port());
        let mut http = format!("[http]\nlisten = '127.0.0.1:{port}'\n");
        let all =
            [("reader", READ, "read", "*"), ("ops", OPERATE, "operate", "*"), ("billing", NARROW, "operate", "acme*")];
        for (name, token, may, only) in all {
            let file = tokens.path().join(name);
            std::fs::write(&file, token).expect("written");
            http += &format!("[[http.token]]\nname = '{name}'\nfile = '{}'\nmay = '{may}'\n", file.display());
            if only != "*" {
                http += &format!("match = '{only}'\n");
            }
        }
        let shell = Shell::new(&(http + toml));
        let daemon = Daemon::start(shell.home());
        Self { shell, daemon, port, _tokens: tokens }
    }

    fn case(&mut self) -> &mut Case {
        &mut self.shell.case
    }

    /// A page by what stands behind its #.
    fn page(&self, hash: &str) -> String {
        format!("http://127.0.0.1:{}/#/{hash}", self.port)
    }

    /// What is set, as the command line tells it.
    fn settings(&self) -> String {
        self.shell.run(&["settings"]).1
    }
}

/// A page, with a token.
fn with_token(door: &Door, hash: &str, token: &str) -> Browser {
    let mut browser = Browser::open(&door.page(hash), DESK);
    browser.run(&format!("sessionStorage.setItem('dripd-token', '{token}')"));
    browser.reload();
    browser.sees("Connected");
    browser
}

/// Some dead letters of a bucket.
fn bury(case: &mut Case, bucket: &str, reason: &str, jobs: &[&[u8]]) {
    let dead = case.key("dead");
    for job in jobs {
        let mut add = redis::cmd("XADD");
        add.arg(&dead).arg("*").arg("bucket").arg(bucket).arg("job").arg(job);
        add.arg(&["attempt", "5", "id", "1750000000000-3", "reason", reason]);
        add.query::<()>(&mut case.redis).expect("XADD");
    }
}

/// So many buckets with a job each.
fn fill(door: &mut Door, n: usize) {
    let prefix = door.case().prefix.clone();
    for from in (0..n).step_by(500) {
        let mut pipeline = redis::pipe();
        for at in from..n.min(from + 500) {
            pipeline.cmd("LPUSH").arg(format!("{prefix}:queue:b{at:04}")).arg("x").arg("y").ignore();
        }
        pipeline.query::<()>(&mut door.case().redis).expect("LPUSH");
    }
}
