//! Who pushes: a little more than may leave, so that the buckets whose rates are watched are never empty.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::lab::{Daemon, queue};
use super::measure::Over;
use super::wire::{Reply, Wire, parts};
use super::{Books, job};

const TICK: Duration = Duration::from_millis(100);

/// The capacity of all of them.
const CAPACITY: i64 = 50;

static NUMBER: AtomicU64 = AtomicU64::new(1);

fn number() -> u64 {
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Buckets, each with how many jobs it gets in a second.
type Pushed = Vec<(String, f64)>;

fn pushed(of: &[(&str, usize, f64)]) -> Pushed {
    of.iter().flat_map(|(name, n, a_second)| (0..*n).map(move |n| (format!("{name}:{n}"), *a_second))).collect()
}

/// Call `push` with each bucket that is due, tick after tick, until it is over.
fn each(
    mut of: Pushed,
    over: &Over,
    mut push: impl FnMut(&str) -> io::Result<()>,
    mut tick: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    fastrand::shuffle(&mut of);
    let (began, mut ticks) = (Instant::now(), 0_u64);
    let mut done = vec![0_u64; of.len()];
    while !over.is_set() {
        ticks += 1;
        std::thread::sleep((TICK * ticks as u32).saturating_sub(began.elapsed()));
        for ((name, a_second), done) in of.iter().zip(&mut done) {
            while (*done as f64) < began.elapsed().as_secs_f64() * a_second {
                *done += 1;
                push(name)?;
            }
        }
        tick(ticks)?;
    }
    Ok(())
}

/// Plain pushes. What becomes of those that are purged, dropped or done by `dripd work` is not followed.
pub(super) fn plain(mut wire: Wire, books: &Books, over: &Over) -> io::Result<()> {
    let of = pushed(&[
        ("exact", 10, 12.0),
        ("slots", 1, 48.0),
        ("throttled", 2, 6.0),
        ("changing", 2, 9.0),
        ("operated", 2, 12.0),
        ("dropped", 1, 1.0),
        ("work", 2, 3.0),
    ]);
    let push = |name: &str| {
        let is_followed = !["operated", "dropped", "work"].iter().any(|no| name.starts_with(no));
        let number = if is_followed { number() } else { 0 };
        let length = wire.int(&["LPUSH", &queue(name), &job(number)])?;
        books.pushed(number, length <= CAPACITY);
        Ok(())
    };
    each(of, over, push, |_| Ok(()))
}

/// The first number that a function replies.
fn first(wire: &mut Wire, words: &[&str]) -> io::Result<i64> {
    let reply = wire.call(words)?;
    match parts(&reply).first() {
        Some(Reply::Integer(first)) => Ok(*first),
        _ => Err(io::Error::other(format!("{words:?} replied {reply:?}"))),
    }
}

const LIMITERS: [&[&str]; 6] = [
    &["drip_fixed_window", "5", "10000"],
    &["drip_sliding_window", "5", "10000"],
    &["drip_sliding_counter", "5", "10000"],
    &["drip_token_bucket", "5", "1", "1000"],
    &["drip_leaky_meter", "5", "1", "1000"],
    &["drip_throttle", "4", "1", "1"],
];

/// Pushes by the function, into buckets with new names too; and calls of every limiter, with ever new keys.
pub(super) fn atomic(mut wire: Wire, books: &Books, over: &Over) -> io::Result<()> {
    let mut of = pushed(&[("steady", 10, 12.0), ("gated", 1, 12.0), ("quota", 1, 3.0), ("once", 1, 20.0)]);
    of.extend(["tree:a", "tree:b", "tree:c"].iter().flat_map(|of| pushed(&[(of, 2, 18.0)])));
    let wire = std::cell::RefCell::new(&mut wire);
    let push = |name: &str| {
        let number = number();
        let name = if name.starts_with("once") { format!("once:{number}") } else { name.to_owned() };
        let words = ["FCALL", "drip_push", "1", &queue(&name), &job(number)];
        books.pushed(number, first(&mut wire.borrow_mut(), &words)? == 1);
        Ok(())
    };
    let tick = |ticks: u64| {
        for (n, limiter) in LIMITERS.iter().enumerate() {
            let key = format!("limited:{n}:{}", if ticks.is_multiple_of(2) { ticks } else { ticks % 20 });
            let words = [&["FCALL", limiter[0], "1", &key], &limiter[1..]].concat();
            first(&mut wire.borrow_mut(), &words)?;
        }
        Ok(())
    };
    each(of, over, push, tick)
}

/// What is read at the door, one of them a second.
const READ: [&str; 8] = [
    "/metrics",
    "/v1/status",
    "/v1/buckets",
    "/v1/buckets/exact:0",
    "/v1/settings",
    "/v1/budgets",
    "/v1/budgets/tree",
    "/readyz",
];

/// Pushes over HTTP; and somebody who reads the door's pages.
pub(super) fn http(daemon: &Daemon, books: &Books, over: &Over) -> io::Result<()> {
    let runtime = runtime()?;
    let client = reqwest::Client::builder().timeout(Duration::from_secs(30)).build().map_err(io::Error::other)?;
    let door = format!("http://127.0.0.1:{}", daemon.http_port()?);
    let push = |name: &str| {
        let number = number();
        runtime.block_on(async {
            let request = client.post(format!("{door}/v1/buckets/{name}/jobs")).body(job(number));
            let answer = request.send().await.map_err(io::Error::other)?;
            let status = answer.status().as_u16();
            let body: Value =
                serde_json::from_slice(&answer.bytes().await.map_err(io::Error::other)?).map_err(io::Error::other)?;
            match status {
                202 => books.pushed(number, true),
                429 => books.pushed(number, false),
                _ => return Err(io::Error::other(format!("a push over HTTP: {status}: {body}"))),
            }
            Ok(())
        })
    };
    let tick = |ticks: u64| {
        if !ticks.is_multiple_of(10) {
            return Ok(());
        }
        let path = READ[(ticks / 10) as usize % READ.len()];
        runtime.block_on(async {
            let answer = client.get(format!("{door}{path}")).send().await.map_err(io::Error::other)?;
            let status = answer.status();
            answer.bytes().await.map_err(io::Error::other)?;
            if status.is_success() { Ok(()) } else { Err(io::Error::other(format!("{path}: {status}"))) }
        })
    };
    each(pushed(&[("http", 4, 12.0)]), over, push, tick)
}

/// Listen to the door's events, and come again whenever the stream ends, as a browser does.
pub(super) fn listen(daemon: &Daemon, over: &Over) -> io::Result<()> {
    let url = format!("http://127.0.0.1:{}/v1/events", daemon.http_port()?);
    let (runtime, client) = (runtime()?, reqwest::Client::new());
    runtime.block_on(async {
        while !over.is_set() {
            if let Ok(mut answer) = client.get(&url).send().await {
                // Something is said every 15 s; it must not wait for that at the end.
                while !over.is_set() && !matches!(timeout(TICK, answer.chunk()).await, Ok(Ok(None) | Err(_))) {}
            }
            tokio::time::sleep(TICK).await;
        }
    });
    Ok(())
}

fn runtime() -> io::Result<Runtime> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
