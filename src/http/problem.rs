//! Problems: the answers to requests that failed, as problem details of RFC 9457, with a word for programs.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::operate::change::ChangeError;
use crate::store::StoreError;
use crate::store::acl::Role;

/// The reason why a request failed.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    status: StatusCode,
    error: &'static str,
    detail: String,
    more: Map<String, Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// The body of an answer that is no success, as `application/problem+json`.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct ProblemBody {
    /// A name of this kind of problem.
    #[serde(rename = "type")]
    kind: String,
    /// The same in words.
    title: String,
    /// The status of the answer.
    status: u16,
    /// The word for it: what a program acts on.
    error: &'static str,
    /// What was tried, why it failed, and the way out.
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
    /// What else there is to say, by kind: `retry_after_ms`, `depth`, `capacity`.
    #[serde(flatten)]
    #[schema(additional_properties)]
    more: Map<String, Value>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, error: &'static str, detail: impl Into<String>) -> Self {
        Self { status, error, detail: detail.into(), more: Map::new(), headers: Vec::new() }
    }

    /// A request that is itself wrong: 400.
    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }

    /// An impossible state, which is a fault of this program; the server continues: 500.
    pub(super) fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
    }

    /// Add a member to the body.
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    pub(super) fn header(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value))); // plain ASCII is valid
        self
    }

    /// Say when the request may be tried again, in whole seconds, rounded up, at least 1.
    pub(super) fn retry_after_ms(self, ms: u64) -> Self {
        self.header(header::RETRY_AFTER, &ms.div_ceil(1_000).max(1).to_string())
    }

    fn title(&self) -> &'static str {
        match self.error {
            "full" => "The bucket takes no more now",
            "limited" => "The limiter refuses it",
            "unauthorized" => "A token is needed",
            "forbidden" => "This is not allowed",
            "misdirected" => "dripd is not known by that name",
            "too-large" => "It is too large",
            "busy" => "There is no room for it now",
            "no-redis" => "Redis cannot be reached, and nothing was sent to it",
            "no-answer" => "Redis did not answer",
            "unknown-outcome" => "Redis was lost: it is not known whether it was done",
            "refused" => "Redis refused it",
            _ => self.status.canonical_reason().unwrap_or("It failed"),
        }
    }
}

/// The media type of a problem.
pub(super) const MEDIA_TYPE: &str = "application/problem+json";

impl From<Problem> for ProblemBody {
    fn from(problem: Problem) -> Self {
        Self {
            kind: format!("urn:dripd:problem:{}", problem.error),
            title: problem.title().to_owned(),
            status: problem.status.as_u16(),
            error: problem.error,
            detail: problem.detail,
            more: problem.more,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(mut self) -> Response {
        let (status, more) = (self.status, std::mem::take(&mut self.headers));
        let mut response = (status, Json(ProblemBody::from(self))).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        for (name, value) in more {
            headers.insert(name, value);
        }
        response
    }
}

/// The problem for an error of Redis or a function, by what can be done about it.
impl From<StoreError> for Problem {
    fn from(why: StoreError) -> Self {
        match &why {
            StoreError::Loading { .. }
            | StoreError::Unusable { .. }
            | StoreError::Away { .. }
            | StoreError::PartitioningMismatch { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "no-redis", why.to_string()).retry_after_ms(1_000)
            }
            StoreError::Lost { .. } => {
                Self::new(StatusCode::GATEWAY_TIMEOUT, "unknown-outcome", why.in_words(Role::Daemon))
            }
            StoreError::Reply { .. } => Self::new(StatusCode::BAD_GATEWAY, "bad-reply", why.in_words(Role::Daemon)),
            StoreError::Refused { code, .. } => {
                let (status, error) = match code.as_str() {
                    _ if why.passes() => {
                        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "refused", why.in_words(Role::Daemon));
                        return problem.retry_after_ms(1_000);
                    }
                    "BADBUCKET" | "BADARG" => (StatusCode::BAD_REQUEST, "bad-request"),
                    "TOOLARGE" | "TOOMANY" => (StatusCode::PAYLOAD_TOO_LARGE, "too-large"),
                    "WRONGTYPE" => (StatusCode::CONFLICT, "wrong-type"),
                    _ => (StatusCode::BAD_GATEWAY, "refused"),
                };
                Self::new(status, error, why.in_words(Role::Daemon))
            }
        }
    }
}

impl Problem {
    /// The problem of a call that changes nothing: a lost answer leaves nothing in doubt.
    pub(super) fn of_question(why: StoreError) -> Self {
        match why {
            StoreError::Lost { .. } => {
                let detail = "Redis did not answer in time, or the connection to it broke; ask again";
                Self::new(StatusCode::GATEWAY_TIMEOUT, "no-answer", detail)
            }
            why => why.into(),
        }
    }
}

impl From<ChangeError> for Problem {
    fn from(why: ChangeError) -> Self {
        match why {
            ChangeError::Store(why) => why.into(),
            ChangeError::Spreads { .. } | ChangeError::IsCarried { .. } => {
                Self::new(StatusCode::CONFLICT, "spreading", why.to_string()).retry_after_ms(1_000)
            }
        }
    }
}
