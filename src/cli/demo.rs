//! `dripd demo`: the main job before your eyes. A daemon with its built-in Redis in a throw-away directory, three buckets
//! at different rates, bursts of plain pushes, and workers that take what has dripped out. It measures what is promised
//! from the outside and fails when a promise was broken.

use std::collections::{BTreeMap, HashMap};
use std::io::IsTerminal;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal as Kill, kill_process};
use tokio::task::JoinSet;

use super::{Exit, Failure, say};
use crate::config::{Config, Environment};
use crate::store::{Address, Partition, Store, StoreError};
use crate::system::signals::{Signal, Signals};
use crate::words::bucket::BucketName;
use crate::words::policy::{Policy, Route};
use crate::words::rate::Rate;

/// The buckets of the demo: name, rate, capacity, and how many jobs a burst brings.
const BUCKETS: [(&str, &str, u32, usize); 3] =
    [("mail", "5/s", 20, 30), ("sms", "25/s", 60, 100), ("webhook", "200/s", 400, 600)];

/// When bursts come, in milliseconds after the start.
const BURSTS: [u64; 3] = [0, 4_000, 8_000];

/// When the last job should have left, and when the demo ends whatever happens.
const ENDS_AT: Duration = Duration::from_secs(14);

/// How long a push may stay over capacity while the daemon runs (promise 2), with room for a busy machine.
const CUT_WITHIN: Duration = Duration::from_millis(50);

const WORKERS: usize = 4;
const TICK: Duration = Duration::from_millis(100);

/// Show the main job: bursts in, a steady drip out.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 all promises were kept, 1 one was broken, 69 no Redis to run, 130 interrupted")]
pub(super) struct Demo {}

/// The daemon of the demo, and the directory it lives in. Both end with the value.
struct Stage {
    daemon: Child,
    _home: tempfile::TempDir,
}

impl Drop for Stage {
    fn drop(&mut self) {
        let pid = i32::try_from(self.daemon.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, Kill::TERM); // it stops its Redis
        }
        let _ = self.daemon.wait();
    }
}

/// What happened to one bucket, as its producers and workers saw it.
#[derive(Default)]
struct Bucket {
    rate: Option<Rate>,
    capacity: u64,
    pushed: u64,
    accepted: Vec<u64>,
    rejected: u64,
    depth: u64,
    over_since: Option<Instant>,
    longest_over: Duration,
    last_taken: Option<Instant>,
    taken: Vec<Taken>,
}

/// A job in a worker's hand.
struct Taken {
    number: u64,
    due_us: u64,
    at_us: u64,
}

impl Demo {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let mut signals = Signals::listen()?;
        let (stage, config) = set_up()?;
        let address = Address::of(&config.redis)?;
        tokio::select! {
            told = play(stage, &address, &config) => told,
            () = async { while signals.next().await == Signal::Status {} } => Err(Failure::new(Exit::Interrupted, "interrupted")),
        }
    }
}

fn set_up() -> Result<(Stage, Config), Failure> {
    let home = tempfile::tempdir()?;
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let mut toml = format!("[redis]\nport = {port}\ndata_dir = {:?}\n", home.path().join("data").display().to_string());
    for (name, rate, capacity, _) in BUCKETS {
        toml += &format!("[[bucket]]\nmatch = \"{name}\"\nrate = \"{rate}\"\ncapacity = {capacity}\n");
    }
    let path = home.path().join("config.toml");
    std::fs::write(&path, &toml)?;
    let config = Config::parse(&toml, Some(path.clone()), &Environment::default())?;
    let daemon = start_daemon(home.path(), &path)?;
    Ok((Stage { daemon, _home: home }, config))
}

fn start_daemon(home: &Path, config: &Path) -> Result<Child, Failure> {
    let log = std::fs::File::create(home.join("dripd.log"))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--config").arg(config).arg("run").current_dir(home);
    command.env_remove("DRIPD_REDIS_URL").env_remove("STATE_DIRECTORY").env("RUNTIME_DIRECTORY", home.join("run"));
    std::os::unix::process::CommandExt::process_group(&mut command, 0); // Ctrl-C is for the demo: it stops the daemon
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?)
}

/// Wait until the daemon serves; say its own words when it does not.
async fn wait_for_daemon(stage: &mut Stage, address: &Address, config: &Config) -> Result<Store, Failure> {
    let since = Instant::now();
    let log =
        config.path.as_ref().and_then(|path| path.parent()).map(|home| home.join("dripd.log")).unwrap_or_default();
    loop {
        if let Some(status) = stage.daemon.try_wait()? {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let said = said.lines().last().unwrap_or("nothing").to_owned();
            let exit = if status.code() == Some(69) { Exit::Unavailable } else { Exit::Failed };
            return Err(Failure::new(exit, format!("the daemon ended: {said}")));
        }
        if let Ok(mut store) = Store::connect(address, &Partition::of(&config.redis)).await
            && store.has_record(&config.record).await.unwrap_or(None) == Some(true)
        {
            return Ok(store);
        }
        if since.elapsed() > Duration::from_secs(20) {
            return Err(Failure::new(Exit::Failed, format!("the daemon does not serve; see {}", log.display())));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn play(mut stage: Stage, address: &Address, config: &Config) -> Result<Exit, Failure> {
    let mut store = wait_for_daemon(&mut stage, address, config).await?;
    let route = Route::default();
    let (sender, mut taken) = tokio::sync::mpsc::unbounded_channel();
    let mut workers = JoinSet::new();
    for n in 0..WORKERS {
        workers.spawn(work(
            address.clone(),
            Partition::of(&config.redis),
            route.clone(),
            format!("demo-{n}"),
            sender.clone(),
        ));
    }
    let mut buckets: BTreeMap<BucketName, Bucket> = BTreeMap::new();
    for (name, rate, capacity, _) in BUCKETS {
        let name = name.parse().expect("a good name");
        let rate = Some(Rate::parse(rate).expect("a good rate"));
        buckets.insert(name, Bucket { rate, capacity: u64::from(capacity), ..Bucket::default() });
    }
    let names: Vec<BucketName> = buckets.keys().cloned().collect();
    let mut view = View::new(&buckets);
    let start = Instant::now();
    let mut bursts = BURSTS.iter().map(|ms| Duration::from_millis(*ms)).peekable();
    let mut tick = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            Some(ended) = workers.join_next() => {
                let why = match ended { Ok(Err(why)) => why.to_string(), other => format!("{other:?}") };
                return Err(Failure::new(Exit::Failed, format!("a worker of the demo ended: {why}")));
            }
            Some((bucket, job)) = taken.recv() => {
                if let Some(bucket) = buckets.get_mut(&bucket) {
                    bucket.last_taken = Some(Instant::now());
                    bucket.taken.push(job);
                }
            }
            _ = tick.tick() => {
                if bursts.next_if(|at| start.elapsed() >= *at).is_some() {
                    for (name, _, _, burst) in BUCKETS {
                        let name = name.parse().expect("a good name");
                        push(&mut store, &name, buckets.get_mut(&name).expect("known"), burst).await?;
                    }
                }
                watch_depths(&mut store, &names, &mut buckets).await?;
                view.show(&buckets, start.elapsed());
                let done = buckets.values().all(|b| b.taken.len() == b.accepted.len());
                if (done && bursts.peek().is_none()) || start.elapsed() >= ENDS_AT { break }
            }
        }
    }
    workers.shutdown().await;
    while let Ok((bucket, job)) = taken.try_recv() {
        buckets.get_mut(&bucket).expect("known").taken.push(job);
    }
    view.finish();
    let broken = judge(&mut store, &buckets).await?;
    summary(&buckets, start.elapsed());
    if broken.is_empty() {
        say("\nrate, bound, order and nothing lost: kept, as measured from the entries of the stream");
        return Ok(Exit::Done);
    }
    Err(Failure::new(Exit::Failed, format!("broken: {}", broken.join("; "))))
}

/// Take jobs and acknowledge them.
async fn work(
    address: Address,
    partition: Partition,
    route: Route,
    name: String,
    sender: tokio::sync::mpsc::UnboundedSender<(BucketName, Taken)>,
) -> Result<(), StoreError> {
    let mut reader = Store::connect_blocking(&address, &partition, Duration::from_secs(1)).await?;
    let mut store = Store::connect(&address, &partition).await?;
    reader.open_route(&route).await?;
    loop {
        for job in reader.take(&route, &name, 1, Duration::from_secs(1)).await? {
            let number = job.body.as_deref().and_then(|body| std::str::from_utf8(body).ok()?.parse().ok());
            if let (Some(bucket), Some(number)) = (job.bucket, number) {
                let _ = sender.send((bucket, Taken { number, due_us: job.due_us, at_us: job.at_us }));
            }
            store.ack(&route, &job.entry).await?;
        }
    }
}

/// A burst of plain pushes, each judged by its reply as any producer would.
async fn push(store: &mut Store, name: &BucketName, bucket: &mut Bucket, burst: usize) -> Result<(), StoreError> {
    for part in [burst / 2, burst - burst / 2] {
        let first = bucket.pushed;
        let numbers: Vec<u64> = (first..first + part as u64).collect();
        let jobs: Vec<Vec<u8>> = numbers.iter().map(|n| n.to_string().into_bytes()).collect();
        let length = store.push_plain(name, &jobs).await?;
        let rejected = usize::try_from(length.saturating_sub(bucket.capacity)).unwrap_or(part).min(part);
        bucket.accepted.extend(&numbers[..part - rejected]);
        bucket.rejected += rejected as u64;
        bucket.pushed += part as u64;
    }
    Ok(())
}

/// Ask how many jobs wait, and note for how long more did than may.
async fn watch_depths(
    store: &mut Store,
    names: &[BucketName],
    buckets: &mut BTreeMap<BucketName, Bucket>,
) -> Result<(), StoreError> {
    let mut asked = Instant::now();
    let mut depths = store.depths(names).await?;
    let since = Instant::now();
    let over = |names: &[BucketName], depths: &[u64], buckets: &BTreeMap<BucketName, Bucket>| {
        names.iter().zip(depths).any(|(name, depth)| *depth > buckets[name].capacity)
    };
    while over(names, &depths, buckets) && since.elapsed() < Duration::from_secs(1) {
        for (name, depth) in names.iter().zip(&depths) {
            let bucket = buckets.get_mut(name).expect("known");
            if *depth > bucket.capacity {
                let at = *bucket.over_since.get_or_insert(since);
                // Surely from the first answer to the last question: a demo that was slow to look is no broken promise.
                bucket.longest_over = bucket.longest_over.max(asked.saturating_duration_since(at));
            }
        }
        asked = Instant::now();
        depths = store.depths(names).await?;
    }
    for (name, depth) in names.iter().zip(depths) {
        let bucket = buckets.get_mut(name).expect("known");
        bucket.over_since = None;
        bucket.depth = depth;
    }
    Ok(())
}

/// Which promises were broken: from what producers were told and what workers took.
async fn judge(store: &mut Store, buckets: &BTreeMap<BucketName, Bucket>) -> Result<Vec<String>, StoreError> {
    let mut broken = Vec::new();
    let catch_up = u64::try_from(Policy::default().catch_up.as_micros()).unwrap_or(u64::MAX);
    let mut rejected: HashMap<String, u64> = HashMap::new();
    for (bucket, _) in store.rejected().await? {
        *rejected.entry(bucket).or_default() += 1;
    }
    for (name, bucket) in buckets {
        let rate = bucket.rate.expect("every bucket has one");
        let mut by_time: Vec<&Taken> = bucket.taken.iter().collect();
        by_time.sort_by_key(|job| (job.at_us, job.due_us));
        let times: Vec<u64> = by_time.iter().map(|job| job.at_us).collect();
        if let Some(width) = broken_window(&times, rate, catch_up) {
            broken.push(format!("rate: {name}: too many jobs left within {width} us"));
        }
        if bucket.longest_over > CUT_WITHIN {
            broken.push(format!("bound: {name}: over capacity for {:?}", bucket.longest_over));
        }
        if !by_time.windows(2).all(|pair| pair[0].number < pair[1].number) {
            broken.push(format!("order: {name}: a job overtook another"));
        }
        let waiting = bucket.accepted.len().saturating_sub(bucket.taken.len());
        let mut took: Vec<u64> = bucket.taken.iter().map(|job| job.number).collect();
        took.sort_unstable();
        if took != bucket.accepted[..bucket.accepted.len() - waiting] || waiting as u64 > bucket.depth {
            broken.push(format!(
                "nothing lost: {name}: {} accepted, {} taken, {} wait",
                bucket.accepted.len(),
                took.len(),
                bucket.depth
            ));
        }
        let recorded = rejected.get(name.as_str()).copied().unwrap_or(0);
        if recorded != bucket.rejected && bucket.rejected <= 100 {
            broken.push(format!("verdict: {name}: {} told rejected, {recorded} recorded", bucket.rejected));
        }
    }
    Ok(broken)
}

/// A window that holds more than `1 + (W + catch_up) / interval` jobs, to within a microsecond.
fn broken_window(times: &[u64], rate: Rate, catch_up_us: u64) -> Option<u64> {
    let (count, period) = (u128::from(rate.count()), rate.period().as_micros());
    (0..times.len()).find_map(|from| {
        (from..times.len()).find_map(|to| {
            let (jobs, width) = ((to - from + 1) as u128, times[to] - times[from]);
            let most = 1 + u128::from(width + catch_up_us + 1) * count / period;
            (jobs > most).then_some(width)
        })
    })
}

/// The lateness that `part` of the jobs stayed below, in milliseconds.
fn lateness(bucket: &Bucket, part: f64) -> f64 {
    let mut late: Vec<u64> = bucket.taken.iter().map(|job| job.at_us.saturating_sub(job.due_us)).collect();
    late.sort_unstable();
    let at = ((late.len() as f64 * part).ceil() as usize).clamp(1, late.len().max(1)) - 1;
    late.get(at).map_or(0.0, |us| *us as f64 / 1e3)
}

/// The live view: a bar a bucket on a terminal, a line a second elsewhere.
struct View {
    bars: Option<(MultiProgress, Vec<ProgressBar>)>,
    told: u64,
}

impl View {
    fn new(buckets: &BTreeMap<BucketName, Bucket>) -> Self {
        say(&format!("three buckets, a burst every four seconds, {WORKERS} workers; the rest is the timer's\n"));
        if !std::io::stdout().is_terminal() {
            return Self { bars: None, told: 0 };
        }
        let multi = MultiProgress::with_draw_target(indicatif::ProgressDrawTarget::stdout());
        let style = ProgressStyle::with_template("{prefix:9.bold} {bar:24.cyan/dim} {pos:>3}/{len:<3} {msg}");
        let style = style.expect("a good template").progress_chars("━━─");
        let bars = buckets.iter().map(|(name, bucket)| {
            let bar = multi.add(ProgressBar::new(bucket.capacity).with_style(style.clone()));
            bar.set_prefix(name.to_string());
            bar
        });
        let bars = bars.collect();
        Self { bars: Some((multi, bars)), told: 0 }
    }

    fn show(&mut self, buckets: &BTreeMap<BucketName, Bucket>, elapsed: Duration) {
        match &self.bars {
            Some((_, bars)) => {
                for (bar, bucket) in bars.iter().zip(buckets.values()) {
                    bar.set_position(bucket.depth.min(bucket.capacity));
                    bar.set_message(describe(bucket));
                }
            }
            None if elapsed.as_secs() >= self.told => {
                self.told = elapsed.as_secs() + 1;
                for (name, bucket) in buckets {
                    say(&format!(
                        "{:>3} s  {:<8} {:>3}/{:<3}  {}",
                        elapsed.as_secs(),
                        name.as_str(),
                        bucket.depth,
                        bucket.capacity,
                        describe(bucket)
                    ));
                }
            }
            None => {}
        }
    }

    fn finish(&self) {
        if let Some((_, bars)) = &self.bars {
            bars.iter().for_each(ProgressBar::abandon);
            say("");
        }
    }
}

/// What a bucket does now: its rate over the last second, 0 once it is empty.
fn describe(bucket: &Bucket) -> String {
    let last = bucket.taken.iter().map(|job| job.at_us).max().unwrap_or(0);
    let mut recent: Vec<u64> = bucket.taken.iter().map(|job| job.at_us).filter(|at| at + 1_050_000 > last).collect();
    recent.sort_unstable();
    let span = recent.first().map_or(0, |first| last - first);
    let idle = bucket.depth == 0 && bucket.last_taken.is_none_or(|at| at.elapsed() > Duration::from_millis(500));
    let out = if span == 0 || idle { 0.0 } else { (recent.len() - 1) as f64 * 1e6 / span as f64 };
    let rate = bucket.rate.map(|rate| rate.to_string()).unwrap_or_default();
    let (rejected, late) = (bucket.rejected, lateness(bucket, 0.99));
    format!("out {out:>5.1}/s of {rate:<6} rejected {rejected:<4} late p99 {late:.2} ms")
}

fn summary(buckets: &BTreeMap<BucketName, Bucket>, took: Duration) {
    say(&format!("\nmeasured over {:.1} s", took.as_secs_f64()));
    say("bucket    rate set   rate out   pushed  accepted  rejected  taken  late p50   late p99   latest");
    for (name, bucket) in buckets {
        let rate = bucket.rate.expect("every bucket has one");
        say(&format!(
            "{:<9} {:<9} {:>7.2}/s  {:>6}  {:>8}  {:>8}  {:>5}  {:>5.2} ms   {:>5.2} ms   {:>5.2} ms",
            name.as_str(),
            rate.to_string(),
            rate_out(bucket, rate),
            bucket.pushed,
            bucket.accepted.len(),
            bucket.rejected,
            bucket.taken.len(),
            lateness(bucket, 0.5),
            lateness(bucket, 0.99),
            lateness(bucket, 1.0)
        ));
    }
}

/// The rate while the bucket was not empty: gaps of more than one and a half intervals are pauses between bursts.
fn rate_out(bucket: &Bucket, rate: Rate) -> f64 {
    let mut dues: Vec<u64> = bucket.taken.iter().map(|job| job.at_us).collect();
    dues.sort_unstable();
    let pause = 1_500_000.0 / rate.per_second() + 20_000.0;
    let gaps: Vec<f64> = dues.windows(2).map(|pair| (pair[1] - pair[0]) as f64).filter(|gap| *gap <= pause).collect();
    if gaps.is_empty() { 0.0 } else { gaps.len() as f64 * 1e6 / gaps.iter().sum::<f64>() }
}
