//! http: what a push costs over HTTP, beside a handler of the same framework that only does an `LPUSH`; and what the door under attack
//! costs the pacer.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use redis::AsyncConnectionConfig;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::lab::{Apart, Server, queue};
use super::measure::{PAIRS, Spread};
use super::neighbours::{Seen, Street};
use super::report::{Bound, Report, Row};
use super::{JOB, SLOW};

/// How many connections push at a time, each one push after the other.
const CONNECTIONS: &str = "64";

/// How many lines a request of several jobs has.
const LINES: usize = 100;

/// The least that wrk knows.
const SAMPLE: &str = "1s";

/// How long the pacer is watched, with and without an attack.
const WATCHED: Duration = Duration::from_secs(3);

/// How many connections are opened in that time that say only half of something, and how many of them are kept at a time: the door keeps no
/// more, and descriptors are few.
const HALF_OPEN: usize = 10_000;
const KEPT_OPEN: usize = 1_200;

/// How often garbage comes.
const GARBAGE_EVERY: Duration = Duration::from_millis(20);

const HTTP: &str = "[http]\nlisten = \"127.0.0.1:0\"\n";

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// What pushes, again and again over each of [`CONNECTIONS`].
struct Pushed {
    bucket: &'static str,
    query: &'static str,
    body: String,
    /// Whether each push has an id of its own, and a cost.
    has_options: bool,
}

/// An id for each push, which no sample before has used.
const OPTIONS: &str = "local n, run = 0, os.time()\nwrk.headers['Drip-Cost'] = '1'\n\
                       request = function()\n  n = n + 1\n  wrk.headers['Drip-Id'] = run .. '-' .. n\n  return wrk.format()\nend\n";

impl Pushed {
    /// What makes wrk push this.
    fn script(&self) -> String {
        let options = if self.has_options { OPTIONS } else { "" };
        format!(
            "wrk.method = 'POST'\nwrk.body = {:?}\nwrk.headers['Content-Type'] = 'application/x-ndjson'\n{options}",
            self.body
        )
    }
}

/// Requests a second over all connections, as wrk counts them. One that is refused is an error.
fn rate(to: SocketAddr, pushed: &Pushed) -> io::Result<f64> {
    let script = tempfile::Builder::new().suffix(".lua").tempfile()?;
    std::fs::write(script.path(), pushed.script())?;
    let url = format!("http://{to}/v1/buckets/{}/jobs{}", pushed.bucket, pushed.query);
    let ran = Command::new("wrk")
        .args(["--threads", "1", "--duration", SAMPLE, "--connections", CONNECTIONS, "--script"])
        .arg(script.path())
        .arg(&url)
        .output()?;
    let said = String::from_utf8_lossy(&ran.stdout);
    let after = |what: &str| said.lines().find_map(|line| line.trim().strip_prefix(what)).map(str::trim);
    let rate = after("Requests/sec:").and_then(|rate| rate.parse().ok());
    match (rate, after("Non-2xx or 3xx responses:"), after("Socket errors:")) {
        (Some(rate), None, None) => Ok(rate),
        _ => Err(io::Error::other(format!("wrk on {url}: {said}{}", String::from_utf8_lossy(&ran.stderr)))),
    }
}

/// A handler of the same framework that only does an `LPUSH` of what it is given, in a thread of its own until it is dropped.
struct Bare {
    at: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl Bare {
    fn start(redis: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let (at, (stop, stopped)) = (listener.local_addr()?, oneshot::channel::<()>());
        let runtime = runtime()?;
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    ended = serve_bare(listener, redis) => if let Err(why) = ended { eprintln!("bench: the bare handler: {why}") },
                }
            });
        });
        Ok(Self { at, _stop: stop })
    }
}

async fn serve_bare(listener: TcpListener, redis: u16) -> io::Result<()> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{redis}/?protocol=resp3")).map_err(io::Error::other)?;
    // As the daemon has it: an append may stall Redis for longer than the half second that is usual.
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(5)));
    let redis = client.get_multiplexed_async_connection_with_config(&patient).await.map_err(io::Error::other)?;
    let lpush =
        async |State(mut redis): State<redis::aio::MultiplexedConnection>, Path(bucket): Path<String>, job: Bytes| {
            let mut command = redis::cmd("LPUSH");
            command.arg(format!("bare:{bucket}")).arg(&job[..]);
            let depth: Result<u64, _> = command.query_async(&mut redis).await;
            match depth {
                Ok(depth) => (StatusCode::ACCEPTED, format!("{{\"depth\":{depth}}}")),
                Err(why) => (StatusCode::BAD_GATEWAY, why.to_string()),
            }
        };
    let router = Router::new().route("/v1/buckets/{bucket}/jobs", post(lpush)).with_state(redis);
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// What the rows say that wrk measures.
fn measured_by_wrk() -> [String; 3] {
    [
        format!("pushes, {CONNECTIONS} connections that are kept, by wrk"),
        format!("jobs, {LINES} lines a push, {CONNECTIONS} connections, by wrk"),
        format!("pushes with an id and a cost, {CONNECTIONS} connections, by wrk"),
    ]
}

fn throughput(report: &mut Report) -> io::Result<()> {
    let [kept, split, optional] = measured_by_wrk();
    // It knows no option that only tells whether it runs: it prints its version and ends with 1.
    if Command::new("wrk").arg("--version").output().is_err() {
        for what in [kept, split, optional] {
            report.skip("http", what, "needs wrk: apt-get install wrk");
        }
        return Ok(());
    }
    let server = Server::start()?;
    let daemon = server.daemon(&format!("{SLOW}{HTTP}"))?;
    let door = SocketAddr::from((Ipv4Addr::LOCALHOST, daemon.http_port()?));
    let (bare, mut wire) = (Bare::start(server.port)?, server.wire()?);
    let _apart = Apart::of(&[&server])?;
    let single = Pushed { bucket: "b", query: "", body: JOB.to_owned(), has_options: false };
    // Each sample begins with short queues, so that none of them pays for what the others left.
    let mut emptied = |sampled: io::Result<f64>| {
        wire.call(&["UNLINK", &queue("b"), "bare:b"])?;
        sampled
    };
    let emptied = std::cell::RefCell::new(&mut emptied);
    let sample = |to, pushed: &Pushed| (emptied.borrow_mut())(rate(to, pushed));
    report.pairs(
        |pairs| {
            Row::of("http", &kept, pairs.mine, "/s")
                .beside("a handler that only does LPUSH", pairs.beside.median)
                .ratio(pairs.ratio)
                .ratio_goal(Bound::AtLeast(0.5))
        },
        || sample(door, &single),
        || sample(bare.at, &single),
    )?;
    let lines =
        Pushed { bucket: "b", query: "?split=lines", body: format!("{JOB}\n").repeat(LINES), has_options: false };
    report.pairs(
        |pairs| {
            Row::of("http", &split, pairs.mine, "/s")
                .beside("a job a push", pairs.beside.median)
                .ratio(pairs.ratio)
                .ratio_goal(Bound::AtLeast(5.0))
        },
        || sample(door, &lines).map(|rate| rate * LINES as f64),
        || sample(door, &single),
    )?;
    let with_options = Pushed { bucket: "b", query: "", body: JOB.to_owned(), has_options: true };
    report.pairs(
        |pairs| {
            Row::of("http", &optional, pairs.mine, "/s")
                .beside("a push without", pairs.beside.median)
                .ratio(pairs.ratio)
        },
        || sample(door, &with_options),
        || sample(door, &single),
    )?;
    Ok(())
}

/// Open [`HALF_OPEN`] connections, evenly over the time that is watched, and say half of something on each. A timer of whole milliseconds
/// is too slow for one at a time: after each tick all are opened that are due by then. What the door has closed long ago is let go.
async fn open_halves(to: SocketAddr) -> io::Result<()> {
    let (mut open, since, mut opened) = (VecDeque::new(), Instant::now(), 0);
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    while opened < HALF_OPEN {
        tick.tick().await;
        let due = (HALF_OPEN as f64 * since.elapsed().as_secs_f64() / WATCHED.as_secs_f64()) as usize;
        while opened < due.min(HALF_OPEN) {
            let mut stream = TcpStream::connect(to).await?;
            // The door may have closed it by now.
            let _ = stream.write_all(b"GET /v1/sta").await;
            open.push_back(stream);
            opened += 1;
            if open.len() > KEPT_OPEN {
                open.pop_front();
            }
        }
    }
    Ok(())
}

/// All that harms at once: connections that say only half of something, until there were enough of them; and meanwhile garbage behind good
/// requests, bodies without end, and clients that take no answers.
async fn attack(to: SocketAddr) -> io::Result<()> {
    let garbage = async {
        loop {
            if let Ok(mut stream) = TcpStream::connect(to).await {
                let good = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(50);
                let _ = stream.write_all(format!("{good}\0\x16GARBAGE\r\n\r\n").as_bytes()).await;
            }
            tokio::time::sleep(GARBAGE_EVERY).await;
        }
    };
    let endless = async {
        let piece = vec![b'x'; 65_536];
        loop {
            if let Ok(mut stream) = TcpStream::connect(to).await {
                let head = "POST /v1/buckets/b/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\n\r\n";
                let _ = stream.write_all(head.as_bytes()).await;
                while stream.write_all(&piece).await.is_ok() {}
            }
            tokio::time::sleep(GARBAGE_EVERY).await;
        }
    };
    let deaf = async {
        let request = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
        loop {
            if let Ok(mut stream) = TcpStream::connect(to).await {
                while stream.write_all(request.as_bytes()).await.is_ok() {}
            }
            tokio::time::sleep(GARBAGE_EVERY).await;
        }
    };
    tokio::select! {
        opened = open_halves(to) => opened,
        ((), (), ()) = async { tokio::join!(garbage, endless, deaf) } => unreachable!("they go on"),
    }
}

/// The pacer's lateness with and without an attack on the door, in turns.
fn lateness_under_attack(report: &mut Report) -> io::Result<()> {
    let street = Street::with(HTTP)?;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, street.daemon.http_port()?));
    let quiet = || {
        street.watch(|_| {
            std::thread::sleep(WATCHED);
            Ok(())
        })
    };
    let attacked = || {
        street.watch(|_| {
            let inside = runtime()?;
            let attack = async move {
                tokio::time::timeout(4 * WATCHED, attack(to)).await.map_err(|_| {
                    io::Error::other(format!("the door did not take {HALF_OPEN} connections in {:?}", 4 * WATCHED))
                })?
            };
            let attacker = std::thread::spawn(move || {
                // Attackers have machines of their own: what an attack costs them is not to take the pacer's turn here.
                rustix::process::nice(19)?;
                inside.block_on(attack)
            });
            attacker.join().map_err(|_| io::Error::other("the attack broke off"))?
        })
    };
    let (mut alone, mut under, mut ratios) = (Seen::new(), Seen::new(), Vec::new());
    for round in 0..PAIRS {
        let (first, second) = if round % 2 == 0 {
            (quiet()?, attacked()?)
        } else {
            let first = attacked()?;
            (quiet()?, first)
        };
        ratios.push(second.late.ms(99.0) / first.late.ms(99.0));
        alone.join(&first);
        under.join(&second);
    }
    let what = format!(
        "lateness p99 of a bucket at 100/s while the door is attacked, with {HALF_OPEN} half-open connections besides others ({} jobs)",
        under.late.len()
    );
    report.add(
        Row::new("http", what, under.late.ms(99.0), "ms")
            .beside("the same, quiet", alone.late.ms(99.0))
            .ratio(Spread::of(&ratios))
            .ratio_goal(Bound::AtMost(2.0)),
    );
    Ok(())
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    throughput(report)?;
    lateness_under_attack(report)
}
