//! How much more a server lets through, read from the headers of its answer.
//!
//! There are two families. The IETF draft of rate limit header fields has structured fields: `RateLimit: "a";r=50;t=30` and
//! `RateLimit-Policy: "a";q=100;w=60`; earlier forms of it had a dictionary, `RateLimit: limit=100, remaining=50, reset=30`. All others
//! have a header for each number, whose names differ in one word: `X-RateLimit-Remaining`, `RateLimit-Remaining`,
//! `x-ratelimit-remaining-tokens`, `anthropic-ratelimit-requests-remaining`; with `limit` and `reset` in the place of `remaining`.

use std::collections::HashMap;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderValue};
use sfv::{BareItem, Dictionary, List, ListEntry, Parameters, Parser};

use super::retry_after::{LONGEST_WAIT, moment};
use crate::model::node::Units;
use crate::store::jobs::work::{LIMIT_MOST, LimitReport};

const RATE_LIMIT: &str = "ratelimit";
const POLICY: &str = "ratelimit-policy";

/// The most reports that a function takes.
const REPORTS_MOST: usize = 4;

/// What the headers of an answer say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// What is said of each limit, at most [`REPORTS_MOST`]; of equal limits that of which least remains.
    pub(super) reports: Vec<LimitReport>,
    /// A header that could not be understood, as it came.
    pub(super) unread: Option<String>,
}

impl Said {
    /// Read the headers of an answer.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut said = Self::default();
        said.structured(headers);
        for (name, value) in headers {
            let name = name.as_str();
            let is_of_limit = name.contains("ratelimit") || name.contains("rate-limit");
            if is_of_limit && name.contains("remaining") {
                said.by_name(headers, name, value);
            }
        }
        said
    }

    /// Keep a report. Limits of a minute and of a day differ in how much they allow; of equal ones the one of which least remains counts, or,
    /// of as much, the one that lasts longest.
    fn add(&mut self, report: LimitReport) {
        let rank = |report: &LimitReport| (report.remaining, std::cmp::Reverse(report.reset_ms));
        let is_same = |one: &LimitReport| (one.units, one.limit) == (report.units, report.limit);
        match self.reports.iter().position(is_same) {
            Some(at) if rank(&report) < rank(&self.reports[at]) => self.reports[at] = report,
            None if self.reports.len() < REPORTS_MOST => self.reports.push(report),
            _ => {}
        }
    }

    fn cannot_read(&mut self, name: &str, value: &HeaderValue) {
        let value = String::from_utf8_lossy(value.as_bytes()).chars().take(200).collect::<String>();
        self.unread.get_or_insert_with(|| format!("{name}: {value}"));
    }

    /// The header of which one word is `remaining`, with those that have `limit` and `reset` there.
    fn by_name(&mut self, headers: &HeaderMap, name: &str, value: &HeaderValue) {
        let other = |word: &str| headers.get(name.replace("remaining", word))?.to_str().ok();
        let Some(reset) = other("reset") else { return }; // without it nothing follows from what remains
        let Some(reset) = moment(reset.trim()) else {
            let reset = name.replace("remaining", "reset");
            return self.cannot_read(&reset.clone(), &headers[reset]);
        };
        let Some(remaining) = value.to_str().ok().and_then(amount) else { return self.cannot_read(name, value) };
        // `100, 100;w=60` in an earlier form of the draft: the first number is the limit.
        let limit = other("limit").and_then(|text| amount(text.split([',', ';']).next()?));
        let units = if name.contains("token") { Units::Cost } else { Units::Job };
        self.add(report(remaining, reset, limit, units));
    }

    /// The structured fields of the draft.
    fn structured(&mut self, headers: &HeaderMap) {
        let policies = quotas(headers);
        for value in headers.get_all(RATE_LIMIT) {
            let Some(found) = value.to_str().ok().and_then(|text| limits(text, &policies)) else {
                self.cannot_read(RATE_LIMIT, value);
                continue;
            };
            for one in found {
                self.add(one);
            }
        }
    }
}

/// The limits of a structured field; `None`: it cannot be understood.
fn limits(text: &str, policies: &HashMap<String, (u64, Units)>) -> Option<Vec<LimitReport>> {
    if let Ok(fields) = Parser::new(text).parse::<Dictionary>()
        && fields.contains_key("remaining")
    {
        let number = |key: &str| match fields.get(key)? {
            ListEntry::Item(item) => whole(&item.bare_item),
            ListEntry::InnerList(_) => None,
        };
        let reset = Duration::from_secs(number("reset")?);
        return Some(vec![report(number("remaining")?, reset, number("limit"), Units::Job)]);
    }
    let mut found = Vec::new();
    for entry in Parser::new(text).parse::<List>().ok()? {
        let ListEntry::Item(item) = entry else { return None };
        let policy = name_of(&item.bare_item).and_then(|name| policies.get(&name));
        let remaining = of(&item.params, "r")?;
        let Some(reset) = of(&item.params, "t") else { continue }; // it may be left out
        let (limit, units) = policy.map_or((None, Units::Job), |(quota, units)| (Some(*quota), *units));
        found.push(report(remaining, Duration::from_secs(reset), limit, units));
    }
    Some(found)
}

/// The quota of each policy, and what it counts.
fn quotas(headers: &HeaderMap) -> HashMap<String, (u64, Units)> {
    let texts = headers.get_all(POLICY).iter().filter_map(|value| value.to_str().ok());
    let lists = texts.filter_map(|text| Parser::new(text).parse::<List>().ok());
    let quota = |entry: ListEntry| {
        let ListEntry::Item(item) = entry else { return None };
        let unit = item.params.get("qu").and_then(name_of).unwrap_or_default();
        let units = if unit.contains("token") { Units::Cost } else { Units::Job };
        Some((name_of(&item.bare_item)?, (of(&item.params, "q")?, units)))
    };
    lists.flatten().filter_map(quota).collect()
}

fn name_of(item: &BareItem) -> Option<String> {
    match item {
        BareItem::String(text) => Some(text.as_str().to_owned()),
        BareItem::Token(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

fn whole(item: &BareItem) -> Option<u64> {
    match item {
        BareItem::Integer(number) => Some(u64::try_from(i64::from(*number)).unwrap_or(0)),
        _ => None,
    }
}

fn of(params: &Parameters, key: &str) -> Option<u64> {
    params.get(key).and_then(whole)
}

/// Read how much remains, or the limit. Some servers write `49.0`, or a negative number where more came than may.
fn amount(text: &str) -> Option<u64> {
    let number: f64 = text.trim().parse().ok().filter(|number: &f64| number.is_finite())?;
    Some(number.clamp(0.0, LIMIT_MOST as f64) as u64)
}

fn report(remaining: u64, reset: Duration, limit: Option<u64>, units: Units) -> LimitReport {
    let reset_ms = u64::try_from(reset.min(LONGEST_WAIT).as_millis()).unwrap_or(u64::MAX);
    let limit = limit.filter(|limit| *limit > 0).map(|limit| limit.min(LIMIT_MOST));
    LimitReport { remaining: remaining.min(LIMIT_MOST), reset_ms, limit, units }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::header::HeaderName;

    use super::*;

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        let header = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().expect("a name"), HeaderValue::from_str(value).expect("a value"))
        };
        list.iter().map(header).collect()
    }

    /// `12/100 job 30000`, for each limit.
    fn said(list: &[(&str, &str)]) -> Vec<String> {
        let said = Said::of(&headers(list));
        assert_eq!(said.unread, None);
        let shown = |one: &LimitReport| {
            let limit = one.limit.map_or_else(|| "?".to_owned(), |limit| limit.to_string());
            format!("{}/{limit} {} {}", one.remaining, one.units, one.reset_ms)
        };
        said.reports.iter().map(shown).collect()
    }

    #[test]
    fn every_form_of_the_draft_is_read() {
        assert_eq!(
            said(&[("ratelimit", "\"default\";r=50;t=30"), ("ratelimit-policy", "\"default\";q=100;w=60")]),
            ["50/100 job 30000"]
        );
        assert_eq!(
            said(&[
                ("ratelimit", "burst;r=7;t=1, \"day\";r=5;t=3600, tokens;r=900;t=2"),
                ("ratelimit-policy", "burst;q=10, \"day\";q=1000;w=86400, tokens;q=9000;qu=\"tokens\""),
            ]),
            ["7/10 job 1000", "5/1000 job 3600000", "900/9000 cost 2000"],
            "each limit by itself"
        );
        assert_eq!(said(&[("ratelimit", "limit=100, remaining=50, reset=5")]), ["50/100 job 5000"]);
        let earlier = [("ratelimit-limit", "100, 100;w=60"), ("ratelimit-remaining", "49"), ("ratelimit-reset", "7")];
        assert_eq!(said(&earlier), ["49/100 job 7000"]);
        assert!(said(&[("ratelimit", "\"a\";r=50")]).is_empty(), "no reset: nothing follows");
    }

    #[test]
    fn the_headers_of_well_known_services_are_read() {
        let openai = [
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "59"),
            ("x-ratelimit-reset-requests", "1s"),
            ("x-ratelimit-limit-tokens", "150000"),
            ("x-ratelimit-remaining-tokens", "149984"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ];
        assert_eq!(said(&openai), ["59/60 job 1000", "149984/150000 cost 360000"]);
        let within = |list: &[(&str, &str)], least: u64, most: u64| {
            let reports = Said::of(&headers(list)).reports;
            assert!((least..=most).contains(&reports[0].reset_ms), "{reports:?}");
            reports[0].remaining
        };
        let at = |seconds: u64| std::time::SystemTime::now() + Duration::from_secs(seconds);
        let rfc_3339 = jiff::Timestamp::try_from(at(60)).expect("a time").to_string();
        let anthropic = [
            ("anthropic-ratelimit-requests-limit", "1000"),
            ("anthropic-ratelimit-requests-remaining", "999"),
            ("anthropic-ratelimit-requests-reset", &rfc_3339),
        ];
        assert_eq!(within(&anthropic, 58_000, 60_000), 999);
        let since_1970 = |seconds: u64| at(seconds).duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let of = |reset: &str, least, most| {
            within(&[("x-ratelimit-remaining", "4000"), ("x-ratelimit-reset", reset)], least, most)
        };
        of(&since_1970(60).as_secs().to_string(), 58_000, 60_000);
        of(&since_1970(60).as_millis().to_string(), 58_000, 60_000);
        of("60", 60_000, 60_000);
        of("0.25", 250, 250);
        of(&format!("{}.140", since_1970(60).as_secs()), 58_000, 60_200);
        of("1700000000.5", 0, 0);
        of("99999999", 86_400_000, 86_400_000);
        assert_eq!(said(&[("x-rate-limit-remaining", "-3.0"), ("x-rate-limit-reset", "9")]), ["0/? job 9000"]);
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for (list, unread) in [
            (&[("ratelimit", "\"open")][..], "ratelimit: \"open"),
            (&[("ratelimit", "(1 2)")], "ratelimit: (1 2)"),
            (&[("x-ratelimit-remaining", "some"), ("x-ratelimit-reset", "5")], "x-ratelimit-remaining: some"),
            (&[("x-ratelimit-remaining", "5"), ("x-ratelimit-reset", "soon")], "x-ratelimit-reset: soon"),
        ] {
            let said = Said::of(&headers(list));
            assert_eq!((said.reports, said.unread.as_deref()), (Vec::new(), Some(unread)));
        }
        assert_eq!(Said::of(&headers(&[("x-ratelimit-remaining", "5"), ("content-type", "a/b")])), Said::default());
    }

    proptest! {
        #[test]
        fn no_header_breaks_anything(
            values in prop::collection::vec((0_usize..7, prop::collection::vec(any::<u8>(), 0..40)), 0..9)
        ) {
            let names = ["ratelimit", "ratelimit-policy", "ratelimit-remaining", "ratelimit-reset", "x-ratelimit-remaining-tokens",
                         "x-ratelimit-reset-tokens", "x-ratelimit-limit-tokens"];
            let mut all = HeaderMap::new();
            for (n, value) in values {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    all.append(names[n], value);
                }
            }
            for one in Said::of(&all).reports {
                prop_assert!(one.remaining <= LIMIT_MOST && one.reset_ms <= 86_400_000);
            }
        }
    }
}
