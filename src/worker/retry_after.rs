//! The wait that a server asks for when it refuses a request, read from the headers of its answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::{SignedDuration, Timestamp};
use reqwest::header::{HeaderMap, RETRY_AFTER};

/// The longest wait that is obeyed. A server that asks for a longer one is asked again after this time.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

/// Numbers from here on are no waits but seconds since 1970: this one is a day in 2001.
const EPOCH_FROM: f64 = 1e9;

/// Numbers from here on are milliseconds since 1970: this one is a day in 1973, as seconds one in the year 5138.
const EPOCH_MS_FROM: f64 = 1e11;

const REMAINING: &str = "x-ratelimit-remaining";
const RESET: &str = "x-ratelimit-reset";

/// How long the server wants to be left alone. `None` when the headers do not say so, or say 0 or a moment that is past.
pub(super) fn wait(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    // Where both headers are there they mean the same, and this one is finer.
    let finer = text("retry-after-ms").and_then(|text| text.parse().ok()).map(Duration::from_millis);
    let usable = |wait: Duration| (!wait.is_zero()).then_some(wait.min(LONGEST_WAIT));
    finer
        .and_then(usable)
        .or_else(|| text(RETRY_AFTER.as_str()).and_then(retry_after).and_then(usable))
        .or_else(|| reset(headers).and_then(usable))
}

/// Read `retry-after`: whole seconds, or a date.
fn retry_after(text: &str) -> Option<Duration> {
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => Some(httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).unwrap_or_default()),
    }
}

/// The latest end of the limits of which nothing remains: `x-ratelimit-reset-requests`, where `x-ratelimit-remaining-requests` is 0,
/// and so on for each of them.
fn reset(headers: &HeaderMap) -> Option<Duration> {
    let ends = headers.iter().filter_map(|(name, value)| {
        let of = name.as_str().strip_prefix(REMAINING)?;
        let is_used_up = value.to_str().ok()?.trim().parse() == Ok(0_u64);
        let reset = is_used_up.then(|| headers.get(format!("{RESET}{of}"))).flatten()?;
        moment(reset.to_str().ok()?.trim())
    });
    ends.max()
}

/// Read a wait: `6m0s` or `120ms`, seconds, seconds or milliseconds since 1970, or a time as in RFC 3339 or HTTP. A time that is past is 0.
pub(super) fn moment(text: &str) -> Option<Duration> {
    if let Ok(number) = text.parse::<f64>() {
        let seconds = if number < EPOCH_MS_FROM { number } else { number / 1_000.0 };
        let span = Duration::try_from_secs_f64(seconds).ok()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        return Some(if number < EPOCH_FROM { span } else { span.saturating_sub(now) });
    }
    if let Ok(span) = text.parse::<SignedDuration>() {
        return Duration::try_from(span).ok();
    }
    let at = text.parse::<Timestamp>().map(SystemTime::from).or_else(|_| httpdate::parse_http_date(text)).ok()?;
    Some(at.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    fn of(list: &[(&str, &str)]) -> Option<Duration> {
        let header = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().expect("a name"), HeaderValue::from_str(value).expect("a value"))
        };
        wait(&list.iter().map(header).collect())
    }

    #[test]
    fn only_a_time_to_come_is_a_retry_after() {
        let wait = |text: &str| of(&[("retry-after", text)]);
        assert_eq!(wait("120"), Some(Duration::from_secs(120)));
        assert_eq!(wait("99999999"), Some(LONGEST_WAIT));
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3_600));
        let an_hour = wait(&date).expect("a time to come");
        assert!(an_hour > Duration::from_secs(3_000) && an_hour <= Duration::from_secs(3_600), "{an_hour:?}");
        for nothing in ["0", "-5", "", "soon", "1.5", "Wed, 21 Oct 2015 07:28:00 GMT"] {
            assert_eq!(wait(nothing), None, "{nothing}");
        }
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn milliseconds_are_finer_than_seconds_where_both_are_said() {
        assert_eq!(of(&[("retry-after-ms", "1500")]), Some(Duration::from_millis(1_500)));
        assert_eq!(of(&[("retry-after", "2"), ("retry-after-ms", "1500")]), Some(Duration::from_millis(1_500)));
        assert_eq!(of(&[("retry-after", "2"), ("retry-after-ms", "0")]), Some(Duration::from_secs(2)));
        assert_eq!(of(&[("retry-after", "2"), ("retry-after-ms", "soon")]), Some(Duration::from_secs(2)));
    }

    #[test]
    fn of_limits_only_those_that_are_used_up_say_when_to_come_back() {
        let used = |remaining: &str, reset: &str| {
            of(&[
                ("x-ratelimit-remaining-requests", remaining),
                ("x-ratelimit-reset-requests", reset),
                ("x-ratelimit-remaining-tokens", "150"),
                ("x-ratelimit-reset-tokens", "9h"),
            ])
        };
        assert_eq!(used("0", "6m0s"), Some(Duration::from_secs(360)));
        assert_eq!(used("0", "120ms"), Some(Duration::from_millis(120)));
        assert_eq!(used("0", "1m2.5s"), Some(Duration::from_millis(62_500)));
        assert_eq!(used("0", "7"), Some(Duration::from_secs(7)));
        assert_eq!(used("0", "0.25"), Some(Duration::from_millis(250)));
        assert_eq!(used("1", "6m0s"), None);
        for nothing in ["", "soon", "-5s", "-1", "0s", "1300000000", "NaN", "1e30"] {
            assert_eq!(used("0", nothing), None, "{nothing}");
        }
        let hour = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970") + Duration::from_secs(3_600);
        let epoch = used("0", &hour.as_secs().to_string()).expect("a time to come");
        assert!(epoch > Duration::from_secs(3_000) && epoch <= Duration::from_secs(3_600), "{epoch:?}");
        let both = of(&[
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "3"),
            ("x-ratelimit-remaining-day", "0"),
            ("x-ratelimit-reset-day", "1h"),
        ]);
        assert_eq!(both, Some(Duration::from_secs(3_600)), "the latest of them");
        assert_eq!(
            of(&[("retry-after", "2"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")]),
            Some(Duration::from_secs(2))
        );
    }

    /// A header that a server may send: any bytes, or a damaged time.
    fn value() -> impl Strategy<Value = Vec<u8>> {
        let times = ["120", "6m0s", "1h2m3.5s", "1700000000", "-0.5", "PT1H", "99999999999999999999s", "1e308"];
        let dates = ["Wed, 21 Oct 2099 07:28:00 GMT", "Wednesday, 21-Oct-99 07:28:00 GMT", "Wed Oct 21 07:28:00 9999"];
        let good = prop::sample::select([&times[..], &dates[..]].concat());
        let damaged = (good, any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 0..3)).prop_map(
            |(text, at, bytes)| {
                let (mut text, at) = (text.as_bytes().to_vec(), at.index(text.len()));
                text.splice(at..(at + 1).min(text.len()), bytes);
                text
            },
        );
        prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..20), 4 => damaged]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

        #[test]
        fn whatever_a_server_sends_is_a_wait_of_a_day_at_most_or_nothing(
            values in prop::collection::vec(value(), 5),
            remaining in prop::sample::select(vec!["0", "00", "-0", "1"]),
        ) {
            let names = ["retry-after-ms", "retry-after", "x-ratelimit-reset", "x-ratelimit-reset-a", "x-ratelimit-remaining-b"];
            let mut headers = HeaderMap::new();
            for (name, value) in names.into_iter().zip(values) {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    headers.insert(name, value);
                }
            }
            headers.insert("x-ratelimit-remaining", HeaderValue::from_static(remaining));
            headers.insert("x-ratelimit-remaining-a", HeaderValue::from_static(remaining));
            if let Some(wait) = wait(&headers) {
                prop_assert!(wait > Duration::ZERO && wait <= LONGEST_WAIT, "{:?}: {:?}", headers, wait);
            }
        }
    }
}
