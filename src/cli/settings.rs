//! `dripd settings`: all that is set at run time: what, since and until when, by whom, why.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::{Exit, Failure, connect, say};
use crate::config::Config;
use crate::store::change::{Settings, Stands};
use crate::words::duration;
use crate::words::glob::{Glob, of_name};
use crate::words::subject::Subject;

/// List what is set at run time.
#[derive(Debug, Args)]
pub(super) struct List {
    /// Only names and globs that this glob matches, of buckets and of budgets
    #[arg(value_name = "GLOB")]
    glob: Option<String>,
    /// As JSON: a list of { match, budget, glob, key, value, since, until, by, user, reason }, times in RFC 3339
    #[arg(long, conflicts_with = "toml")]
    json: bool,
    /// As [[bucket]] and [[budget]] entries for config.toml; pauses, closures and what ends by itself become comments
    #[arg(long)]
    toml: bool,
}

/// A value that is set, with all that is known of it.
struct Row<'a> {
    subject: Subject<'a>,
    is_glob: bool,
    key: &'a str,
    stands: &'a Stands,
}

impl List {
    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let mut store = connect(config).await?;
        let (now, mut all) = store.settings().await?;
        if let Some(glob) = &self.glob {
            let glob = Glob::parse(glob);
            all.retain(|one| glob.matches(Subject::of_stored(&one.pattern).pattern.as_bytes()));
        }
        let rows: Vec<Row> = all.iter().flat_map(rows).collect();
        if self.json {
            say(&as_json(&rows).to_string());
        } else if self.toml {
            say(as_toml(&rows).trim_end());
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
        stands.map(move |stands| Row { subject: Subject::of_stored(&one.pattern), is_glob: one.is_glob, key, stands })
    })
}

fn micros(text: &str) -> Option<u64> {
    text.parse().ok()
}

/// A time of the server's clock, to the second, in UTC.
fn time(text: &str) -> String {
    let seconds = micros(text).and_then(|us| i64::try_from(us / 1_000_000).ok());
    seconds
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .map_or_else(|| text.to_owned(), |at| at.to_string())
}

/// `sms:*  rate = "1/s"  until 12:40 (in 9m), set 12:31 by root@web1 (default): carrier down`, in as many lines as it takes.
fn as_text(row: &Row, now: u64) -> String {
    let what = match row.key {
        "pause" => "paused".to_owned(),
        "close" => "closed".to_owned(),
        "slow-down" => format!("slowed down ({})", row.stands.text),
        key => format!("{key} = {}", row.stands.text),
    };
    let mut text = format!("{}: {what}", row.subject);
    if let Some(till) = &row.stands.till {
        let left = micros(till).unwrap_or(0).saturating_sub(now) / 1_000_000;
        let left =
            if left == 0 { "now".to_owned() } else { format!("in {}", duration::about(Duration::from_secs(left))) };
        text += &format!("\n  until {} ({left})", time(till));
    }
    text += &format!("\n  since {} by {}", time(&row.stands.since), row.stands.by);
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
            "match": row.subject.pattern, "budget": row.subject.is_budget, "glob": row.is_glob, "key": row.key, "value": row.stands.text, "since": time(&row.stands.since),
            "until": row.stands.till.as_deref().map(time), "by": row.stands.by, "user": row.stands.user, "reason": row.stands.reason,
        })
    };
    rows.iter().map(one).collect()
}

/// What lasts as entries, what does not as comments. A name in an entry is a glob: what is special in one is made plain. Budgets stand
/// last; one of which nothing that limits is set would be no entry, so it is a comment as a whole.
fn as_toml(rows: &[Row]) -> String {
    let mut entries: BTreeMap<(bool, bool, &str), Vec<&Row>> = BTreeMap::new();
    for row in rows {
        entries.entry((row.subject.is_budget, row.is_glob, row.subject.pattern)).or_default().push(row);
    }
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let entry = |((is_budget, is_glob, pattern), rows): (&(bool, bool, &str), &Vec<&Row>)| {
        let glob = if *is_glob { (*pattern).to_owned() } else { of_name(pattern) };
        let limits = |row: &&Row| row.stands.till.is_none() && ["rate", "quota", "concurrency"].contains(&row.key);
        let is_entry = !is_budget || rows.iter().any(limits);
        let lines: Vec<_> = rows.iter().map(|row| line(row, is_entry)).collect();
        match (is_budget, is_entry) {
            (true, false) => format!("# for [[budget]] match = {}:\n{}\n\n", quoted(&glob), lines.join("\n")),
            (true, true) => format!("[[budget]]\nmatch = {}\n{}\n\n", quoted(&glob), lines.join("\n")),
            (false, _) => format!("[[bucket]]\nmatch = {}\n{}\n\n", quoted(&glob), lines.join("\n")),
        }
    };
    entries.iter().map(entry).collect()
}

fn line(row: &Row, is_entry: bool) -> String {
    let (key, stands) = (row.key, row.stands);
    match (key, &stands.till) {
        ("pause" | "close", _) => format!("# {key}: not a key of the file; it stays set until it is taken back"),
        ("slow-down", Some(till)) => format!("# slowed down ({}) until {}", stands.text, time(till)),
        (_, Some(till)) => format!("# {key} = {} # until {}", stands.text, time(till)),
        (_, None) if is_entry => format!("{key} = {}", stands.text),
        (_, None) => format!("# {key} = {}", stands.text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::change::Lies;

    fn set(pattern: &str, is_glob: bool, keys: &[(&str, &str)]) -> Settings {
        let stands = |text: &str| Stands {
            text: text.to_owned(),
            since: "1000000".to_owned(),
            till: None,
            by: "ann@web1".to_owned(),
            user: String::new(),
            reason: None,
        };
        let lies = |(key, text): &(&str, &str)| ((*key).to_owned(), Lies { lasting: Some(stands(text)), timed: None });
        Settings { pattern: pattern.to_owned(), is_glob, keys: keys.iter().map(lies).collect() }
    }

    #[test]
    fn budgets_are_listed_as_budgets_without_their_braces() {
        let all = [
            set("{sms:*}", true, &[("rate", "\"5/s\""), ("weight", "3")]),
            set("acme", false, &[("within", "\"twilio\"")]),
            set("{twilio}", false, &[("pause", "yes"), ("weight", "2")]),
        ];
        let rows: Vec<Row> = all.iter().flat_map(rows).collect();
        let text: Vec<_> = rows.iter().map(|row| as_text(row, 0)).collect();
        let since = "\n  since 1970-01-01T00:00:01Z by ann@web1";
        let expected = [
            "budget sms:*: rate = \"5/s\"",
            "budget sms:*: weight = 3",
            "acme: within = \"twilio\"",
            "budget twilio: paused",
            "budget twilio: weight = 2",
        ];
        assert_eq!(text, expected.map(|line| line.to_owned() + since));
        let json = as_json(&rows);
        let of = |n: usize| (json[n]["match"].as_str(), json[n]["budget"].as_bool(), json[n]["glob"].as_bool());
        assert_eq!((of(0), of(2)), ((Some("sms:*"), Some(true), Some(true)), (Some("acme"), Some(false), Some(false))));
        let expected = "[[bucket]]\nmatch = \"acme\"\nwithin = \"twilio\"\n\n\
                        # for [[budget]] match = \"twilio\":\n# pause: not a key of the file; it stays set until it is taken back\n\
                        # weight = 2\n\n\
                        [[budget]]\nmatch = \"sms:*\"\nrate = \"5/s\"\nweight = 3\n\n";
        assert_eq!(as_toml(&rows), expected);
    }
}
