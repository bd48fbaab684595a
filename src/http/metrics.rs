//! `/metrics` and `/metrics/buckets`: figures for Prometheus. In `/metrics` no label grows with the number of buckets.
//!
//! Figures that are counted in Redis are the same from every daemon; the help of a figure of this process says so.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::Extension;
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
use super::memory::Room;
use super::metric::{self, Metric};
use super::problem::Problem;
use super::resource_path::name;
use super::state::AppState;
use crate::config::Config;
use crate::model::bucket::BucketName;
use crate::model::glob::Glob;
use crate::model::naming::name_in;
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

/// The bytes of a bucket in that answer, about: its name in six lines.
const ROW: usize = 2_048;

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
            families.add(&metric::PARTITION_AWAY, &[&partition.to_string(), node], 1.0);
        }
        of_places(&mut families, &figures);
        of_routes(&mut families, &routes);
        if let Some(budgets) = budgets {
            of_budgets(&mut families, &config, &budgets.rows, &state.throughput.per_second(&budgets));
        }
        for (what, lacks) in lacks {
            families.add(&metric::REDIS_LACKS, &[what], f64::from(u8::from(lacks)));
        }
        let refuses = state.progress.refusal().is_some();
        families.add(&metric::REDIS_LACKS, &["writes"], f64::from(u8::from(refuses)));
    }
    Ok(([(header::CONTENT_TYPE, TEXT)], families.text()?))
}

/// Add the families of this process.
fn of_process(families: &mut Families, state: &AppState, is_up: bool) {
    let progress = &state.progress;
    let one = |yes: bool| f64::from(u8::from(yes));
    families.add(&metric::BUILD_INFO, &[env!("CARGO_PKG_VERSION")], 1.0);
    families.add(&metric::REDIS_UP, &[], one(is_up));
    let (served, all) = (progress.served(), usize::from(state.config().redis.partitioning.partitions));
    for (state, n) in [("served", served), ("waiting", all.saturating_sub(served))] {
        families.add(&metric::PARTITIONS, &[state], n as f64);
    }
    families.add(&metric::POLICY_IN_FORCE, &[], one(progress.obeys_own_record()));
    families.add(&metric::REDIS_RECONNECTS, &[], progress.reconnects() as f64);
    for (by, count) in [("poll", &timing::WAKES_BY_POLL), ("tracking", &timing::WAKES_BY_TRACKING)] {
        families.add(&metric::WAKEUPS, &[by], count.load(Ordering::Relaxed) as f64);
    }
    for (call, times) in timing::calls() {
        let within: Vec<(f64, u64)> = BOUNDS.into_iter().zip(times.within).collect();
        let sum = times.sum.as_secs_f64();
        families.histogram(&metric::REDIS_CALL, &[call], &within, times.count, sum);
    }
}

/// Add the families of jobs: what became of them, and how late they left.
fn of_jobs(families: &mut Families, figures: &Figures, told: &mut Counters) {
    let count = |name: &str| figures.counter(name);
    for (verdict, n) in [("accepted", count("pushed")), ("rejected", count("turned_away"))] {
        families.add(&metric::PUSHED, &[verdict], n as f64);
    }
    let (closed, gated, late) = (count("closed"), count("gated"), count("late"));
    for (reason, n) in [
        ("closed", closed),
        ("dropped", count("dropped")),
        ("expired", count("expired")),
        ("full", count("rejected").saturating_sub(closed + gated + late)),
        ("gate", gated),
        ("late", late),
        ("too_large", count("too_large")),
    ] {
        families.add(&metric::REJECTED, &[reason], n as f64);
    }
    let mut routes: BTreeMap<&str, u64> = figures.routes.iter().map(|route| (route.route.as_str(), 0)).collect();
    routes.extend(figures.counters_of("dispatched:"));
    for (route, n) in routes {
        families.add(&metric::DISPATCHED, &[route], n as f64);
    }
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
        families.add(&metric::FINISHED, &[outcome], n as f64);
    }
    lateness(families, figures);
    families.add(&metric::TOLD_REPORTS, &[], count("told") as f64);
    for real in ["less", "more"] {
        families.add(&metric::COST_CORRECTIONS, &[real], count(&format!("cost_{real}")) as f64);
    }
    families.add(&metric::LIFETIMES_REMOVED, &[], count("lifetimes_removed") as f64);
    families.add(&metric::QUEUES_VANISHED, &[], count("queues_vanished") as f64);
    let mut policies: BTreeMap<&str, u64> = BTreeMap::new();
    for (at, (policy, n)) in figures.counters_of("slow:").enumerate() {
        *policies.entry(if at < POLICIES { policy } else { "(other)" }).or_default() += n;
    }
    for (policy, n) in policies {
        families.add(&metric::SLOW_INCIDENTS, &[policy], n as f64);
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
    families.histogram(&metric::LATENESS, &[], &within, count, sum);
}

/// Add the families of what waits: buckets by state, settings, overdue times, jobs in streams.
fn of_places(families: &mut Families, figures: &Figures) {
    for (state, n) in &figures.waiting {
        families.add(&metric::BUCKETS, &[state], *n as f64);
    }
    for (kind, n) in &figures.settings {
        families.add(&metric::SETTINGS, &[kind], *n as f64);
    }
    for (place, us) in &figures.overdue_us {
        families.add(&metric::OVERDUE, &[place], *us as f64 / 1e6);
    }
    let mut gauge = |metric: &Metric, value: fn(&RouteFigures) -> f64| {
        for route in &figures.routes {
            families.add(metric, &[&route.route], value(route));
        }
    };
    gauge(&metric::READY_UNDELIVERED, |route| route.undelivered as f64);
    gauge(&metric::READY_OLDEST, |route| route.oldest_ms as f64 / 1e3);
    gauge(&metric::IN_FLIGHT, |route| route.in_flight as f64);
    let count = |name: &str| figures.count(name) as f64;
    families.add(&metric::DEAD_JOBS, &[], count("dead"));
    families.add(&metric::DELAYED_JOBS, &[], count("delayed"));
    families.add(&metric::DAEMONS, &[], count("daemons"));
}

/// Add the families of routes: how far their workers are behind.
fn of_routes(families: &mut Families, routes: &[RouteStatus]) {
    // A route that forwards may have a second row, for the ready stream that it had before: a series has one value.
    let mut seen = HashSet::new();
    let routes: Vec<&RouteStatus> = routes.iter().filter(|route| seen.insert(&route.route)).collect();
    let mut gauge = |metric: &Metric, value: fn(&RouteStatus) -> f64| {
        for route in &routes {
            families.add(metric, &[&route.route], value(route));
        }
    };
    gauge(&metric::ROUTE_AGE, |route| route.age_us as f64 / 1e6);
    gauge(&metric::ROUTE_UNDELIVERED, |route| route.undelivered as f64);
    gauge(&metric::ROUTE_LIMIT, |route| route.limit as f64);
    gauge(&metric::ROUTE_HELD_BUCKETS, |route| route.held as f64);
    gauge(&metric::ROUTE_IN_FLIGHT, |route| route.pending as f64);
    for route in &routes {
        families.add(&metric::ROUTE_TAKEN, &[&route.route], route.taken as f64);
    }
}

/// Add the families of budgets, by entry of the configuration: what waits for them, and how much of them is used.
/// `rows` are the budgets for which most wait and those that are named without a glob; `per_s` has the jobs per second
/// through each.
fn of_budgets(families: &mut Families, config: &Config, rows: &[BudgetSnapshot], per_s: &[Option<f64>]) {
    let globs: Vec<(&str, Glob)> =
        config.record.budgets.iter().map(|entry| (entry.glob.as_str(), Glob::parse(&entry.glob))).collect();
    let (mut waiting, mut used): (BTreeMap<&str, u64>, BTreeMap<&str, f64>) = (BTreeMap::new(), BTreeMap::new());
    let mut credits: BTreeMap<&str, i64> = BTreeMap::new();
    for (one, per_s) in rows.iter().zip(per_s) {
        let entry =
            globs.iter().find(|(_, glob)| glob.matches(one.budget.as_bytes())).map_or("(other)", |(text, _)| *text);
        *waiting.entry(entry).or_default() += one.waiting;
        let credit = credits.entry(entry).or_default();
        *credit = if one.credit_us.min(*credit) < 0 { one.credit_us.min(*credit) } else { one.credit_us.max(*credit) };
        if let Some(most) = one.used(*per_s) {
            let known = used.entry(entry).or_default();
            *known = known.max(most);
        }
    }
    for (entry, ratio) in used {
        families.add(&metric::BUDGET_UTILIZATION, &[entry], ratio);
    }
    for (entry, us) in credits {
        families.add(&metric::BUDGET_CREDIT, &[entry], us as f64 / 1e6);
    }
    for (entry, n) in waiting {
        families.add(&metric::BUDGET_WAITING, &[entry], n as f64);
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
    Extension(room): Extension<Arc<Room>>,
    read: QueryResult<MetricsQuery>,
) -> Result<impl IntoResponse, Problem> {
    let which = query(read)?;
    let most = at_most("top", which.top.unwrap_or(SHOWN), KEPT)?;
    let named = which.only.as_deref().and_then(name_in).map(|only| name(&only)).transpose()?;
    caller.may_read(named.as_ref().map(BucketName::as_str))?;
    room.at_least(most * ROW).await?;
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
    let mut gauge = |metric: &Metric, value: fn(&Row) -> f64| {
        for row in &rows {
            families.add(metric, &[&row.bucket], value(row));
        }
    };
    gauge(&metric::BUCKET_DEPTH, |row| row.depth as f64);
    gauge(&metric::BUCKET_CAPACITY, |row| row.capacity as f64);
    let rate = |row: &Row| row.count as f64 * 1e6 / row.period_us.max(1) as f64;
    gauge(&metric::BUCKET_RATE, rate);
    gauge(&metric::BUCKET_EMPTY_IN, |row| row.empty_in_ms as f64 / 1e3);
    gauge(&metric::BUCKET_LATE, |row| row.late_us as f64 / 1e6);
    gauge(&metric::BUCKET_REJECTED, |row| row.rejected as f64);
    Ok(([(header::CONTENT_TYPE, TEXT)], families.text()?))
}
