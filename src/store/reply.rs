//! Decoding of replies. The redis crate reads a reply as a tuple, and a function turns the tuple into a type with names; where the fields of
//! that stand in the order of the tuple, `named` does. Serde reads the texts that are JSON. A reply that does not fit is an error that shows it.

use std::time::Duration;

use redis::{FromRedisValue, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connection::StoreError;

/// The answer of a call.
pub(super) struct Reply {
    pub(super) call: &'static str,
    pub(super) value: Value,
}

impl Reply {
    pub(super) fn decode<T: FromRedisValue>(&self) -> Result<T, StoreError> {
        self.decode_with(Some)
    }

    /// Decode the reply as `T`, and make of that what it stands for.
    pub(super) fn decode_with<T: FromRedisValue, U>(&self, read: impl FnOnce(T) -> Option<U>) -> Result<U, StoreError> {
        T::from_redis_value_ref(&self.value).ok().and_then(read).ok_or_else(|| self.unexpected())
    }

    /// Leave out what a newer library replies behind the first `most` items.
    pub(super) fn first(mut self, most: usize) -> Self {
        if let Value::Array(items) = &mut self.value {
            items.truncate(most);
        }
        self
    }

    pub(super) fn unexpected(&self) -> StoreError {
        let reply: String = format!("{:?}", self.value).chars().take(200).collect();
        StoreError::Reply { call: self.call, reply }
    }
}

/// Values that a function replies one after the other, by the names of the fields, which stand in the same order.
pub(super) fn named<T: DeserializeOwned>(values: impl Serialize) -> Option<T> {
    serde_json::from_value(serde_json::to_value(values).ok()?).ok()
}

/// A wait as the functions reply it: −1 stands for none.
pub(super) fn wait(n: i64, unit: fn(u64) -> Duration) -> Option<Duration> {
    count(n).map(unit)
}

/// A number that is never negative.
pub(super) fn count(n: i64) -> Option<u64> {
    u64::try_from(n).ok()
}

/// A text as the functions reply it: an empty one stands for none.
pub(super) fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
