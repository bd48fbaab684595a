//! A dead letter in JSON, for `dripd dead list --json` and for `GET /v1/dead`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::dead_filter::known_as;
use super::moment::rfc3339;
use crate::store::dead::Letter;

/// Bytes in JSON: the first member if they are UTF-8, otherwise the second, in base64.
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

/// A dead letter for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct DeadLetter {
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
    others: Vec<OtherField>,
}

/// A field that no dead letter of dripd's has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct OtherField {
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

impl DeadLetter {
    /// A letter for programs: bytes that are UTF-8 become text, others base64.
    pub fn of(letter: &Letter) -> Self {
        let text = |name: &str| letter.field(name).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let Text(bucket, bucket_base64) = Text::of(letter.field("bucket"));
        let Text(reason, reason_base64) = Text::of(letter.field("reason"));
        let Text(job, job_base64) = Text::of(letter.field("job"));
        let other = |(name, value): (&[u8], &[u8])| {
            let (Text(field, field_base64), Text(value, value_base64)) = (Text::of(Some(name)), Text::of(Some(value)));
            OtherField { field, field_base64, value, value_base64 }
        };
        Self {
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
}

/// The fields of an entry that dripd's dead letters do not have.
pub fn others(letter: &Letter) -> impl Iterator<Item = (&[u8], &[u8])> {
    let is_ours = |name: &[u8]| [b"bucket".as_slice(), b"job", b"attempt", b"id", b"reason"].contains(&name);
    let others = letter.fields.iter().filter(move |(name, _)| !is_ours(name));
    others.map(|(name, value)| (name.as_slice(), value.as_slice()))
}
