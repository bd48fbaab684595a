//! `dripd status`: the state of everything, or of one bucket, as text or as JSON.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;

use unicode_width::UnicodeWidthStr as _;

use super::columns::{self, COLUMNS, labelled};
use super::{Exit, Failure, connect_now, print};
use crate::config::Config;
use crate::model::bucket::BucketName;
use crate::model::counted::counted;
use crate::model::duration;
use crate::model::escape::{escaped_json, line as one_line, lines, shell};
use crate::model::naming;
use crate::operate::moment;
use crate::operate::target::one_name;
use crate::store::heartbeat::{DaemonStatus, WakeUp};
use crate::store::routes::{RouteStatus, say_pace};
use crate::store::status::{AwayPartition, Status, StatusTop, WritesRefused};
use crate::store::top::Row;
use crate::store::view::BucketStatus;

/// Say how things stand.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Only this bucket
    #[arg(value_parser = one_name)]
    bucket: Option<BucketName>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(super) fn action(&self) -> String {
        self.bucket
            .as_ref()
            .map_or_else(|| "say how all stands".to_owned(), |bucket| format!("say how {bucket} stands"))
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let mut store = connect_now(config).await?;
        let (json, text, refused) = if let Some(bucket) = &self.bucket {
            let status = store.of(bucket).bucket_status(bucket).await?;
            let refused = store.of(bucket).writes_refused().await?;
            let text = refused.as_ref().map(describe_refusal).unwrap_or_default() + &describe_bucket(&status);
            (serde_json::to_string(&status), text, refused)
        } else {
            let status = store.status(&config.record).await?;
            (serde_json::to_string(&status), describe(&status, config), status.refuses_writes)
        };
        let json = json.expect("a status is text and numbers") + "\n";
        let exit = print(if self.json { escaped_json(&json) } else { lines(&text).into_owned() }.as_bytes())?;
        Ok(if refused.is_some() { Exit::Rejected } else { exit })
    }
}

/// The line that Redis takes no writes.
fn describe_refusal(refused: &WritesRefused) -> String {
    labelled("REFUSED", &format!("{}: {}", refused.outcome(), refused.why))
}

fn ms(us: u64) -> String {
    format!("{:.1} ms", us as f64 / 1e3)
}

fn describe(status: &Status, config: &Config) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: String| out += &labelled(name, &text);
    line("redis", format!("{}, version {}", status.redis, status.version));
    if let Some(partitions) = status.partitions {
        line("partitions", partitions.to_string());
    }
    for AwayPartition { partition, node, why } in status.away.iter().flatten() {
        line("AWAY", format!("partition {partition} at {node}: {why}; nothing here tells of it"));
    }
    for warning in &status.warnings {
        line("warning", warning.clone());
    }
    if let Some(refused) = &status.refuses_writes {
        out += &describe_refusal(refused);
    }
    let mut line = |name: &str, text: String| out += &labelled(name, &text);
    let stops_all = status.refuses_writes.as_ref().is_some_and(|refused| !refused.pushes_only);
    if status.daemons.is_empty() && stops_all {
        line("daemons", "not known: none can say that it runs while redis refuses writes".to_owned());
    } else if status.daemons.is_empty() {
        line("DAEMONS", "NONE RUNS: nothing leaves a bucket; start one with `dripd run`; where one runs, `dripd explain BUCKET` says what stops it".to_owned());
    }
    for daemon in &status.daemons {
        line("daemon", describe_daemon(daemon));
    }
    let record = match (status.has_record, status.same_record) {
        (false, _) => {
            "none is stored: no daemon has run here, and pushes by function are refused until one does".to_owned()
        }
        (true, true) => format!("in force as in {}", config.source()),
        // A command without a file sees the policies of another directory: the advice must not make anybody replace
        // them by the defaults.
        (true, false) if config.path.is_none() => {
            "in force; no configuration file is found from here to compare them with: --config names one".to_owned()
        }
        (true, false) => {
            let file = config.source();
            format!(
                "another one is in force than in {file}; a daemon that reads this file puts it in force by starting or `dripd reload`"
            )
        }
    };
    line("policies", if status.spreading { record + ", still spreading" } else { record });
    if let Some(source) = &status.record_source {
        let file = source.path.as_ref().map_or("the built-in defaults", String::as_str);
        line("from", format!("{file} on {}", source.host));
    }
    let Status { scheduled, paused, retrying, delayed, sharing, held, full, .. } = status;
    let some = |n: u64, what: &str| if n == 0 { String::new() } else { format!("{n} {what}, ") };
    let tree = some(*sharing, "waiting for a share") + &some(*held, "held for workers") + &some(*full, "for a slot");
    line("buckets", format!("{scheduled} scheduled, {tree}{paused} paused, {retrying} with retries or delayed jobs"));
    if *delayed > 0 {
        line("delayed", counted(*delayed, "job waits for its time", "jobs wait for their time"));
    }
    for route in &status.routes {
        line("route", format!("{}: {}", route.route, describe_route(route)));
        if let Some(says) = &route.says {
            line("HELD", says.clone());
        }
        if let Some(why) = &route.wrong {
            line("ROUTE", format!("NOTHING LEAVES by {}: {why}", route.route));
        }
    }
    line("streams", format!("{} rejected, {} dead", status.rejected, status.dead));
    let counters: Vec<_> = status.counters.iter().map(|(name, n)| format!("{n} {name}")).collect();
    line("counted", if counters.is_empty() { "nothing yet".to_owned() } else { counters.join(", ") });
    if let Some(late) = status.lateness {
        line("lateness", format!("p50 {}, p99 {}, max {}", ms(late.p50_us), ms(late.p99_us), ms(late.max_us)));
    }
    if let Some(top) = &status.top {
        return out + &describe_top(top);
    }
    let why = if status.daemons.is_empty() { "no daemon runs" } else { "the daemon has not yet looked at all" };
    out + &labelled("fullest", &format!("not known: {why}"))
}

/// The buckets that come first, and how old that ranking is.
fn describe_top(top: &StatusTop) -> String {
    let age = format!("{} ago", rough_ms(top.age_ms));
    let mut out = match top.buckets {
        0 => labelled("fullest", &format!("no bucket had work {age}")),
        n => labelled("fullest", &format!("of {n} buckets with work, {age}")),
    };
    out += &table(["depth", "capacity", "empty in"], &top.fullest, |row| {
        [row.depth.to_string(), row.capacity.to_string(), rough_ms(row.empty_in_ms)]
    });
    let what = if top.rejecting.is_empty() { "nothing" } else { "about so many jobs" };
    out += &labelled("rejecting", &format!("{what} in the last 10 to 20 minutes, {age}"));
    out + &table(["rejected", "depth", "capacity"], &top.rejecting, |row| {
        [row.rejected.to_string(), row.depth.to_string(), row.capacity.to_string()]
    })
}

fn rough_ms(ms: u64) -> String {
    duration::rough(Duration::from_millis(ms))
}

/// A table of buckets: three figures, the rate, what each waits for, and its name. Without rows it is empty.
fn table(heads: [&str; 3], rows: &[Row], figures: impl Fn(&Row) -> [String; 3]) -> String {
    let line = |figures: &[String; 3], rate: &str, place: &str, bucket: &str| {
        let [a, b, c] = figures;
        let line = format!("  {a:>8} {b:>8} {c:>8}  {rate:<9} {place:<6} ");
        let left = COLUMNS.saturating_sub(line.width());
        line + &columns::name(bucket, left) + "\n"
    };
    if rows.is_empty() {
        return String::new();
    }
    let head = line(&heads.map(str::to_owned), "rate", "waits", "bucket");
    let rows = rows.iter().map(|row| {
        let count = u32::try_from(row.count).unwrap_or(u32::MAX);
        let rate = duration::show_per_period(count, Duration::from_micros(row.period_us));
        line(&figures(row), &rate, &waits(row), &row.bucket)
    });
    head + &rows.collect::<String>()
}

/// What a bucket waits for: its state, or how long where more than its rate puts its next job off.
fn waits(row: &Row) -> String {
    if row.is_put_off() {
        format!("in {}", duration::about(Duration::from_micros(row.due_in_us)))
    } else {
        row.place.as_str().to_owned()
    }
}

/// The state of a route in words: `12 ready (the oldest for 90 ms, limit 16), 5 with 2 workers, they take 98/s`.
fn describe_route(route: &RouteStatus) -> String {
    let ready = match &route.to {
        Some(to) => format!("{} in the list {to}", route.undelivered),
        None => format!("{} ready", route.undelivered),
    };
    let oldest = match route.age_us {
        0 => String::new(),
        us => format!("the oldest for {}, ", duration::say(Duration::from_micros(us))),
    };
    let limit = if route.ready_window_us.is_some() { "limit" } else { "max_ready" };
    let mut text = format!("{ready} ({oldest}{limit} {})", route.limit);
    if route.to.is_none() {
        text += &format!(", {} with {}", route.pending, counted(route.workers, "worker", "workers"));
    }
    if let Some(pace) = route.taken_per_second {
        text += &format!(", they take {}", say_pace(pace));
    }
    text
}

fn describe_daemon(daemon: &DaemonStatus) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let up = now.saturating_sub(daemon.since);
    let coarse = [3_600, 60, 1].into_iter().find(|unit| up >= 100 * unit).unwrap_or(1);
    let up = duration::show(Duration::from_secs(up / coarse * coarse));
    let record = if daemon.has_record { "" } else { ", its own file differs from the policies in force" };
    let wake_up = match daemon.wake_up {
        Some(WakeUp::Tracking) => ", wake-up by tracking",
        Some(WakeUp::Polling) => ", wake-up by POLLING",
        Some(WakeUp::Other) | None => "",
    };
    format!("{} process {}, version {}, up for {up}{wake_up}{record}", daemon.host, daemon.pid, daemon.version)
}

fn describe_bucket(status: &BucketStatus) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: String| out += &format!("{name:<12}{}\n", one_line(&text));
    line("bucket", status.bucket.clone());
    line("depth", format!("{} of {}", status.depth, status.capacity));
    if let Some(why) = &status.refused {
        line("REFUSED", format!("nothing goes in or out: {why}"));
    }
    if let Some(by) = &status.closed_by {
        line("CLOSED", format!("it accepts nothing{}", stopped(&status.bucket, by, status.closed_until_us, "open")));
    }
    if let Some(by) = &status.paused_by {
        line("PAUSED", format!("nothing leaves it{}", stopped(&status.bucket, by, status.paused_until_us, "resume")));
    }
    let due = match (status.held, status.due_in_us) {
        _ if status.paused_by.is_some() && status.depth + status.retries + status.delayed > 0 => {
            "when the pause ends".to_owned()
        }
        (true, _) => format!("held for the workers of route {}", status.route),
        (_, None) => "nothing is scheduled".to_owned(),
        (_, Some(us)) if us < 10_000_000 => format!("in {}", ms(us)),
        (_, Some(us)) => format!("in {}", duration::say(Duration::from_micros(us))),
    };
    line("due", due);
    line("retries", status.retries.to_string());
    if status.delayed > 0 {
        line("delayed", status.delayed.to_string());
    }
    line("rate", duration::show_per_period(status.count, Duration::from_micros(status.period_us)));
    if status.attempts > 0 {
        line("lease", duration::show(Duration::from_millis(status.lease_ms)));
        line("attempts", status.attempts.to_string());
    }
    line("overflow", status.overflow.clone());
    line("route", status.route.clone());
    for gate in &status.gates {
        let wait =
            if gate.wait_ms > 0 { format!(", the next in {}", duration::in_ms(gate.wait_ms)) } else { String::new() };
        line("gate", format!("{}: {} of {} left{wait}", gate.limiter, gate.remaining, gate.limit));
    }
    out
}

/// The words about a pause or a closure: the other name or glob that causes it, its end, and the command that ends it.
fn stopped(bucket: &str, by: &str, until_us: Option<u64>, back: &str) -> String {
    let under = if by == bucket { String::new() } else { format!(" by {by:?}") };
    let written = if by == bucket { naming::written(by) } else { by.to_owned() };
    let end = until_us.map_or_else(String::new, |us| format!(" until {}", moment::of_micros(&us.to_string())));
    format!("{under}{end}; `dripd {back} {}` ends that", shell(&written))
}
