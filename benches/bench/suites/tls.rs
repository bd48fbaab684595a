//! tls: what TLS costs between dripd and Redis: the same pushes over one connection of dripd's, in TLS and in clear text.

use std::io;
use std::path::Path;
use std::time::Instant;

use dripd::config::{Config, Environment};
use dripd::model::bucket::BucketName;
use dripd::store::{Address, Layout, Store};
use rcgen::CertifiedKey;
use tokio::runtime::Runtime;

use super::lab::{Apart, Server, free_port};
use super::report::{Report, Row};
use super::{JOB, SLOW};

/// How many pushes make a sample.
const PUSHES: usize = 20_000;

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let home = tempfile::tempdir()?;
    let port = free_port()?;
    let (cert, key) = certificate(home.path())?;
    let (port_is, auth) = (port.to_string(), ["--tls-auth-clients", "no"]);
    let tls = ["--tls-port", &port_is, "--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &cert];
    let server = Server::start_with(&[&tls[..], &auth[..]].concat())?;
    server.record(SLOW)?;
    let _apart = Apart::of(&[&server])?;
    let mut secured = Pushes::over(&format!("url = 'rediss://localhost:{port}'\ntls = {{ ca = '{cert}' }}"))?;
    let mut clear = Pushes::over(&format!("url = 'redis://localhost:{}'", server.port))?;
    for (at_a_time, what) in [(64, "64 pushes at a time over TLS"), (1, "one push after the other over TLS")] {
        report.pairs(
            |pairs| {
                Row::of("tls", what, pairs.mine, "/s").beside("in clear text", pairs.beside.median).ratio(pairs.ratio)
            },
            || secured.a_second(at_a_time),
            || clear.a_second(at_a_time),
        )?;
    }
    Ok(())
}

/// A certificate for `localhost` that signs itself. Replies where it and its key are.
fn certificate(home: &Path) -> io::Result<(String, String)> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(io::Error::other)?;
    let CertifiedKey { cert, signing_key } = made;
    let (cert_at, key_at) = (home.join("cert.pem"), home.join("key.pem"));
    std::fs::write(&cert_at, cert.pem())?;
    std::fs::write(&key_at, signing_key.serialize_pem())?;
    Ok((cert_at.display().to_string(), key_at.display().to_string()))
}

/// Pushes over one connection, as the HTTP server makes them.
struct Pushes {
    runtime: Runtime,
    store: Store,
    bucket: BucketName,
}

impl Pushes {
    fn over(redis: &str) -> io::Result<Self> {
        let config = Config::parse(&format!("[redis]\n{redis}\n"), None, &Environment::default());
        let redis = config.map_err(io::Error::other)?.redis;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let address = Address::of(&redis).map_err(io::Error::other)?;
        let store =
            runtime.block_on(Store::connect(&address, &Layout::of(&redis).authority())).map_err(io::Error::other)?;
        let bucket = "tls".parse().map_err(|_| io::Error::other("a name"))?;
        Ok(Self { runtime, store, bucket })
    }

    /// How many go through in a second, so many at a time.
    fn a_second(&mut self, at_a_time: usize) -> io::Result<f64> {
        let began = Instant::now();
        self.runtime.block_on(async {
            let pushing = (0..at_a_time).map(|_| async {
                let (mut store, jobs) = (self.store.clone(), [JOB.as_bytes().to_vec()]);
                for _ in 0..PUSHES / at_a_time {
                    store.push(&self.bucket, &jobs).await.map_err(io::Error::other)?;
                }
                Ok::<(), io::Error>(())
            });
            futures_util::future::try_join_all(pushing).await
        })?;
        Ok((PUSHES / at_a_time * at_a_time) as f64 / began.elapsed().as_secs_f64())
    }
}
