//! `dripd settings`: all that is set at run time: what, since and until when, by whom, why.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::moment::of_micros;
use super::{Exit, Failure, connect, into_file, say};
use crate::config::Config;
use crate::store::change::{Settings, Stands};
use crate::words::duration;
use crate::words::glob::Glob;

/// List what is set at run time.
#[derive(Debug, Args)]
pub(super) struct List {
    /// Only names and globs that this glob matches
    #[arg(value_name = "GLOB")]
    glob: Option<String>,
    /// As JSON: a list of { match, glob, key, value, since, until, by, user, reason }, times in RFC 3339
    #[arg(long, conflicts_with = "toml")]
    json: bool,
    /// As [[bucket]] entries to put before the others of config.toml; what has no place there becomes comments
    #[arg(long)]
    toml: bool,
}

/// A value that is set, with all that is known of it.
struct Row<'a> {
    pattern: &'a str,
    is_glob: bool,
    key: &'a str,
    stands: &'a Stands,
}

impl List {
    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let mut store = connect(config).await?;
        let (now, mut all) = store.settings().await?;
        let glob = self.glob.as_deref().map(Glob::parse);
        let is_asked = |one: &Settings| glob.as_ref().is_none_or(|glob| glob.matches(one.pattern.as_bytes()));
        if self.toml {
            say(into_file::as_toml(&all, is_asked).trim_end());
            return Ok(Exit::Done);
        }
        all.retain(is_asked);
        let rows: Vec<Row> = all.iter().flat_map(rows).collect();
        if self.json {
            say(&as_json(&rows).to_string());
        } else if rows.is_empty() {
            say("nothing is set: the file and its defaults hold");
        } else {
            for row in &rows {
                say(&as_text(row, now));
            }
        }
        Ok(Exit::Done)
    }
}

fn rows(one: &Settings) -> impl Iterator<Item = Row<'_>> {
    one.keys.iter().flat_map(move |(key, lies)| {
        let stands = lies.timed.iter().chain(&lies.lasting);
        stands.map(move |stands| Row { pattern: &one.pattern, is_glob: one.is_glob, key, stands })
    })
}

/// `sms:*  rate = "1/s"  until 12:40 (in 9m), set 12:31 by root@web1 (default): carrier down`, in as many lines as it takes.
fn as_text(row: &Row, now: u64) -> String {
    let what = match row.key {
        "pause" => "paused".to_owned(),
        "close" => "closed".to_owned(),
        key => format!("{key} = {}", row.stands.text),
    };
    let mut text = format!("{}: {what}", row.pattern);
    if let Some(till) = &row.stands.till {
        let left = till.parse::<u64>().unwrap_or(0).saturating_sub(now) / 1_000_000;
        let left =
            if left == 0 { "now".to_owned() } else { format!("in {}", duration::about(Duration::from_secs(left))) };
        text += &format!("\n  until {} ({left})", of_micros(till));
    }
    text += &format!("\n  since {} by {}", of_micros(&row.stands.since), row.stands.by);
    if !row.stands.user.is_empty() {
        text += &format!(" as Redis user {}", row.stands.user);
    }
    if let Some(reason) = &row.stands.reason {
        text += &format!("\n  because {reason}");
    }
    text
}

fn as_json(rows: &[Row]) -> serde_json::Value {
    let one = |row: &Row| {
        json!({
            "match": row.pattern, "glob": row.is_glob, "key": row.key, "value": row.stands.text, "since": of_micros(&row.stands.since),
            "until": row.stands.till.as_deref().map(of_micros), "by": row.stands.by, "user": row.stands.user, "reason": row.stands.reason,
        })
    };
    rows.iter().map(one).collect()
}
