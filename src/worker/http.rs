//! A POST per job: the body is the job, the rest travels in headers.

use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, HeaderValue, RETRY_AFTER};
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
        headers.insert("content-type", HeaderValue::from_static("application/octet-stream"));
        if let Ok(bucket) = HeaderValue::from_bytes(job.bucket.as_str().as_bytes()) {
            headers.insert("dripd-bucket", bucket);
        }
        headers.insert("dripd-attempt", HeaderValue::from(job.attempt));
        if let Ok(id) = HeaderValue::from_str(&job.id) {
            headers.insert("dripd-id", id);
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
        400..=499 => Outcome::Dead(said),
        _ => Outcome::Failed(said),
    }
}

/// Whole seconds, or a date. At most a day: a server that asks for more is asked again then.
fn retry_after(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).unwrap_or_default(),
    };
    Some(wait.min(Duration::from_secs(86_400)))
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
        assert_eq!(judged(404), Outcome::Dead("HTTP 404".to_owned()));
        assert_eq!(judged(500), Outcome::Failed("HTTP 500".to_owned()));
        assert_eq!(judged(302), Outcome::Failed("HTTP 302".to_owned()));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let wait = |text: &'static str| retry_after(&HeaderValue::from_static(text));
        assert_eq!(wait("120"), Some(Duration::from_secs(120)));
        assert_eq!(wait("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert_eq!(wait("soon"), None);
    }
}
