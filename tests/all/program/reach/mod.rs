//! How dripd reaches a Redis: by TLS, by passwords that change, by sentinels. All of it on the real thing.

use std::path::PathBuf;

use super::Shell;
use crate::authority::{Authority, Holds};
use crate::rig::{Case, Server, free_port, test_config};

mod passwords;
mod sentinel;
mod tls;

/// A server that speaks TLS at a port, and clear text at another one for the test itself.
struct Secured {
    server: Server,
    port: u16,
    authority: Authority,
    /// Whose signature makes it good.
    ca: PathBuf,
    dir: tempfile::TempDir,
}

impl Secured {
    /// With a certificate for `localhost` and 127.0.0.1.
    fn start(options: &[&str]) -> Self {
        Self::with(&["localhost", "127.0.0.1"], Holds::Still, options)
    }

    fn with(names: &[&str], holds: Holds, options: &[&str]) -> Self {
        let (authority, dir) = (Authority::new("the CA of a test"), tempfile::tempdir().expect("a directory"));
        let ca = authority.write(dir.path(), "ca.pem");
        let (cert, key) = authority.issue(dir.path(), "server", names, holds);
        let port = free_port();
        let text = port.to_string();
        let path = |path: &PathBuf| path.to_str().expect("text").to_owned();
        let (cert, key, trusted) = (path(&cert), path(&key), path(&ca));
        let mut all = vec!["--tls-port", &text, "--tls-cert-file", &cert, "--tls-key-file", &key];
        all.extend(["--tls-ca-cert-file", &trusted]);
        if !options.contains(&"--tls-auth-clients") {
            all.extend(["--tls-auth-clients", "no"]);
        }
        all.extend(options);
        Self { server: Server::start(&all), port, authority, ca, dir }
    }

    fn url(&self) -> String {
        format!("rediss://localhost:{}", self.port)
    }

    /// A directory whose configuration reaches this server by `redis`, which names it.
    fn shell(&self, redis: &str, toml: &str) -> Shell {
        shell(&self.server, redis, toml)
    }
}

/// A directory whose configuration reaches a server as `redis` says.
fn shell(server: &Server, redis: &str, toml: &str) -> Shell {
    let shell = Shell { case: Case::on(server, toml), home: tempfile::tempdir().expect("a directory") };
    let text = format!("[redis]\n{redis}\nprefix = '{}'\n{toml}", shell.case.prefix);
    shell.file("config.toml", &test_config(&text));
    shell
}
