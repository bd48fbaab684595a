//! peers: the same work on other people's tools, in turns. Each is a program in `benches/peers` that queues its jobs, lets them
//! go, and prints when each was handled; everything else is computed here, for all of them alike.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::JOB;
use super::lab::{Server, keys, queue};
use super::measure::{Spread, Times};
use super::report::{Compared, Report};
use super::wire::{Load, parts, text};
use dripd::model::route::Route;
use dripd::store::keys::GROUP;

const DIRECTORY: &str = "benches/peers";
const ROUNDS: usize = 3;

/// How long a tool may take for one work, from when its jobs are queued.
const SECONDS: u64 = 15;

/// Jobs for buckets of one rate, all of them there before the first leaves.
struct Work {
    words: &'static str,
    buckets: usize,
    interval: Duration,
    /// As a policy has it.
    rate: &'static str,
    jobs: usize,
    /// Whether each bucket can have its rate; else only the sum of them counts.
    paced: bool,
}

const fn works() -> [Work; 5] {
    let (ms, hundred) = (Duration::from_millis(1), Duration::from_millis(100));
    [
        Work { words: "1 bucket at 10/s", buckets: 1, interval: hundred, rate: "10/s", jobs: 20, paced: true },
        Work { words: "1 bucket at 1,000/s", buckets: 1, interval: ms, rate: "1000/s", jobs: 2_000, paced: true },
        Work { words: "100 buckets at 10/s", buckets: 100, interval: hundred, rate: "10/s", jobs: 20, paced: true },
        Work { words: "1,000 buckets at 10/s", buckets: 1_000, interval: hundred, rate: "10/s", jobs: 20, paced: true },
        Work {
            words: "500 buckets at 1,000/s, all they can",
            buckets: 500,
            interval: ms,
            rate: "1000/s",
            jobs: 10,
            paced: false,
        },
    ]
}

/// A tool: its name, and the command that runs it.
struct Peer {
    name: &'static str,
    command: &'static [&'static str],
}

const PEERS: [Peer; 5] = [
    Peer { name: "BullMQ", command: &["node", "bullmq.mjs"] },
    Peer { name: "Bottleneck", command: &["node", "bottleneck.mjs", "--mode", "local"] },
    Peer { name: "Bottleneck on Redis", command: &["node", "bottleneck.mjs", "--mode", "redis"] },
    Peer { name: "nginx limit_req", command: &["node", "nginx.mjs"] },
    Peer { name: "Celery", command: &[".venv/bin/python", "celery.py"] },
];

/// What one run of one tool did.
struct Run {
    /// How long it took to queue the jobs.
    queueing: Duration,
    /// When the jobs of each bucket were handled, in microseconds.
    handled: HashMap<String, Vec<u64>>,
}

/// What one run of one tool showed.
struct Figures {
    /// Jobs a second of a bucket: the median of the buckets.
    rate: f64,
    /// Jobs a second of all of them.
    sum: f64,
    /// Jobs a second while they were queued.
    queued: f64,
    /// Jobs a second of all the time from the first push to the last job in a handler's hand.
    whole: f64,
    /// How far gaps are from the interval, in milliseconds.
    spacing: (f64, f64),
}

impl Figures {
    fn of(Run { queueing, handled }: &Run, interval: Duration) -> Option<Self> {
        let (mut spacing, mut rates, interval_us) = (Times::new(), Vec::new(), interval.as_micros() as u64);
        for at in handled.values() {
            at.windows(2).for_each(|pair| spacing.add_us(pair[1].abs_diff(pair[0]).abs_diff(interval_us)));
            if let [first, .., last] = at[..] {
                rates.push((at.len() - 1) as f64 * 1e6 / last.abs_diff(first).max(1) as f64);
            }
        }
        let all = handled.values().flatten();
        let (first, last, n) = (all.clone().min()?, all.clone().max()?, all.count());
        let (handling, queueing) = ((last - first).max(1) as f64 / 1e6, queueing.as_secs_f64());
        (!rates.is_empty()).then(|| Self {
            rate: Spread::of(&rates).median,
            sum: (n - 1) as f64 / handling,
            queued: n as f64 / queueing,
            whole: n as f64 / (queueing + handling),
            spacing: (spacing.ms(50.0), spacing.ms(99.0)),
        })
    }
}

/// Run one of the tools.
fn run_peer(peer: &Peer, work: &Work, server: &Server) -> io::Result<Run> {
    server.wire()?.call(&["FLUSHALL"])?;
    let number = |n: usize| n.to_string();
    let mut command = Command::new(peer.command[0]);
    if Path::new(DIRECTORY).join(peer.command[0]).exists() {
        command = Command::new(std::fs::canonicalize(Path::new(DIRECTORY))?.join(peer.command[0]));
    }
    command.args(&peer.command[1..]).current_dir(DIRECTORY).stderr(Stdio::inherit());
    command.args(["--buckets", &number(work.buckets), "--interval-us", &work.interval.as_micros().to_string()]);
    command.args(["--jobs", &number(work.jobs), "--seconds", &SECONDS.to_string()]);
    command.env("REDIS_URL", format!("redis://127.0.0.1:{}", server.port));
    let output = command.output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{} ended with {}", peer.command.join(" "), output.status)));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let bad = |line: &str| io::Error::other(format!("{} said {line:?}", peer.name));
    let mut lines = said.lines().skip(1);
    let queued = lines.next().unwrap_or_default();
    let queueing = serde_json::from_str::<Queued>(queued).map_err(|_| bad(queued))?;
    let mut handled: HashMap<String, Vec<u64>> = HashMap::new();
    for line in lines {
        let (bucket, at) = line.split_once(' ').ok_or_else(|| bad(line))?;
        handled.entry(bucket.to_owned()).or_default().push(at.parse().map_err(|_| bad(line))?);
    }
    Ok(Run { queueing: Duration::from_micros(queueing.queued_us), handled })
}

/// The line in which a tool's program says how long queueing took.
#[derive(serde::Deserialize)]
struct Queued {
    queued_us: u64,
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// The same with dripd: plain pushes while no daemon runs, then a daemon, and a worker that notes when it has a job in hand and
/// acknowledges it.
fn run_dripd(work: &Work, server: &Server) -> io::Result<Run> {
    let mut wire = server.wire()?;
    wire.call(&["FLUSHALL"])?;
    let policies = format!("[defaults]\nrate = \"{}\"\ncapacity = 10000000\n", work.rate);
    server.record(&policies)?;
    let queues: Vec<String> = (0..work.buckets).map(|n| queue(&n.to_string())).collect();
    let mut load = Load::of(queues.iter().map(|queue| vec!["LPUSH", queue, JOB]));
    let since = Instant::now();
    wire.run(&mut load, work.buckets * work.jobs, 64)?;
    let queueing = since.elapsed();
    let _daemon = server.begin_daemon(&policies)?;
    let (mut handled, mut left, since) = (HashMap::<_, Vec<_>>::new(), work.buckets * work.jobs, Instant::now());
    let ready = keys().ready(&Route::default());
    let take = ["XREADGROUP", "GROUP", GROUP, "w", "COUNT", "100", "BLOCK", "100", "STREAMS", &ready, ">"];
    while left > 0 && since.elapsed() < Duration::from_secs(SECONDS) {
        let reply = wire.call(&take)?;
        let at = now_us();
        let mut ack = vec!["XACK", &ready, GROUP];
        for entry in parts(&reply).first().and_then(|stream| parts(stream).get(1)).map_or(&[] as &[_], parts) {
            let [id, fields] = parts(entry) else { continue };
            let (id, bucket) = (text(id), parts(fields).get(1).and_then(text));
            let (id, bucket) = id.zip(bucket).ok_or_else(|| io::Error::other("an entry names no bucket"))?;
            handled.entry(bucket.to_owned()).or_default().push(at);
            ack.push(id);
            left -= 1;
        }
        if ack.len() > 3 {
            wire.call(&ack)?;
        }
    }
    Ok(Run { queueing, handled })
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    if !Path::new(DIRECTORY).join("node_modules").exists() {
        let why =
            format!("the peers are not installed: run sh {DIRECTORY}/setup.sh in the source tree, and this beside it");
        return Err(io::Error::other(why));
    }
    let server = Server::start()?;
    for work in works() {
        let mut runs: Vec<(&str, Vec<Figures>)> = vec![("dripd", Vec::new())];
        runs.extend(PEERS.iter().map(|peer| (peer.name, Vec::new())));
        for _ in 0..ROUNDS {
            runs[0].1.extend(Figures::of(&run_dripd(&work, &server)?, work.interval));
            for (peer, (_, figures)) in PEERS.iter().zip(&mut runs[1..]) {
                match run_peer(peer, &work, &server) {
                    Ok(run) => figures.extend(Figures::of(&run, work.interval)),
                    Err(why) => eprintln!("{}: not measured: {why}", peer.name),
                }
            }
        }
        let mut compare = |figure: &str, unit: &'static str, pick: fn(&Figures) -> f64| {
            let cell = |figures: &Vec<Figures>| {
                let values: Vec<f64> = figures.iter().map(pick).collect();
                (!values.is_empty()).then(|| Spread::of(&values).median)
            };
            let cells = runs.iter().map(|(name, figures)| ((*name).to_owned(), cell(figures))).collect();
            report.compare(Compared { what: format!("{}: {figure}", work.words), unit: unit.into(), cells });
        };
        if work.paced {
            compare("rate a bucket", "/s", |figures| figures.rate);
            compare("spacing error p50", "ms", |figures| figures.spacing.0);
            compare("spacing error p99", "ms", |figures| figures.spacing.1);
        } else {
            compare("jobs queued", "/s", |figures| figures.queued);
            compare("jobs handled", "/s", |figures| figures.sum);
            compare("from the first push to the last handler", "/s", |figures| figures.whole);
        }
    }
    Ok(())
}
