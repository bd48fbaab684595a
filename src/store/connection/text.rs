//! Text of a reply.

use redis::{FromRedisValue, ParsingError, Value};

/// A text in a reply: names and errors may hold any bytes, and those that are no UTF-8 are replaced.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(in crate::store) struct Text(pub(in crate::store) String);

impl FromRedisValue for Text {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        match value {
            Value::BulkString(bytes) => Ok(Self(String::from_utf8_lossy(&bytes).into_owned())),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(Self(text)),
            other => Err(format!("{other:?} is no text").into()),
        }
    }
}
