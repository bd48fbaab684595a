//! A POST per job: the body is the job, the rest travels in headers.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::identity::signed_id;
use super::limit_headers::Said;
use super::limits_told::LimitsTold;
use super::webhook::Signer;
use super::{Job, Outcome};
use crate::store::jobs::work::LimitReport;

/// Headers that the worker sets itself, or that would break the post: neither users nor producers may set them.
const OWN: [&str; 11] = [
    "connection",
    "content-length",
    "drip-attempt",
    "drip-bucket",
    "drip-cost",
    "drip-deadline-us",
    "drip-id",
    "transfer-encoding",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

/// Headers of a job that keep their names. All others get a prefix, so that no producer can forge the worker's passwords, its signature
/// or its own headers.
const BY_NAME: [&str; 3] = ["content-type", "traceparent", "tracestate"];
const PREFIX: &str = "drip-h-";

/// How much of the body of an answer is read, and for how long, so that its connection can be used again. Nobody needs what it says.
const BODY_MOST: u64 = 64 * 1024;
const BODY_WITHIN: Duration = Duration::from_secs(1);

/// Posts jobs to a URL.
#[derive(Debug, Clone)]
pub struct Http {
    client: Client,
    url: Url,
    headers: HeaderMap,
    signer: Option<Signer>,
}

/// Read a header as `Name: value`.
///
/// # Errors
///
/// When it is none, or one that the worker sets itself.
pub fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let parts = text.split_once(':').ok_or("write 'Name: value'")?;
    // It is not shown: it may be a password in the wrong place.
    let name = HeaderName::try_from(parts.0).map_err(|_| "that is no name of a header; write 'Name: value'")?;
    if OWN.contains(&name.as_str()) || name.as_str().starts_with(PREFIX) {
        return Err(format!("{name} is set by dripd itself"));
    }
    let mut value =
        HeaderValue::try_from(parts.1.trim()).map_err(|_| "the value holds a control character".to_owned())?;
    value.set_sensitive(true); // it may be a password
    Ok((name, value))
}

/// Read the headers of a file, a line each.
///
/// # Errors
///
/// When it cannot be read, or holds no header or something else. No error shows a value.
pub fn headers_in(path: &Path) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let text = std::fs::read_to_string(path).map_err(|why| format!("cannot read {}: {why}", path.display()))?;
    let lines = text.trim_start_matches('\u{feff}').lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let headers = lines
        .map(|(line, number)| header(line.trim()).map_err(|why| format!("{}: line {number}: {why}", path.display())));
    let headers: Vec<_> = headers.collect::<Result<_, _>>()?;
    if headers.is_empty() {
        return Err(format!("{}: no header is in it; write 'Name: value', one a line", path.display()));
    }
    Ok(headers)
}

impl Http {
    /// Post to `url`, with headers of the user's own, signed where there is a secret; an answer that takes longer than
    /// `limit` is a failure.
    ///
    /// # Errors
    ///
    /// When there is no TLS to be had on this system.
    pub fn new(
        url: Url,
        limit: Duration,
        headers: Vec<(HeaderName, HeaderValue)>,
        signer: Option<Signer>,
    ) -> Result<Self, reqwest::Error> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let agent = concat!("dripd/", env!("CARGO_PKG_VERSION"));
        let client = Client::builder().user_agent(agent).timeout(limit).redirect(redirect::Policy::none()).build()?;
        let headers = headers.into_iter().fold(HeaderMap::new(), |mut all, (name, value)| {
            all.append(name, value);
            all
        });
        Ok(Self { client, url, headers, signer })
    }

    pub(super) async fn run(
        &self,
        job: &Job,
        told: &LimitsTold,
        stop: &CancellationToken,
    ) -> (Outcome, Vec<LimitReport>) {
        let request = self.client.post(self.url.clone()).headers(self.headers_of(job)).body(job.body.clone());
        let answer = tokio::select! {
            answer = request.send() => answer,
            () = stop.cancelled() => return (Outcome::stopped(), Vec::new()),
        };
        match answer {
            Ok(response) => {
                let Said { reports, wait, unread } = Said::of(response.headers(), SystemTime::now());
                told.unread(&unread);
                let outcome = judge(response.status(), wait);
                // What became of the job is known: a stop does not change it.
                tokio::select! {
                    () = read_body(response) => {}
                    () = stop.cancelled() => {}
                }
                (outcome, reports)
            }
            Err(why) => (Outcome::Failed(Chain(&why.without_url()).to_string()), Vec::new()),
        }
    }

    fn headers_of(&self, job: &Job) -> HeaderMap {
        let mut headers = self.headers.clone();
        for (name, value) in &job.headers {
            let name = if BY_NAME.contains(&name.as_str()) { name.clone() } else { format!("{PREFIX}{name}") };
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                headers.entry(name).or_insert(value); // one of the user's own goes first
            }
        }
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(content_type(&job.body)));
        headers.insert("drip-attempt", HeaderValue::from(job.attempt));
        if job.cost != 1 {
            headers.insert("drip-cost", HeaderValue::from(job.cost));
        }
        if let Some(deadline_us) = job.deadline_us {
            headers.insert("drip-deadline-us", HeaderValue::from(deadline_us));
        }
        let mut insert = |name, value: &str| {
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                headers.insert(name, value);
            }
        };
        insert("drip-bucket", job.bucket.as_str());
        insert("drip-id", &job.id);
        if let Some(signer) = &self.signer {
            // The time of this try: a receiver takes only a recent signature.
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let id = signed_id(&job.id);
            insert("webhook-id", &id);
            insert("webhook-timestamp", &now.to_string());
            insert("webhook-signature", &signer.sign(&id, now, &job.body));
        }
        headers
    }
}

/// Read the body of an answer to its end. One that is long or slow is given up, and its connection with it.
async fn read_body(mut response: Response) {
    if response.content_length().is_some_and(|length| length > BODY_MOST) {
        return;
    }
    let read = async {
        let mut seen = 0;
        while let Ok(Some(part)) = response.chunk().await {
            seen += part.len() as u64;
            if seen > BODY_MOST {
                return;
            }
        }
    };
    let _ = timeout(BODY_WITHIN, read).await;
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

fn judge(status: StatusCode, wait: Option<Duration>) -> Outcome {
    let said = format!("HTTP {}", status.as_u16());
    match status.as_u16() {
        200..=299 => Outcome::Done,
        429 | 503 => Outcome::Throttled(wait, said),
        408 | 409 | 425 => Outcome::Failed(said), // these pass: too slow, in conflict, too early
        400..=499 => Outcome::Dead(said),
        _ => Outcome::Failed(said),
    }
}

/// The content type of a job, judged by its bytes.
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
        let judged = |code| judge(StatusCode::from_u16(code).expect("a code"), Some(Duration::from_secs(7)));
        assert_eq!(judged(204), Outcome::Done);
        assert_eq!(judged(429), Outcome::Throttled(Some(Duration::from_secs(7)), "HTTP 429".to_owned()));
        assert_eq!(judged(503), Outcome::Throttled(Some(Duration::from_secs(7)), "HTTP 503".to_owned()));
        for code in [408, 409, 425, 500, 302] {
            assert_eq!(judged(code), Outcome::Failed(format!("HTTP {code}")));
        }
        for code in [400, 401, 404, 410, 422, 499] {
            assert_eq!(judged(code), Outcome::Dead(format!("HTTP {code}")));
        }
    }

    #[test]
    fn a_header_is_a_name_and_a_value_and_none_of_the_worker_s_own() {
        let read = |text: &str| header(text).map(|(name, value)| format!("{name}={:?}", value.to_str().expect("text")));
        assert_eq!(read("X-Team:  mail ").as_deref(), Ok("x-team=\"mail\""));
        assert_eq!(read("Authorization: Bearer a:b").as_deref(), Ok("authorization=\"Bearer a:b\""));
        assert_eq!(read("Empty:").as_deref(), Ok("empty=\"\""));
        for bad in
            ["", "name", ": value", "two words: x", "X: a\nb", "Drip-Id: 1", "Content-Length: 1", "webhook-id: 1"]
        {
            assert!(header(bad).is_err(), "{bad:?}");
        }
        assert!(!format!("{:?}", header("Authorization: secret")).contains("secret"));
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
