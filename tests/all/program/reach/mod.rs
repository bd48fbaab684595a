//! How dripd reaches a Redis: by TLS, by passwords that change, by sentinels. All of it on the real thing.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

use super::Shell;
use crate::rig::{Case, Server, free_port, test_config};

mod passwords;
mod sentinel;
mod tls;

/// A CA of a test.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// Until when a certificate holds.
#[derive(Clone, Copy, PartialEq)]
pub enum Holds {
    Still,
    NoMore,
    NotYet,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Write a certificate for these names and its key. Replies where they are.
    pub fn issue(&self, dir: &Path, file: &str, names: &[&str], holds: Holds) -> (PathBuf, PathBuf) {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, file);
        match holds {
            Holds::Still => {}
            Holds::NoMore => params.not_after = date_time_ymd(2020, 1, 1),
            Holds::NotYet => params.not_before = date_time_ymd(2200, 1, 1),
        }
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.0).expect("signed");
        let (cert_at, key_at) = (dir.join(format!("{file}.pem")), dir.join(format!("{file}.key")));
        std::fs::write(&cert_at, signed.pem()).expect("written");
        std::fs::write(&key_at, key.serialize_pem()).expect("written");
        (cert_at, key_at)
    }

    pub fn write(&self, dir: &Path, file: &str) -> PathBuf {
        let path = dir.join(file);
        std::fs::write(&path, self.0.pem()).expect("written");
        path
    }
}

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
