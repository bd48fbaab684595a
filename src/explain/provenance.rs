//! The origin of a value: an operator, a line of the file, or the built-in default.

use serde::Serialize;

use super::local_time::{LocalTime, rfc3339};
use super::plain;
use crate::model::source::{Part, Source};
use crate::store::explain::{BudgetFacts, Facts, Level, SetKey};
use crate::store::settings::Stands;

/// The facts about the record in force that an origin is found from.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// Whether a record is stored.
    pub has_record: bool,
    /// The source of the record; `None`: it is not known.
    pub source: Option<&'a Source>,
}

impl<'a> From<&'a Facts> for Known<'a> {
    fn from(facts: &'a Facts) -> Self {
        Self { has_record: facts.has_record, source: facts.source.as_ref() }
    }
}

impl<'a> From<&'a BudgetFacts> for Known<'a> {
    fn from(facts: &'a BudgetFacts) -> Self {
        Self { has_record: facts.has_record, source: facts.source.as_ref() }
    }
}

/// Who made it so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Origin {
    /// An operator, at run time.
    Set(Hand),
    /// An operator who closed the bucket.
    Closed(Hand),
    /// A section of the file of the daemon that put the record into force.
    File {
        /// Its machine.
        host: String,
        /// The file there.
        path: String,
        /// The line on which the section begins.
        line: Option<u32>,
        /// `[defaults]`, `[[bucket]]`, `[[budget]]` or `[limits]`.
        section: &'static str,
        /// The glob of the entry.
        #[serde(rename = "match")]
        pattern: Option<String>,
    },
    /// A variable of the environment of that daemon.
    Environment {
        /// Its machine.
        host: String,
        /// The name of the variable.
        variable: String,
    },
    /// The record, of which nobody knows where it comes from.
    Record,
    /// Nobody: it is the default.
    BuiltIn,
}

/// What an operator did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = SetBy)]
pub struct Hand {
    /// For which name or glob.
    #[serde(rename = "match")]
    pub pattern: String,
    /// user@host
    pub by: String,
    /// Who Redis says that was.
    pub user: String,
    /// RFC 3339
    pub since: String,
    /// When it ends by itself, likewise.
    pub until: Option<String>,
    /// Why.
    pub reason: Option<String>,
    #[serde(skip)]
    since_us: u64,
    #[serde(skip)]
    until_us: Option<u64>,
    #[serde(skip)]
    is_own: bool,
}

impl Hand {
    fn new(level: &Level, pattern: &str, stands: &Stands) -> Self {
        let micros = |text: &str| text.parse().unwrap_or(0);
        let (since_us, until_us) = (micros(&stands.since), stands.till.as_deref().map(micros));
        Self {
            pattern: pattern.to_owned(),
            by: stands.by.clone(),
            user: stands.user.clone(),
            since: rfc3339(since_us),
            until: until_us.map(rfc3339),
            reason: stands.reason.clone(),
            since_us,
            until_us,
            is_own: pattern == level.name,
        }
    }

    /// The setting by which an operator changed a key of a level, if there is one.
    pub fn of_key(level: &Level, key: &str) -> Option<Self> {
        let of = |set: &SetKey| Self::new(level, &set.pattern, &set.stands);
        level.set.iter().find(|set| set.key == key).map(of)
    }

    /// The local time at which it was set.
    pub fn since(&self, local_time: &LocalTime) -> String {
        local_time.say(self.since_us)
    }

    /// The local time at which it ends by itself; `None`: it does not.
    pub fn until(&self, local_time: &LocalTime) -> Option<String> {
        self.until_us.map(|us| local_time.say(us))
    }

    /// The operator, the time and the reason, without the end: `by root@web1 12:03 "carrier down"`. The glob comes
    /// first where it was not set for this name alone.
    pub fn say(&self, local_time: &LocalTime) -> String {
        let mut text = String::new();
        if !self.is_own {
            text += &format!("for {:?} ", self.pattern);
        }
        let by = if self.by.is_empty() { "somebody".to_owned() } else { plain(&self.by) };
        text += &format!("by {by} {}", local_time.say(self.since_us));
        if let Some(reason) = self.reason.as_deref().filter(|reason| !reason.is_empty()) {
            text += &format!(" {reason:?}");
        }
        text
    }

    /// The text of [`Self::say`], with the end.
    pub fn say_all(&self, local_time: &LocalTime) -> String {
        let until = self.until(local_time).map_or_else(String::new, |until| format!(" until {until}"));
        self.say(local_time) + &until
    }
}

impl Origin {
    /// The origin of the value of a key at a level.
    pub fn of(known: Known<'_>, level: &Level, key: &str) -> Self {
        if level.closed.is_some()
            && ["capacity", "overflow"].contains(&key)
            && let Some(hand) = Hand::of_key(level, "close")
        {
            return Self::Closed(hand);
        }
        if let Some(hand) = Hand::of_key(level, key) {
            return Self::Set(hand);
        }
        if !known.has_record {
            return Self::BuiltIn;
        }
        let Some(source) = known.source else { return Self::Record };
        let is_budget = level.kind == "budget";
        let entries = if is_budget { &source.budgets } else { &source.buckets };
        let entry = level.entry.and_then(|place| entries.get(place.checked_sub(1)?));
        let (part, section, pattern) = match entry {
            Some(entry) if is_budget => (entry, "[[budget]]", level.pattern.clone()),
            Some(entry) if entry.names(key) => (entry, "[[bucket]]", level.pattern.clone()),
            _ => (&source.defaults, "[defaults]", None),
        };
        Self::of_part(source, part, key, section, pattern)
    }

    /// The origin of a bound that holds for all buckets.
    pub fn of_limit(known: Known<'_>, key: &str) -> Self {
        match known.source {
            _ if !known.has_record => Self::BuiltIn,
            None => Self::Record,
            Some(source) => Self::of_part(source, &source.limits, key, "[limits]", None),
        }
    }

    fn of_part(source: &Source, part: &Part, key: &str, section: &'static str, pattern: Option<String>) -> Self {
        if let Some(variable) = part.variables.get(key) {
            return Self::Environment { host: source.host.clone(), variable: variable.clone() };
        }
        match &source.path {
            Some(path) if part.names(key) => {
                Self::File { host: source.host.clone(), path: path.clone(), line: part.line, section, pattern }
            }
            _ => Self::BuiltIn,
        }
    }

    /// The origin in words: `web1:/etc/dripd/config.toml:31 [[bucket]] match "sms:*"`, `set by root@web1 12:03 "carrier
    /// down" until 12:30`.
    pub fn say(&self, local_time: &LocalTime) -> String {
        match self {
            Self::Set(hand) => format!("set {}", hand.say_all(local_time)),
            Self::Closed(hand) => format!("closed {}", hand.say_all(local_time)),
            Self::File { host, path, line, section, pattern } => {
                let line = line.map_or_else(String::new, |line| format!(":{line}"));
                let pattern = pattern.as_ref().map_or_else(String::new, |pattern| format!(" match {pattern:?}"));
                format!("{}:{}{line} {section}{pattern}", plain(host), plain(path))
            }
            Self::Environment { host, variable } => format!("{}:${}", plain(host), plain(variable)),
            Self::Record => "the policies in force; from which file is not known".to_owned(),
            Self::BuiltIn => "built-in default".to_owned(),
        }
    }
}
