//! http: what a push costs over HTTP, beside a handler of the same framework that only does an `LPUSH`; and what the door under attack
//! costs the pacer.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
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
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::lab::{Apart, Server, queue};
use super::measure::{PAIRS, Spread};
use super::neighbours::{Seen, Street};
use super::report::{Bound, Report, Row};
use super::{JOB, SLOW};

/// How many connections push at a time, each one push after the other.
const CONNECTIONS: usize = 64;

/// How many lines a request of several jobs has.
const LINES: usize = 100;

const SAMPLE: Duration = Duration::from_millis(500);

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

/// A request that pushes, as it goes over the wire.
fn push(bucket: &str, more: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST /v1/buckets/{bucket}/jobs{more} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// Send a request again and again over one connection until the time is over. Replies how often it was answered.
async fn repeat(to: SocketAddr, request: &[u8], until: Instant) -> io::Result<usize> {
    let mut stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let (mut answers, mut buffer) = (0, vec![0; 4_096]);
    while Instant::now() < until {
        stream.write_all(request).await?;
        let mut read = 0;
        // Its answers are small: all of one comes at once, or nearly so.
        while !is_whole(&buffer[..read])? {
            match stream.read(&mut buffer[read..]).await? {
                0 => return Err(io::Error::other("the connection ended")),
                n => read += n,
            }
        }
        answers += 1;
    }
    Ok(answers)
}

/// Whether this is a whole answer, and one that says that it went in.
fn is_whole(answer: &[u8]) -> io::Result<bool> {
    let Some(head) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(false) };
    if !(answer.starts_with(b"HTTP/1.1 202") || answer.starts_with(b"HTTP/1.1 200")) {
        return Err(io::Error::other(String::from_utf8_lossy(answer).into_owned()));
    }
    let text = std::str::from_utf8(&answer[..head]).map_err(io::Error::other)?;
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    Ok(answer.len() >= head + 4 + length.unwrap_or(0))
}

/// Requests a second over all connections.
fn rate(runtime: &Runtime, to: SocketAddr, request: &[u8]) -> io::Result<f64> {
    let since = Instant::now();
    let all = (0..CONNECTIONS).map(|_| repeat(to, request, since + SAMPLE));
    let answers: io::Result<Vec<usize>> = runtime.block_on(futures_util::future::join_all(all)).into_iter().collect();
    Ok(answers?.iter().sum::<usize>() as f64 / since.elapsed().as_secs_f64())
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

fn throughput(report: &mut Report) -> io::Result<()> {
    let server = Server::start()?;
    let daemon = server.daemon(&format!("{SLOW}{HTTP}"))?;
    let door = SocketAddr::from((Ipv4Addr::LOCALHOST, daemon.http_port()?));
    let (bare, runtime, mut wire) = (Bare::start(server.port)?, runtime()?, server.wire()?);
    let _apart = Apart::of(&[&server])?;
    let single = push("b", "", JOB);
    // Each sample begins with short queues, so that none of them pays for what the others left.
    let mut emptied = |sampled: io::Result<f64>| {
        wire.call(&["UNLINK", &queue("b"), "bare:b"])?;
        sampled
    };
    let emptied = std::cell::RefCell::new(&mut emptied);
    let sample = |to, request: &[u8]| (emptied.borrow_mut())(rate(&runtime, to, request));
    report.pairs(
        |pairs| {
            Row::of("http", format!("pushes, {CONNECTIONS} connections that are kept"), pairs.mine, "/s")
                .beside("a handler that only does LPUSH", pairs.beside.median)
                .ratio(pairs.ratio)
                .ratio_goal(Bound::AtLeast(0.5))
        },
        || sample(door, &single),
        || sample(bare.at, &single),
    )?;
    let lines = push("b", "?split=lines", &format!("{JOB}\n").repeat(LINES));
    report.pairs(
        |pairs| {
            Row::of("http", format!("jobs, {LINES} lines a push, {CONNECTIONS} connections"), pairs.mine, "/s")
                .beside("a job a push", pairs.beside.median)
                .ratio(pairs.ratio)
                .ratio_goal(Bound::AtLeast(5.0))
        },
        || sample(door, &lines).map(|rate| rate * LINES as f64),
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
        let piece = vec![b'x'; 1_048_576];
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
            let attacker = std::thread::spawn(move || inside.block_on(attack));
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
