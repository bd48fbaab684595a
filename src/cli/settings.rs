//! `dripd settings`: all that is set at run time, since when, until when, by whom and why.

use std::time::Duration;

use super::{Exit, Failure, connect, into_file, say, say_all, say_json};
use crate::config::Config;
use crate::model::duration;
use crate::model::escape::{escaped, line};
use crate::model::glob::{Glob, of_name};
use crate::model::subject::Subject;
use crate::operate::moment::of_micros;
use crate::operate::settings::{Row, SetValue, is_matched, rows};
use crate::store::settings::Settings;
use clap::Args;

/// List what is set at run time.
#[derive(Debug, Args)]
pub(super) struct List {
    /// Only names and globs that this glob matches, of buckets and of budgets
    #[arg(value_name = "GLOB")]
    glob: Option<String>,
    /// As JSON: a list of { match, budget, glob, key, value, since, until, by, user, reason }, times in RFC 3339
    #[arg(long, conflicts_with = "toml")]
    json: bool,
    /// As [[bucket]] and [[budget]] entries, to put before the others of config.toml; what has no place there becomes comments
    #[arg(long)]
    toml: bool,
}

impl List {
    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let mut store = connect(config).await?;
        let (now, mut all) = store.settings().await?;
        let glob = self.glob.as_deref().map(Glob::parse);
        let is_asked = |one: &Settings| is_matched(glob.as_ref(), &one.pattern);
        if self.toml {
            say_all(into_file::as_toml(&all, is_asked).trim_end());
            return Ok(Exit::Done);
        }
        all.retain(is_asked);
        let rows: Vec<Row> = all.iter().flat_map(rows).collect();
        if self.json {
            say_json(&rows.into_iter().map(SetValue::from).collect::<Vec<_>>());
        } else if rows.is_empty() {
            say("nothing is set: the file and its defaults hold");
        } else {
            for row in &rows {
                say_all(&as_text(row, now));
            }
        }
        Ok(Exit::Done)
    }
}

/// A setting as text: `sms:*: rate = "1/s"`, and below it lines that begin with `until`, `since` and `because`.
fn as_text(row: &Row, now: u64) -> String {
    let what = match row.key {
        "pause" => "paused".to_owned(),
        "close" => "closed".to_owned(),
        "slow-down" => format!("slowed down ({})", row.stands.text),
        "told-limit" => format!("told: {}", row.stands.text),
        key => format!("{key} = {}", row.stands.text),
    };
    // These texts come from outside: none of them may look like a line of this list.
    let escaped = |text: &str| escaped(text.as_bytes());
    // A name with such characters is shown as the glob that matches it alone.
    let pattern = if row.is_glob { row.subject.pattern.to_owned() } else { of_name(row.subject.pattern) };
    let subject = Subject { pattern: &pattern, ..row.subject.clone() };
    let mut text = line(&format!("{subject}: {what}")).into_owned();
    if let Some(till) = &row.stands.till {
        let left = till.parse::<u64>().unwrap_or(0).saturating_sub(now) / 1_000_000;
        let left =
            if left == 0 { "now".to_owned() } else { format!("in {}", duration::about(Duration::from_secs(left))) };
        text += &format!("\n  until {} ({left})", escaped(&of_micros(till)));
    }
    text += &format!("\n  since {} by {}", escaped(&of_micros(&row.stands.since)), escaped(&row.stands.by));
    if !row.stands.user.is_empty() {
        text += &format!(" as Redis user {}", escaped(&row.stands.user));
    }
    if let Some(reason) = &row.stands.reason {
        text += &format!("\n  because {}", escaped(reason));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::settings::{Lies, Stands};

    fn set(pattern: &str, is_glob: bool, keys: &[(&str, &str)]) -> Settings {
        let stands = |text: &str| Stands {
            text: text.to_owned(),
            since: "1000000".to_owned(),
            till: None,
            seq: 0,
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
            set("h[1]", true, &[("weight", "2")]),
            set("h[1]", false, &[("weight", "2")]),
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
            "h[1]: weight = 2",
            "h\\[1]: weight = 2",
        ];
        assert_eq!(text, expected.map(|line| line.to_owned() + since));
        let values: Vec<SetValue> = rows.into_iter().map(SetValue::from).collect();
        let json = serde_json::json!(values);
        let of = |n: usize| (json[n]["match"].as_str(), json[n]["budget"].as_bool(), json[n]["glob"].as_bool());
        assert_eq!((of(0), of(2)), ((Some("sms:*"), Some(true), Some(true)), (Some("acme"), Some(false), Some(false))));
        let toml = into_file::as_toml(&all, |_| true);
        let entries: String =
            toml.lines().filter(|line| !line.starts_with("# What")).map(|line| line.to_owned() + "\n").collect();
        let expected = "\n[[bucket]]\nmatch = \"acme\"\nwithin = \"twilio\"\n\n\
                        [[bucket]]\nmatch = 'h\\[1]'\nweight = 2\n\n[[bucket]]\nmatch = \"h[1]\"\nweight = 2\n\n\
                        # for a [[budget]] \"twilio\": weight = 2\n\
                        # not for the file: budget \"twilio\" has pause until it is taken back\n\n\
                        [[budget]]\nmatch = \"sms:*\"\nrate = \"5/s\"\nweight = 3\n";
        assert_eq!(entries, expected);
    }
}
