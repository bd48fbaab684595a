//! `/metrics` and `/metrics/buckets`: figures for Prometheus. In `/metrics` no label grows with the number of buckets.
//!
//! Figures that are counted in Redis are the same from every daemon; the help of a figure of this process says so.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;

use axum::http::header;
use axum::response::IntoResponse;
use serde::Deserialize;
use utoipa::IntoParams;

use super::body::{QueryResult, at_most, query};
use super::budgets::ranked;
use super::context::Context;
use super::document::shapes;
use super::families::Families;
use super::last_scrape::Counters;
use super::problem::Problem;
use super::resource_path::name;
use super::state::AppState;
use crate::config::Config;
use crate::model::bucket::BucketName;
use crate::model::glob::{self, Glob};
use crate::store::StoreError;
use crate::store::figures::{Figures, RouteFigures};
use crate::store::routes::RouteStatus;
use crate::store::snapshots::BudgetSnapshot;
use crate::store::status::AwayPartition;
use crate::store::timing::{self, BOUNDS};
use crate::store::top::{By, KEPT, Row};

/// The media type of the text.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The most values of a label of policies.
const POLICIES: usize = 200;

/// The quarters of an octave that bound the buckets of the lateness: from 52 us to 14 s, an octave each.
const QUARTERS: std::ops::RangeInclusive<u32> = 22..=94;

/// How many buckets `/metrics/buckets` shows unless `top` says otherwise.
const SHOWN: usize = 100;

/// `GET /metrics`.
pub(super) async fn all(Context { state, caller }: Context) -> Result<impl IntoResponse, Problem> {
    caller.may_read(None)?;
    let mut families = Families::default();
    let read = async |mut store: crate::store::Partitions| {
        let figures = store.figures().await?;
        let (_, names) = ranked(&mut store).await?;
        let budgets =
            if state.config().record.budgets.is_empty() { None } else { Some(store.budget_snapshots(&names).await?) };
        Ok::<_, StoreError>((figures, store.routes().await?, budgets, store.lacking().await?))
    };
    let (read, config) = (state.call(read).await, state.config());
    of_process(&mut families, &state, read.is_ok());
    if let Ok((figures, routes, budgets, lacks)) = read {
        if figures.away.is_empty() {
            of_jobs(&mut families, &figures, &mut state.last_scrape.counters());
        }
        for AwayPartition { partition, node, .. } in &figures.away {
            // Counts of the other partitions are no total: as a counter they would step back, and later jump.
            let help =
                "1: this partition of the cluster cannot be reached. The counters of jobs are left out meanwhile.";
            let labels = [("partition", partition.to_string()), ("node", node.clone())];
            let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
            families.gauge("dripd_partition_away", help, &labels, 1.0);
        }
        of_places(&mut families, &figures);
        of_routes(&mut families, &routes);
        if let Some(budgets) = budgets {
            of_budgets(&mut families, &config, &budgets.rows, &state.throughput.per_second(&budgets));
        }
        for (what, lacks) in lacks {
            let help = "1: Redis lacks this to keep every promise.";
            families.gauge("dripd_redis_lacks", help, &[("what", what)], f64::from(u8::from(lacks)));
        }
    }
    Ok(([(header::CONTENT_TYPE, TEXT)], families.text()?))
}

/// Add the families of this process.
fn of_process(families: &mut Families, state: &AppState, is_up: bool) {
    let progress = &state.progress;
    let one = |yes: bool| f64::from(u8::from(yes));
    families.gauge(
        "dripd_build_info",
        "1, with the version of this daemon.",
        &[("version", env!("CARGO_PKG_VERSION"))],
        1.0,
    );
    families.gauge("dripd_redis_up", "1: Redis answered the question behind this scrape.", &[], one(is_up));
    let (served, all) = (progress.served(), usize::from(state.config().redis.partitioning.partitions));
    for (state, n) in [("served", served), ("waiting", all.saturating_sub(served))] {
        let help = "Partitions of this daemon: served, or waiting for their Redis.";
        families.gauge("dripd_partitions", help, &[("state", state)], n as f64);
    }
    let help = "1: the policies in force are those of this daemon's own file.";
    families.gauge("dripd_policy_in_force", help, &[], one(progress.obeys_own_record()));
    let help = "Connections that this daemon made anew after one was lost.";
    families.counter("dripd_redis_reconnects_total", help, &[], progress.reconnects() as f64);
    let help = "What woke this daemon: keys that Redis reported, and queues found by looking.";
    for (by, count) in [("poll", &timing::WAKES_BY_POLL), ("tracking", &timing::WAKES_BY_TRACKING)] {
        families.counter("dripd_wakeups_total", help, &[("by", by)], count.load(Ordering::Relaxed) as f64);
    }
    for (call, times) in timing::calls() {
        let within: Vec<(f64, u64)> = BOUNDS.into_iter().zip(times.within).collect();
        let help = "How long calls of this daemon to Redis took, the way there and back included.";
        let sum = times.sum.as_secs_f64();
        families.histogram("dripd_redis_call_seconds", help, &[("call", call)], &within, times.count, sum);
    }
}

/// Add the families of jobs: what became of them, and how late they left.
fn of_jobs(families: &mut Families, figures: &Figures, told: &mut Counters) {
    let count = |name: &str| figures.counter(name);
    let help =
        "Jobs of atomic pushes: by the function, dripd push or HTTP. Plain pushes run no code and are not counted.";
    for (verdict, n) in [("accepted", count("pushed")), ("rejected", count("turned_away"))] {
        families.counter("dripd_jobs_pushed_atomically_total", help, &[("verdict", verdict)], n as f64);
    }
    let (closed, gated, late) = (count("closed"), count("gated"), count("late"));
    let help = "Jobs that did not go in, or were thrown out, by why.";
    for (reason, n) in [
        ("closed", closed),
        ("dropped", count("dropped")),
        ("expired", count("expired")),
        ("full", count("rejected").saturating_sub(closed + gated + late)),
        ("gate", gated),
        ("late", late),
        ("too_large", count("too_large")),
    ] {
        families.counter("dripd_jobs_rejected_total", help, &[("reason", reason)], n as f64);
    }
    let help = "Jobs that left their buckets, retries included.";
    let mut routes: BTreeMap<&str, u64> = figures.routes.iter().map(|route| (route.route.as_str(), 0)).collect();
    routes.extend(figures.counters_of("dispatched:"));
    for (route, n) in routes {
        families.counter("dripd_jobs_dispatched_total", help, &[("route", route)], n as f64);
    }
    let help = "Jobs that are done with a dispatch: acknowledged (by any worker), forwarded into a list of another system, to be tried again, dead, given back, turned away by the other side, or taken back when their lease ended.";
    let expired = count("lease_expired").saturating_sub(count("expired_dead"));
    let throttled = count("throttled");
    for (outcome, n) in [
        ("ack", acked(figures, told)),
        ("dead", count("dead")),
        ("expired", expired),
        ("forwarded", count("forwarded")),
        ("kept", count("kept").saturating_sub(throttled)),
        ("retry", count("failed").saturating_sub(expired)),
        ("throttled", throttled),
    ] {
        families.counter("dripd_jobs_finished_total", help, &[("outcome", outcome)], n as f64);
    }
    lateness(families, figures);
    let help = "How often a policy's other side said that it is too fast.";
    let mut policies: BTreeMap<&str, u64> = BTreeMap::new();
    for (at, (policy, n)) in figures.counters_of("slow:").enumerate() {
        *policies.entry(if at < POLICIES { policy } else { "(other)" }).or_default() += n;
    }
    for (policy, n) in policies {
        families.counter("dripd_slow_incidents_total", help, &[("policy", policy)], n as f64);
    }
}

/// The number of acknowledged jobs. No code of dripd runs at a plain XACK, so the number is computed: jobs that left,
/// are in no stream any more, and did not end in another way. (Entries that others put into a stream never left a
/// bucket, and do not count as dead when they are buried.) The counter never goes back, unless the keys begin anew.
fn acked(figures: &Figures, told: &mut Counters) -> u64 {
    let dispatched = figures.counter("dispatched");
    let in_streams: u64 = figures.routes.iter().map(|route| route.entries).sum();
    let others: u64 = ["failed", "kept", "dead", "forwarded"].into_iter().map(|name| figures.counter(name)).sum();
    let now = dispatched.saturating_sub(in_streams + others);
    told.acked = if dispatched < told.dispatched { now } else { now.max(told.acked) };
    told.dispatched = dispatched;
    told.acked
}

/// Add the histogram of lateness, from counts in quarters of an octave. Its sum is estimated from these, to within a
/// tenth.
fn lateness(families: &mut Families, figures: &Figures) {
    let counts = figures.lates();
    let end = |quarter: u32| (2_f64.powf(f64::from(quarter + 1) / 4.0) - 1.0).floor() / 1e6; // whole microseconds are counted
    let middle = |quarter: u32| (2_f64.powf((f64::from(quarter) + 0.5) / 4.0) - 1.0) / 1e6;
    let (mut within, mut from) = (Vec::new(), 0);
    for quarter in QUARTERS.step_by(4) {
        within.push((end(quarter), counts.range(from..=quarter).map(|(_, n)| n).sum()));
        from = quarter + 1;
    }
    let (count, sum) = (counts.values().sum(), counts.iter().map(|(quarter, n)| middle(*quarter) * *n as f64).sum());
    let help = "How long after their due jobs left; the sum is told from finer buckets, to within a tenth.";
    families.histogram("dripd_lateness_seconds", help, &[], &within, count, sum);
}

/// Add the families of what waits: buckets by state, settings, overdue times, jobs in streams.
fn of_places(families: &mut Families, figures: &Figures) {
    let help = "Buckets and budgets that wait: for their due, a share, a slot, their route, an operator, or a budget that cannot be found; and (retrying) buckets with failed jobs or delayed ones.";
    for (state, n) in &figures.waiting {
        families.gauge("dripd_buckets", help, &[("state", state)], *n as f64);
    }
    let help = "Names and globs that have settings, and buckets and budgets of which a slow-down is known.";
    for (kind, n) in &figures.settings {
        families.gauge("dripd_settings", help, &[("kind", kind)], *n as f64);
    }
    let help = "For how long the first one there has been due.";
    for (place, us) in &figures.overdue_us {
        families.gauge("dripd_overdue_seconds", help, &[("place", place)], *us as f64 / 1e6);
    }
    let mut gauge = |name: &str, help: &str, value: fn(&RouteFigures) -> f64| {
        for route in &figures.routes {
            families.gauge(name, help, &[("route", &route.route)], value(route));
        }
    };
    let help = "Jobs that have left their buckets and that no worker has taken; of a route that forwards, how many its list holds.";
    gauge("dripd_ready_undelivered", help, |route| route.undelivered as f64);
    let help = "How long the oldest of those has been there.";
    gauge("dripd_ready_oldest_seconds", help, |route| route.oldest_ms as f64 / 1e3);
    gauge("dripd_in_flight", "Jobs that workers hold.", |route| route.in_flight as f64);
    let count = |name: &str| figures.count(name) as f64;
    families.gauge("dripd_dead_jobs", "Jobs that were given up.", &[], count("dead"));
    families.gauge("dripd_delayed_jobs", "Delayed jobs that wait for their time.", &[], count("delayed"));
    families.gauge("dripd_daemons", "Daemons that are alive.", &[], count("daemons"));
}

/// Add the families of routes: how far their workers are behind.
fn of_routes(families: &mut Families, routes: &[RouteStatus]) {
    // A route that forwards may have a second row, for the ready stream that it had before: a series has one value.
    let mut seen = HashSet::new();
    let routes: Vec<&RouteStatus> = routes.iter().filter(|route| seen.insert(&route.route)).collect();
    let mut gauge = |name: &str, help: &str, value: fn(&RouteStatus) -> f64| {
        for route in &routes {
            families.gauge(name, help, &[("route", &route.route)], value(route));
        }
    };
    let help = "How long ago the oldest job left that no worker has taken; 0: there is none. Scale workers by it.";
    gauge("dripd_route_age_seconds", help, |route| route.age_us as f64 / 1e6);
    let help = "Jobs that have left their buckets and that no worker has taken.";
    gauge("dripd_route_undelivered", help, |route| route.undelivered as f64);
    let help = "How many of those hold the buckets of the route now.";
    gauge("dripd_route_limit", help, |route| route.limit as f64);
    let help = "Buckets that are due and held until workers take more.";
    gauge("dripd_route_held_buckets", help, |route| route.held as f64);
    gauge("dripd_route_in_flight", "Jobs that workers hold.", |route| route.pending as f64);
    for route in &routes {
        let help = "Jobs that workers have taken.";
        families.counter("dripd_route_taken_total", help, &[("route", &route.route)], route.taken as f64);
    }
}

/// Add the families of budgets, by entry of the configuration: what waits for them, and how much of them is used.
/// `rows` are the budgets for which most wait and those that are named without a glob; `per_s` has the jobs per second
/// through each.
fn of_budgets(families: &mut Families, config: &Config, rows: &[BudgetSnapshot], per_s: &[Option<f64>]) {
    let globs: Vec<(&str, Glob)> =
        config.record.budgets.iter().map(|entry| (entry.glob.as_str(), Glob::parse(&entry.glob))).collect();
    let (mut waiting, mut used): (BTreeMap<&str, u64>, BTreeMap<&str, f64>) = (BTreeMap::new(), BTreeMap::new());
    for (one, per_s) in rows.iter().zip(per_s) {
        let entry =
            globs.iter().find(|(_, glob)| glob.matches(one.budget.as_bytes())).map_or("(other)", |(text, _)| *text);
        *waiting.entry(entry).or_default() += one.waiting;
        if let Some(most) = one.used(*per_s) {
            let known = used.entry(entry).or_default();
            *known = known.max(most);
        }
    }
    let help = "Of the budgets of an entry that have most waiting, the highest use: of the rate in the last seconds, of the slots or of the quota.";
    for (entry, ratio) in used {
        families.gauge("dripd_budget_utilization_ratio", help, &[("budget", entry)], ratio);
    }
    let help = "Buckets and budgets that wait for a share of the budgets of an entry.";
    for (entry, n) in waiting {
        families.gauge("dripd_budget_waiting", help, &[("budget", entry)], n as f64);
    }
}

/// Which buckets.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MetricsQuery {
    /// Only buckets whose names this glob matches
    #[serde(rename = "match")]
    #[param(value_type = Option<shapes::NameOrGlob>)]
    only: Option<String>,
    /// How many at most, those in which most jobs wait: 1 to 1,000; 100 if nothing is said
    #[param(minimum = 1, maximum = 1000)]
    top: Option<usize>,
}

/// `GET /metrics/buckets`: figures of the buckets that come first, or of one that is named. Its label is the name of a
/// bucket, so it is scraped only where that is wanted.
pub(super) async fn buckets(
    Context { state, caller }: Context,
    read: QueryResult<MetricsQuery>,
) -> Result<impl IntoResponse, Problem> {
    let which = query(read)?;
    let most = at_most("top", which.top.unwrap_or(SHOWN), KEPT)?;
    let named = which.only.as_deref().filter(|only| !glob::is_glob(only)).map(name).transpose()?;
    caller.may_read(named.as_ref().map(BucketName::as_str))?;
    let rows = if let Some(bucket) = &named {
        let only = [bucket.as_str().to_owned()];
        let now = state.query(async |mut store| store.bucket_snapshots(&only).await).await?;
        now.rows.into_iter().map(|now| now.row).collect()
    } else {
        let only = which.only.as_deref().map(Glob::parse);
        let top = state.query(async |mut store| store.top(By::Depth, only.as_ref(), most).await).await?;
        top.map(|top| top.rows).unwrap_or_default()
    };
    let mut families = Families::default();
    let mut gauge = |name: &str, help: &str, value: fn(&Row) -> f64| {
        for row in &rows {
            families.gauge(name, help, &[("bucket", &row.bucket)], value(row));
        }
    };
    gauge("dripd_bucket_depth", "Jobs that wait.", |row| row.depth as f64);
    gauge("dripd_bucket_capacity", "How many may wait.", |row| row.capacity as f64);
    let rate = |row: &Row| row.count as f64 * 1e6 / row.period_us.max(1) as f64;
    gauge("dripd_bucket_rate", "Its rate, in jobs a second.", rate);
    let help = "Until it is empty, if nothing more comes.";
    gauge("dripd_bucket_empty_in_seconds", help, |row| row.empty_in_ms as f64 / 1e3);
    let help = "For how long its next job has been due; 0 where it waits for something else.";
    gauge("dripd_bucket_late_seconds", help, |row| row.late_us as f64 / 1e6);
    let help = "Jobs of it that were rejected in the last 10 to 20 minutes, about.";
    gauge("dripd_bucket_rejected_recently", help, |row| row.rejected as f64);
    Ok(([(header::CONTENT_TYPE, TEXT)], families.text()?))
}
