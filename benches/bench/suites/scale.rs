//! scale: the points of the model in docs/scaling.md that one machine can show: several daemons on one Redis, and a network
//! between a daemon and its Redis.

use std::io;
use std::time::Duration;

use super::SLOW;
use super::drain::{dispatches_a_second, schedule, wait_for_jobs};
use super::lab::Server;
use super::measure::{PAIRS, Pairs};
use super::proxy;
use super::report::{Report, Row};

const BUCKETS: usize = 30_000;

/// Daemons on one Redis, by the socket or with a round trip between them and it.
#[derive(Clone, Copy)]
struct Setting {
    daemons: usize,
    round_trip: Option<Duration>,
}

impl Setting {
    fn words(self) -> String {
        let daemons = if self.daemons == 1 { "1 daemon".to_owned() } else { format!("{} daemons", self.daemons) };
        match self.round_trip {
            None => daemons,
            Some(Duration::ZERO) => format!("{daemons}, through the proxy"),
            Some(added) => format!("{daemons}, a round trip of {} ms more", added.as_secs_f64() * 1e3),
        }
    }

    /// Dispatches a second when everything is due.
    fn rate(self, server: &Server) -> io::Result<f64> {
        let mut wire = server.wire()?;
        wire.call(&["FLUSHALL"])?;
        server.record(SLOW)?;
        let url = self.round_trip.map(|added| proxy::delay(server.port, added)).transpose()?;
        let begin = || match url {
            Some(port) => server.daemon_at(&format!("redis://127.0.0.1:{port}"), SLOW),
            None => server.begin_daemon(SLOW),
        };
        // All of them serve, and are held still until everything is due.
        let daemons = (0..self.daemons).map(|_| begin()).collect::<io::Result<Vec<_>>>()?;
        for daemon in &daemons {
            daemon.wait_until_it_serves()?;
            daemon.freeze(true)?;
        }
        schedule(&mut wire, "scale", BUCKETS)?;
        for daemon in &daemons {
            daemon.freeze(false)?;
        }
        wait_for_jobs(&mut wire, BUCKETS)?;
        dispatches_a_second(&mut wire, BUCKETS)
    }
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let server = Server::start()?;
    let one = Setting { daemons: 1, round_trip: None };
    let micros = |us| Some(Duration::from_micros(us));
    let settings = [
        Setting { daemons: 2, round_trip: None },
        Setting { daemons: 3, round_trip: None },
        Setting { daemons: 1, round_trip: micros(0) },
        Setting { daemons: 1, round_trip: micros(200) },
        Setting { daemons: 1, round_trip: micros(1_000) },
        Setting { daemons: 3, round_trip: micros(1_000) },
    ];
    let mut pairs: [Vec<(f64, f64)>; 6] = Default::default();
    one.rate(&server)?; // the first one does not count
    for _ in 0..PAIRS {
        let beside = one.rate(&server)?;
        for (setting, pairs) in settings.iter().zip(&mut pairs) {
            pairs.push((setting.rate(&server)?, beside));
        }
    }
    for (setting, pairs) in settings.iter().zip(&pairs) {
        let pairs = Pairs::of(pairs);
        report.add(
            Row::of("scale", format!("30,000 buckets due at once, {}", setting.words()), pairs.mine, "/s")
                .beside("1 daemon", pairs.beside.median)
                .ratio(pairs.ratio),
        );
    }
    Ok(())
}
