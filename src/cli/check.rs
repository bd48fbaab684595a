//! `dripd check`: the meaning of a configuration and its warnings, or everything that is wrong with it.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{Exit, Failure, say_all};
use crate::config::connection::Place;
use crate::config::{Config, Environment, schema};
use crate::http::AccessPolicy;
use crate::model::duration;
use crate::model::forward::Forward;
use crate::model::node::{Budget, Node, Slow};
use crate::model::policy::{Policy, Record};
use crate::model::route::Route;
use crate::store::Address;

/// `dripd check [config]`.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// The file to check [default: as every command finds it]
    file: Option<PathBuf>,
    /// Print the JSON Schema of the file, for editors, and check nothing
    #[arg(long, conflicts_with = "file")]
    schema: bool,
}

impl Check {
    pub(super) fn run(&self, named: Option<&Path>, environment: &Environment) -> Result<Exit, Failure> {
        if self.schema {
            say_all(&serde_json::to_string_pretty(&schema::of_file()).expect("JSON"));
            return Ok(Exit::Done);
        }
        let config = Config::load(self.file.as_deref().or(named), environment)?;
        let mut lines = vec![format!("{}: good", config.source())];
        let address = Address::of(&config.redis).map_err(|why| why.of(config.source()))?;
        AccessPolicy::read(&config.http, &config.source())?;
        let redis = match &config.redis.place {
            Place::BuiltIn => {
                format!("built in, 127.0.0.1:{}, data in {}", config.redis.port, config.redis.data_dir.display())
            }
            Place::Url(_) | Place::Sentinels(_) | Place::Cluster(_) => address.redacted().to_owned(),
        };
        let cut = match config.redis.partitioning.partitions {
            1 => String::new(),
            n => format!(", {n} partitions"),
        };
        lines.push(format!("redis     {redis}, prefix {}{cut}", config.redis.prefix));
        let record = &config.record;
        let globs =
            record.buckets.iter().map(|entry| &entry.glob).chain(record.budgets.iter().map(|entry| &entry.glob));
        let routes =
            record.routes.iter().map(|route| &route.name).chain(record.ready_windows.keys()).map(Route::as_str);
        let width = globs.map(String::as_str).chain(routes).map(str::len).max().unwrap_or(0).max(8);
        for route in &record.routes {
            lines.push(format!("{:width$}  {}", route.name.as_str(), describe_route(route, record)));
        }
        let is_forward = |name: &Route| record.forward(name).is_some();
        for (name, window) in record.ready_windows.iter().filter(|(name, _)| !is_forward(name)) {
            lines.push(format!("{:width$}  route ready_window {window}", name.as_str()));
        }
        for entry in &record.budgets {
            lines.push(format!("{:width$}  budget{}", entry.glob, describe_budget(&entry.policy)));
        }
        for entry in &record.buckets {
            lines.push(format!("{:width$}  {}", entry.glob, describe(&entry.policy, record)));
        }
        lines.push(format!("{:width$}  {}", "(others)", describe(&record.defaults, record)));
        if !record.limits.ready_window.is_default() {
            lines.push(format!("{:width$}  ready_window {}", "(routes)", record.limits.ready_window));
        }
        for one in &config.overrides {
            lines.push(format!("note      ${} sets {}", one.variable, one.key));
        }
        if record.has_ttl() {
            lines.push(
                "note      ttl holds for jobs with options and single jobs over HTTP: a plain LPUSH tells no time"
                    .to_owned(),
            );
        }
        let mut policies = record.buckets.iter().map(|entry| &entry.policy).chain([&record.defaults]);
        if policies.any(|policy| !policy.admit.is_empty()) {
            lines.push(
                "note      admit holds for drip_push only: a plain LPUSH runs no code and passes no gate".to_owned(),
            );
        }
        lines.extend(config.warnings().iter().map(|warning| format!("warning   {warning}")));
        say_all(&lines.join("\n"));
        Ok(Exit::Done)
    }
}

fn describe(policy: &Policy, record: &Record) -> String {
    // Inside a budget `catch_up` grows where an exact rate needs it, unless somebody set it.
    let grows = policy.node.within.is_some() && !policy.is_catch_up_set;
    let catch_up = duration::show(policy.catch_up);
    // A job that is forwarded has no lease and is tried once.
    let is_forwarded = record.forward(&policy.route).is_some();
    let [lease, initial, max] = [policy.lease, policy.backoff_initial, policy.backoff_max].map(duration::show);
    let lease = format!(" lease {lease} attempts {} backoff {initial}..{max}", policy.attempts);
    let mut text = format!(
        "rate {} capacity {}{} overflow {} route {} catch_up {}{catch_up}",
        policy.rate,
        policy.capacity,
        if is_forwarded { "" } else { &lease },
        policy.overflow,
        policy.route.as_str(),
        if grows { "at least " } else { "" }
    );
    for gate in &policy.admit {
        text += &format!(" admit {gate}");
    }
    let concurrency = policy.node.concurrency.filter(|_| !is_forwarded);
    text += &describe_node(&Node { concurrency, ..policy.node.clone() });
    if policy.dedup != Policy::default().dedup {
        text += &format!(" dedup {}", duration::show(policy.dedup));
    }
    if let Some(ttl) = policy.ttl {
        text += &format!(" ttl {}", duration::show(ttl));
    }
    if let Some(cost) = policy.cost_max {
        text += &format!(" cost_max {cost}");
    }
    if policy.ordered && !is_forwarded { text + " ordered" } else { text }
}

fn describe_route(route: &Forward, record: &Record) -> String {
    let register =
        route.register.as_ref().map_or_else(String::new, |at| format!(" register {} in {}", at.member, at.set));
    let notify = route.notify.as_ref().map_or_else(String::new, |key| format!(" notify {key}"));
    let window =
        record.ready_windows.get(&route.name).map_or_else(String::new, |window| format!(" ready_window {window}"));
    format!("route to the {} of the list {}{register}{notify}{window}", route.end, route.to)
}

fn describe_budget(budget: &Budget) -> String {
    let rate = budget.rate.map_or_else(String::new, |rate| format!(" rate {rate}"));
    let catch_up = budget.catch_up.map_or_else(String::new, |time| format!(" catch_up {}", duration::show(time)));
    rate + &catch_up + &describe_node(&budget.node)
}

/// The settings of a node that are not the defaults, each with a space before it.
fn describe_node(node: &Node) -> String {
    let (mut text, default) = (String::new(), Node::default());
    if let Some(rate) = node.job_rate {
        text += &format!(" job_rate {rate}");
    }
    for quota in &node.quotas {
        text += &format!(" quota {quota}");
    }
    if let Some(concurrency) = node.concurrency {
        text += &format!(" concurrency {concurrency}");
    }
    if let Some(within) = &node.within {
        text += &format!(" within {within}");
    }
    if node.weight != default.weight {
        text += &format!(" weight {}", node.weight);
    }
    if node.slow != default.slow {
        let Slow { initial, max, cap, adaptive } = node.slow;
        let times = [initial, max, cap].map(duration::show);
        text +=
            &format!(" slow {}..{} cap {}{}", times[0], times[1], times[2], if adaptive { " adaptive" } else { "" });
    }
    text
}
