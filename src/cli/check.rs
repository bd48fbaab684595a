//! `dripd check`: what a configuration means, what is odd about it, or everything that is wrong with it.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{Exit, Failure, say};
use crate::config::{Config, Environment, hide_password};
use crate::words::duration;
use crate::words::policy::{Overflow, Policy};

/// `dripd check [config]`.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// The file to check [default: as every command finds it]
    file: Option<PathBuf>,
}

impl Check {
    pub(super) fn run(&self, named: Option<&Path>, environment: &Environment) -> Result<Exit, Failure> {
        let config = Config::load(self.file.as_deref().or(named), environment)?;
        let mut lines = vec![format!("{}: good", config.source())];
        let redis = config.redis.url.as_deref().map_or_else(
            || format!("built in, 127.0.0.1:{}, data in {}", config.redis.port, config.redis.data_dir.display()),
            hide_password,
        );
        lines.push(format!("redis     {redis}, prefix {}", config.redis.prefix));
        let record = &config.record;
        let width = record.buckets.iter().map(|entry| entry.glob.len()).max().unwrap_or(0).max(8);
        for entry in &record.buckets {
            lines.push(format!("{:width$}  {}", entry.glob, describe(&entry.policy)));
        }
        lines.push(format!("{:width$}  {}", "(others)", describe(&record.defaults)));
        let mut policies = record.buckets.iter().map(|entry| &entry.policy).chain([&record.defaults]);
        if policies.any(|policy| !policy.admit.is_empty()) {
            lines.push(
                "note      admit holds for drip_push only: a plain LPUSH runs no code and passes no gate".to_owned(),
            );
        }
        lines.extend(config.warnings().iter().map(|warning| format!("warning   {warning}")));
        say(&lines.join("\n"));
        Ok(Exit::Done)
    }
}

fn describe(policy: &Policy) -> String {
    let overflow = match policy.overflow {
        Overflow::Reject => "reject",
        Overflow::DropOldest => "drop-oldest",
    };
    let mut text = format!(
        "rate {} capacity {} lease {} attempts {} backoff {}..{} overflow {overflow} route {} catch_up {}",
        policy.rate,
        policy.capacity,
        duration::show(policy.lease),
        policy.attempts,
        duration::show(policy.backoff_initial),
        duration::show(policy.backoff_max),
        policy.route.as_str(),
        duration::show(policy.catch_up)
    );
    for gate in &policy.admit {
        text += &format!(" admit {gate}");
    }
    text
}
