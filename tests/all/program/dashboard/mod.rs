//! The dashboard in a real browser. Where there is none, each test says SKIPPED.

mod actions;
mod browser;
mod pages;

use super::Shell;
use crate::rig::{Case, Daemon, free_port};

/// What the pages of the tests are about: nothing leaves, so that what is shown stays as it is.
const STILL: &str = "[defaults]\nrate = '1/h'\ncapacity = 100\n";

/// The tokens of a door: one that may read, and one that may operate.
const READ: &str = "look-at-it";
const OPERATE: &str = "open-sesame";

/// A daemon with its door.
struct Door {
    shell: Shell,
    daemon: Daemon,
    port: u16,
    _tokens: tempfile::TempDir,
}

impl Door {
    fn start(toml: &str) -> Self {
        let (tokens, port) = (tempfile::tempdir().expect("a directory"), free_port());
        let mut http = format!("[http]\nlisten = '127.0.0.1:{port}'\n");
        for (name, token, may) in [("reader", READ, "read"), ("ops", OPERATE, "operate")] {
            let file = tokens.path().join(name);
            std::fs::write(&file, token).expect("written");
            http += &format!("[[http.token]]\nname = '{name}'\nfile = '{}'\nmay = '{may}'\n", file.display());
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
