//! Bucket names, which producers choose.

use std::fmt;

/// The longest name of a bucket, in bytes.
pub const MAX_BYTES: usize = 200;

/// The name of a bucket: 1 to 200 bytes of UTF-8 without control characters, `{` or `}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketName(Box<str>);

/// The error for bytes that are not a valid bucket name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{shown:?} is no bucket name: {why}; a name is 1 to 200 bytes of UTF-8 without control characters, {{ or }}")]
pub struct BadBucketName {
    shown: String,
    why: &'static str,
}

impl BucketName {
    /// Check the bytes of a key or an argument and make a name of them.
    ///
    /// # Errors
    ///
    /// The error says what is wrong and shows at most the first 64 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadBucketName> {
        let refuse = |why| {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned();
            Err(BadBucketName { shown, why })
        };
        if bytes.is_empty() {
            return refuse("it is empty");
        }
        if bytes.len() > MAX_BYTES {
            return refuse("it is longer than 200 bytes");
        }
        let Ok(name) = std::str::from_utf8(bytes) else { return refuse("it is not UTF-8") };
        if name.chars().any(char::is_control) {
            return refuse("it holds a control character");
        }
        if name.contains(['{', '}']) {
            return refuse("it holds a brace");
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BucketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for BucketName {
    type Err = BadBucketName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_1_to_200_bytes_of_utf8_without_control_characters_or_braces() {
        for good in ["a", "sms:+41 79 123", "Zürich", "queue:queue:x", &"é".repeat(100)] {
            assert!(BucketName::parse(good.as_bytes()).is_ok(), "{good}");
        }
        let long = "a".repeat(201);
        for bad in [&b""[..], b"a\nb", b"a\x7f", b"{a}", b"\xff\xfe", "a\u{85}".as_bytes(), long.as_bytes()] {
            assert!(BucketName::parse(bad).is_err(), "{bad:?}");
        }
    }
}
