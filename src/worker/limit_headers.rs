//! How much more a server lets through, and how long it wants to be left alone, read from the headers of its answer.
//!
//! There are two families of limits. The IETF draft of rate limit header fields has structured fields: `RateLimit: "a";r=50;t=30` and
//! `RateLimit-Policy: "a";q=100;w=60`; earlier forms of it had a dictionary, `RateLimit: limit=100, remaining=50, reset=30`. All others
//! have a header for each number, whose names differ in one word: `X-RateLimit-Remaining`, `RateLimit-Remaining`,
//! `x-ratelimit-remaining-tokens`, `anthropic-ratelimit-requests-remaining`; with `limit` and `reset` in the place of `remaining`.
//!
//! The clients read them too. `clients/limit-headers.json` has what all of them make of each form.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::header::HeaderMap;
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};

use super::header_value::{EPOCH_MS_FROM, When, number, when};
use crate::model::node::Units;
use crate::store::jobs::work::{LIMIT_MOST, LimitReport};

const RATE_LIMIT: &str = "ratelimit";
const POLICY: &str = "ratelimit-policy";
const RETRY_AFTER: &str = "retry-after";

/// The same in milliseconds. Where both are there they mean the same.
const FINER: &str = "retry-after-ms";

/// The longest time that is obeyed. A server that asks for a longer one is asked again after this one.
const MOST_MS: u64 = 86_400_000;

/// The most reports that a function takes.
const REPORTS_MOST: usize = 4;

/// What the headers of an answer say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// What is said of each limit, at most [`REPORTS_MOST`]; of equal limits that of which least remains.
    pub(super) reports: Vec<LimitReport>,
    /// How long a request that was refused is to wait.
    pub(super) wait: Option<Duration>,
    /// Headers that could not be understood, as they came.
    pub(super) unread: Vec<String>,
}

impl Said {
    /// Read the headers of an answer.
    pub(super) fn of(headers: &HeaderMap, now: SystemTime) -> Self {
        let mut reader = Reader::new(headers, now);
        reader.structured();
        reader.by_name();
        let finer = reader.number(FINER, "").map(whole_ms);
        let wait = reader.when(RETRY_AFTER).map(|wait| whole_ms(wait.after(reader.now_ms)));
        let Reader { mut reports, unread, .. } = reader;
        reports.sort_by_key(rank);
        reports.truncate(REPORTS_MOST);
        let used_up = reports.iter().filter(|report| report.remaining == 0).map(|report| report.reset_ms).max();
        let wait = [finer, wait, used_up].into_iter().flatten().find(|ms| *ms > 0).map(Duration::from_millis);
        Self { reports, wait, unread }
    }
}

/// Of two limits the one counts of which less remains, or, of as much, the one that lasts longer.
fn rank(report: &LimitReport) -> (u64, Reverse<u64>) {
    (report.remaining, Reverse(report.reset_ms))
}

/// The headers of an answer while they are read.
struct Reader {
    /// By their names; one that came several times as a list.
    texts: BTreeMap<String, String>,
    now_ms: f64,
    reports: Vec<LimitReport>,
    unread: Vec<String>,
}

impl Reader {
    fn new(headers: &HeaderMap, now: SystemTime) -> Self {
        let mut texts = BTreeMap::<String, String>::new();
        for (name, value) in headers {
            let (name, value) = (name.as_str(), String::from_utf8_lossy(value.as_bytes()));
            if is_of_limit(name) || [RETRY_AFTER, FINER].contains(&name) {
                let text = texts.entry(name.to_owned());
                text.and_modify(|text| *text = format!("{text}, {value}")).or_insert_with(|| value.into_owned());
            }
        }
        let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { texts, now_ms: since_1970.as_secs_f64() * 1_000.0, reports: Vec::new(), unread: Vec::new() }
    }

    /// Keep a report. Limits of a minute and of a day differ in how much they allow.
    fn add(&mut self, report: LimitReport) {
        let is_same = |one: &&mut LimitReport| (one.units, one.limit) == (report.units, report.limit);
        match self.reports.iter_mut().find(is_same) {
            Some(known) if rank(&report) < rank(known) => *known = report,
            Some(_) => {}
            None => self.reports.push(report),
        }
    }

    fn cannot_read(&mut self, name: &str) {
        let text = self.texts[name].trim().chars().take(200).collect::<String>();
        self.unread.push(format!("{name}: {text}"));
    }

    /// A header by a parser; `None`: it is not there, or cannot be understood.
    fn parsed<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let parsed = parse(self.texts.get(name)?.trim());
        if parsed.is_none() {
            self.cannot_read(name);
        }
        parsed
    }

    /// The number before the first of some characters, of which there may be none.
    fn number(&mut self, name: &str, until: &str) -> Option<f64> {
        self.parsed(name, |text| number(text.split(|c| until.contains(c)).next()?))
    }

    fn when(&mut self, name: &str) -> Option<When> {
        self.parsed(name, when)
    }

    /// The headers of which one word is `remaining`, with those that have `limit` and `reset` there.
    fn by_name(&mut self) {
        let names: Vec<String> = self.texts.keys().filter(|name| name.contains("remaining")).cloned().collect();
        for name in names {
            let reset = name.replace("remaining", "reset");
            if !self.texts.contains_key(&reset) {
                continue; // without it nothing follows from what remains
            }
            let (remaining, reset) = (self.number(&name, ""), self.when(&reset));
            let (Some(remaining), Some(reset)) = (remaining, reset) else { continue };
            // `100, 100;w=60` in an earlier form of the draft: the first number is the limit.
            let limit = self.number(&name.replace("remaining", "limit"), ",;");
            let units = if name.contains("token") { Units::Cost } else { Units::Job };
            let now_ms = self.now_ms;
            self.add(report(remaining, reset, now_ms, limit, units));
        }
    }

    /// The structured fields of the draft.
    fn structured(&mut self) {
        let quotas = self.quotas();
        let Some(text) = self.texts.get(RATE_LIMIT) else { return };
        if let Ok(fields) = Parser::new(text).parse::<Dictionary>()
            && fields.contains_key("remaining")
        {
            return self.dictionary(&fields);
        }
        let Some(entries) = self.parsed(RATE_LIMIT, |text| Parser::new(text).parse::<List>().ok()) else { return };
        let mut is_read = true;
        for entry in entries {
            match limit_of(&entry, &quotas) {
                Ok(Some(report)) => self.add(report),
                Ok(None) => {}
                Err(NotUnderstood) => is_read = false,
            }
        }
        if !is_read {
            self.cannot_read(RATE_LIMIT);
        }
    }

    fn dictionary(&mut self, fields: &Dictionary) {
        let number = |key: &str| match fields.get(key)? {
            ListEntry::Item(item) => number_of(&item.bare_item),
            ListEntry::InnerList(_) => None,
        };
        match (number("remaining"), number("reset")) {
            (Some(remaining), Some(reset)) => {
                self.add(in_seconds(remaining, reset, number("limit"), Units::Job));
            }
            _ if fields.contains_key("reset") => self.cannot_read(RATE_LIMIT),
            _ => {}
        }
    }

    /// The quota of each policy, and what it counts; no units: neither jobs nor what they cost.
    fn quotas(&mut self) -> HashMap<String, (f64, Option<Units>)> {
        let entries = self.parsed(POLICY, |text| Parser::new(text).parse::<List>().ok()).unwrap_or_default();
        let quota = |entry: ListEntry| {
            let ListEntry::Item(item) = entry else { return None };
            let units = match item.params.get("qu").and_then(name_of).as_deref() {
                None | Some("requests") => Some(Units::Job),
                Some(unit) => unit.contains("token").then_some(Units::Cost),
            };
            Some((name_of(&item.bare_item)?, (item.params.get("q").and_then(number_of)?, units)))
        };
        entries.into_iter().filter_map(quota).collect()
    }
}

fn is_of_limit(name: &str) -> bool {
    name.contains(RATE_LIMIT) || name.contains("rate-limit")
}

struct NotUnderstood;

/// The report of a member of the list; `None`: nothing follows from it.
fn limit_of(
    entry: &ListEntry,
    quotas: &HashMap<String, (f64, Option<Units>)>,
) -> Result<Option<LimitReport>, NotUnderstood> {
    let ListEntry::Item(item) = entry else { return Err(NotUnderstood) };
    let remaining = item.params.get("r").and_then(number_of).ok_or(NotUnderstood)?;
    let Some(reset) = item.params.get("t") else { return Ok(None) }; // it may be left out
    let reset = number_of(reset).ok_or(NotUnderstood)?;
    let policy = name_of(&item.bare_item).and_then(|name| quotas.get(&name));
    let (limit, units) = policy.map_or((None, Some(Units::Job)), |(quota, units)| (Some(*quota), *units));
    Ok(units.map(|units| in_seconds(remaining, reset, limit, units)))
}

fn name_of(item: &BareItem) -> Option<String> {
    match item {
        BareItem::String(text) => Some(text.as_str().to_owned()),
        BareItem::Token(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

fn number_of(item: &BareItem) -> Option<f64> {
    match item {
        BareItem::Integer(number) => Some(i64::from(*number) as f64),
        BareItem::Decimal(number) => Some(f64::from(*number)),
        _ => None,
    }
}

fn whole_ms(ms: f64) -> u64 {
    ms.clamp(0.0, MOST_MS as f64).round() as u64
}

/// A report whose reset is so many seconds away.
fn in_seconds(remaining: f64, reset: f64, limit: Option<f64>, units: Units) -> LimitReport {
    report(remaining, When::In(reset * 1_000.0), 0.0, limit, units)
}

/// Some servers say that `49.0` remain, or less than none where more came than may.
fn report(remaining: f64, reset: When, now_ms: f64, limit: Option<f64>, units: Units) -> LimitReport {
    let amount = |number: f64| number.clamp(0.0, LIMIT_MOST as f64) as u64;
    let limit = limit.map(amount).filter(|limit| *limit > 0);
    let reset_ms = whole_ms(reset.after(now_ms));
    let resets_at_ms = match reset {
        When::In(_) => None,
        When::At(ms) => Some(ms.min(now_ms + MOST_MS as f64).max(EPOCH_MS_FROM).round() as u64),
    };
    LimitReport { remaining: amount(remaining), reset_ms, resets_at_ms, limit, units }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::header::{HeaderName, HeaderValue};
    use serde::Deserialize;

    use super::*;

    /// The table that the clients read too.
    #[derive(Deserialize)]
    struct Table {
        now_ms: u64,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        name: String,
        now_ms: Option<u64>,
        headers: Vec<(String, String)>,
        #[serde(default)]
        limits: Vec<(u64, u64, Option<u64>, String)>,
        /// How many of the resets are times.
        #[serde(default)]
        times: usize,
        wait: Option<u64>,
        #[serde(default)]
        unread: Vec<String>,
    }

    #[test]
    fn each_form_is_read_as_the_clients_read_it() {
        let text = std::fs::read_to_string("clients/limit-headers.json").expect("the table");
        let Table { now_ms, cases } = serde_json::from_str(&text).expect("JSON");
        assert!(cases.len() >= 60);
        for case in cases {
            let header = |(name, value): &(String, String)| {
                (name.parse::<HeaderName>().expect("a name"), HeaderValue::from_str(value).expect("a value"))
            };
            let mut headers = HeaderMap::new();
            for (name, value) in case.headers.iter().map(header) {
                headers.append(name, value);
            }
            let mut said = Said::of(&headers, UNIX_EPOCH + Duration::from_millis(case.now_ms.unwrap_or(now_ms)));
            said.unread.sort();
            let shown = |one: &LimitReport| (one.remaining, one.reset_ms, one.limit, one.units.to_string());
            let got = (said.reports.iter().map(shown).collect(), said.wait.map(|wait| wait.as_millis() as u64));
            let now_ms = case.now_ms.unwrap_or(now_ms);
            let times: Vec<_> = said.reports.iter().filter(|one| one.resets_at_ms.is_some()).collect();
            let is_past = |one: &LimitReport| one.reset_ms == 0 && one.resets_at_ms < Some(now_ms);
            let is_ahead = |one: &LimitReport| one.resets_at_ms == Some(now_ms + one.reset_ms);
            assert!(times.iter().all(|one| is_past(one) || is_ahead(one)), "{}", case.name);
            assert_eq!(
                (got, times.len(), said.unread),
                ((case.limits, case.wait), case.times, case.unread),
                "{}",
                case.name
            );
        }
    }

    /// A value that a server may send: any bytes, or a damaged one of those that are understood.
    fn value() -> impl Strategy<Value = Vec<u8>> {
        let times = ["120", "6m0s", "1h2m3.5s", "1700000000", "-0.5", "PT1H", "99999999999999999999s", "1e308", "0"];
        let dates = ["Wed, 21 Oct 2099 07:28:00 GMT", "2099-10-21T07:28:00.5Z", "\"a\";r=5;t=6, \"b\";r=1"];
        let good = prop::sample::select([&times[..], &dates[..]].concat());
        let damaged = (good, any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 0..3)).prop_map(
            |(text, at, bytes)| {
                let (mut text, at) = (text.as_bytes().to_vec(), at.index(text.len()));
                text.splice(at..(at + 1).min(text.len()), bytes);
                text
            },
        );
        prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..40), 4 => damaged]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

        #[test]
        fn no_header_breaks_anything(values in prop::collection::vec((0_usize..10, value()), 0..9)) {
            let names = ["ratelimit", "ratelimit-policy", "ratelimit-remaining", "ratelimit-reset", "x-ratelimit-remaining-tokens",
                         "x-ratelimit-reset-tokens", "x-ratelimit-limit-tokens", "retry-after", "retry-after-ms", "x-ratelimit-reset"];
            let mut all = HeaderMap::new();
            for (n, value) in values {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    all.append(names[n], value);
                }
            }
            let said = Said::of(&all, SystemTime::now());
            prop_assert!(said.reports.len() <= REPORTS_MOST);
            for one in said.reports {
                prop_assert!(one.remaining <= LIMIT_MOST && one.reset_ms <= MOST_MS);
            }
            prop_assert!(said.wait.is_none_or(|wait| wait > Duration::ZERO && wait <= Duration::from_millis(MOST_MS)));
        }
    }
}
