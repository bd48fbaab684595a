//! A dead letter in JSON, for `dripd dead list --json` and for `GET /v1/dead`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::dead::{known_as, others};
use super::moment::rfc3339;
use crate::store::dead::Letter;
use crate::words::shown::shown_json;

/// Bytes in JSON: as text where they are UTF-8, else in base64 in another member.
struct Text(Option<String>, Option<String>);

impl Text {
    fn of(bytes: Option<&[u8]>) -> Self {
        match bytes.map(|bytes| std::str::from_utf8(bytes).map_err(|_| bytes)) {
            None => Self(None, None),
            Some(Ok(text)) => Self(Some(text.to_owned()), None),
            Some(Err(bytes)) => Self(None, Some(STANDARD.encode(bytes))),
        }
    }
}

/// A dead letter as people and programs are shown it.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = DeadLetter)]
pub(crate) struct LetterSaid {
    /// Its entry in the dead stream.
    entry: String,
    /// When it died, RFC 3339.
    at: Option<String>,
    /// Whether it is no dead letter of dripd's, so that it cannot go back.
    malformed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket_base64: Option<String>,
    attempt: Option<u64>,
    id: Option<String>,
    identity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_base64: Option<String>,
    bytes: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<Other>,
}

/// A field that no dead letter of dripd's has.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OtherField)]
pub(crate) struct Other {
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

/// A letter as JSON: what is no UTF-8 in base64; every character that a terminal or a reader could take amiss is escaped.
#[must_use]
pub fn as_json(letter: &Letter) -> String {
    shown_json(&serde_json::to_string(&said(letter)).expect("texts and numbers"))
}

/// The same as a value.
#[must_use]
pub fn as_value(letter: &Letter) -> serde_json::Value {
    serde_json::to_value(said(letter)).unwrap_or_default()
}

fn said(letter: &Letter) -> LetterSaid {
    let text = |name: &str| letter.field(name).and_then(|bytes| std::str::from_utf8(bytes).ok());
    let Text(bucket, bucket_base64) = Text::of(letter.field("bucket"));
    let Text(reason, reason_base64) = Text::of(letter.field("reason"));
    let Text(job, job_base64) = Text::of(letter.field("job"));
    let other = |(name, value): (&[u8], &[u8])| {
        let (Text(field, field_base64), Text(value, value_base64)) = (Text::of(Some(name)), Text::of(Some(value)));
        Other { field, field_base64, value, value_base64 }
    };
    LetterSaid {
        entry: letter.entry.to_string(),
        at: rfc3339(letter.entry.ms),
        malformed: letter.malformed,
        bucket,
        bucket_base64,
        attempt: text("attempt").and_then(|n| n.parse().ok()),
        id: text("id").map(str::to_owned),
        identity: known_as(letter),
        reason,
        reason_base64,
        job,
        job_base64,
        bytes: letter.field("job").map(<[u8]>::len),
        others: others(letter).map(other).collect(),
    }
}
