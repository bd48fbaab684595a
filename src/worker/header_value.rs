//! Numbers and times in the headers of an answer, in the forms that servers write. Nothing else is understood, as in the clients: what one
//! language's library makes of `1e3`, `soon 5` or a time without a zone differs from what another's does.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Numbers from here on are no times from now but seconds since 1970: this one is a day in 2001.
const EPOCH_FROM: f64 = 1e9;

/// Numbers from here on are milliseconds since 1970: this one is a day in 1973, as seconds one in the year 5138.
pub(super) const EPOCH_MS_FROM: f64 = 1e11;

/// Numbers from here on are nothing: microseconds since 1970, perhaps.
const EPOCH_MS_TO: f64 = 1e14;

/// The units of a span, in milliseconds; `ms` is looked for before `m`.
const UNITS_MS: [(&str, f64); 6] =
    [("ms", 1.0), ("us", 0.001), ("d", 86_400_000.0), ("h", 3_600_000.0), ("m", 60_000.0), ("s", 1_000.0)];

/// Read a number: digits, with a sign before them and a fraction behind them or not.
pub(super) fn number(text: &str) -> Option<f64> {
    let digits = text.trim().strip_prefix('-').unwrap_or(text.trim());
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = is_digits(whole) && is_digits(fraction);
    is_number.then(|| text.trim().parse().ok()).flatten().filter(|number: &f64| number.is_finite())
}

/// When something is, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum When {
    /// From now on; less than 0: it is past.
    In(f64),
    /// Since 1970.
    At(f64),
}

impl When {
    /// How long it is until then; less than 0: it is past.
    pub(super) fn after(self, now_ms: f64) -> f64 {
        match self {
            Self::In(ms) => ms,
            Self::At(ms) => ms - now_ms,
        }
    }
}

/// Read a time: seconds, seconds or milliseconds since 1970, `6m0s` or `PT30S`, or a time as in RFC 3339 or HTTP.
pub(super) fn when(text: &str) -> Option<When> {
    if let Some(number) = number(text) {
        return match number {
            _ if number < EPOCH_FROM => Some(When::In(number * 1_000.0)),
            _ if number < EPOCH_MS_FROM => Some(When::At(number * 1_000.0)),
            _ => (number < EPOCH_MS_TO).then_some(When::At(number)),
        };
    }
    span(text).map(When::In).or_else(|| rfc_3339(text).or_else(|| http_date(text)).map(When::At))
}

fn span(text: &str) -> Option<f64> {
    let text = text.to_ascii_lowercase();
    let mut rest = text.strip_prefix("pt").unwrap_or(&text);
    let mut ms = if rest.is_empty() { return None } else { 0.0 };
    while !rest.is_empty() {
        let (count, more) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, unit_ms) = UNITS_MS.iter().find(|(unit, _)| more.starts_with(unit))?;
        ms += number(count)? * unit_ms;
        rest = &more[unit.len()..];
    }
    Some(ms)
}

/// A time with a zone, in milliseconds since 1970.
fn rfc_3339(text: &str) -> Option<f64> {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c.to_ascii_uppercase() }).collect();
    let at = |day_and_time| shape.strip_prefix(day_and_time);
    let rest = at("0000-00-00T00:00:00").or_else(|| at("0000-00-00 00:00:00"))?;
    let zone = rest.strip_prefix(".0").map_or(rest, |rest| rest.trim_start_matches('0'));
    let is_complete = ["Z", "+00:00", "-00:00"].contains(&zone) && &text[17..19] < "60"; // no leap second
    let at = is_complete.then(|| text.parse::<Timestamp>().ok()).flatten()?;
    Some(at.as_millisecond() as f64)
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, in milliseconds since 1970; not the forms that have been obsolete since 1999.
fn http_date(text: &str) -> Option<f64> {
    let date =
        httpdate::parse_http_date(text).ok().filter(|date: &SystemTime| httpdate::fmt_http_date(*date) == text)?;
    Some(date.duration_since(UNIX_EPOCH).ok()?.as_secs_f64() * 1_000.0)
}
