//! A POST per job: the body is the job, the rest travels in headers.

use std::time::{Duration, SystemTime};

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, StatusCode, Url, redirect};

use super::{Job, Outcome};

/// Where jobs are posted.
#[derive(Debug, Clone)]
pub struct Http {
    client: Client,
    url: Url,
}

impl Http {
    /// Post to `url`; an answer that takes longer than `limit` is a failure.
    ///
    /// # Errors
    ///
    /// When there is no TLS to be had on this system.
    pub fn new(url: Url, limit: Duration) -> Result<Self, reqwest::Error> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let agent = concat!("dripd/", env!("CARGO_PKG_VERSION"));
        let client = Client::builder().user_agent(agent).timeout(limit).redirect(redirect::Policy::none()).build()?;
        Ok(Self { client, url })
    }

    pub(super) async fn run(&self, job: &Job) -> Outcome {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type(&job.body)));
        headers.insert("drip-attempt", HeaderValue::from(job.attempt));
        for (name, value) in [("drip-bucket", job.bucket.as_str()), ("drip-id", &job.id)] {
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                headers.insert(name, value);
            }
        }
        let request = self.client.post(self.url.clone()).headers(headers).body(job.body.clone());
        match request.send().await {
            Ok(response) => judge(response.status(), response.headers()),
            Err(why) => Outcome::Failed(Chain(&why.without_url()).to_string()),
        }
    }
}

/// An error with what caused it, on one line.
struct Chain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(why) = cause {
            write!(f, ": {why}")?;
            cause = why.source();
        }
        Ok(())
    }
}

fn judge(status: StatusCode, headers: &HeaderMap) -> Outcome {
    let said = format!("HTTP {}", status.as_u16());
    match status.as_u16() {
        200..=299 => Outcome::Done,
        429 | 503 => Outcome::GivenBack(headers.get(RETRY_AFTER).and_then(retry_after), said),
        408 | 409 | 425 => Outcome::Failed(said), // what passes: too slow, in conflict, too early
        400..=499 => Outcome::Dead(said),
        _ => Outcome::Failed(said),
    }
}

/// The longest `Retry-After` that is obeyed: a server that asks for more is asked again then.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

/// When the server wants to be asked again: whole seconds, or a date. `None` when that says nothing, 0 or a date that is past
/// too: the back-off applies then, or a server that never has room would be asked without a pause, ahead of all other jobs.
fn retry_after(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).unwrap_or_default(),
    };
    (!wait.is_zero()).then_some(wait.min(LONGEST_WAIT))
}

/// What the bytes of a job are, as far as they say it themselves.
fn content_type(job: &[u8]) -> &'static str {
    match std::str::from_utf8(job) {
        Ok(text) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => "application/json",
        Ok(_) => "text/plain",
        Err(_) => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_decides_what_becomes_of_a_job() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
        let judged = |code| judge(StatusCode::from_u16(code).expect("a code"), &headers);
        assert_eq!(judged(204), Outcome::Done);
        assert_eq!(judged(429), Outcome::GivenBack(Some(Duration::from_secs(7)), "HTTP 429".to_owned()));
        assert_eq!(judged(503), Outcome::GivenBack(Some(Duration::from_secs(7)), "HTTP 503".to_owned()));
        for code in [408, 409, 425, 500, 302] {
            assert_eq!(judged(code), Outcome::Failed(format!("HTTP {code}")));
        }
        for code in [400, 401, 404, 410, 422, 499] {
            assert_eq!(judged(code), Outcome::Dead(format!("HTTP {code}")));
        }
    }

    #[test]
    fn only_a_time_to_come_is_a_retry_after() {
        let wait = |text: &'static str| retry_after(&HeaderValue::from_static(text));
        assert_eq!(wait("120"), Some(Duration::from_secs(120)));
        assert_eq!(wait("99999999"), Some(LONGEST_WAIT));
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3_600));
        let an_hour = retry_after(&HeaderValue::from_str(&date).expect("a header")).expect("a time to come");
        assert!(an_hour > Duration::from_secs(3_000) && an_hour <= Duration::from_secs(3_600), "{an_hour:?}");
        for nothing in ["0", "-5", "", "soon", "1.5", "Wed, 21 Oct 2015 07:28:00 GMT"] {
            assert_eq!(wait(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn the_bytes_of_a_job_decide_its_content_type() {
        for json in ["{\"a\":[1,null]}", "7", " \"é\" ", "null"] {
            assert_eq!(content_type(json.as_bytes()), "application/json", "{json}");
        }
        for text in ["", "hello", "{a}", "{} {}", "Zürich"] {
            assert_eq!(content_type(text.as_bytes()), "text/plain", "{text}");
        }
        for bytes in [&b"\xff"[..], b"\"\xff\""] {
            assert_eq!(content_type(bytes), "application/octet-stream", "{bytes:?}");
        }
    }
}
