//! Routes: the names of ready streams.

use serde::Serialize;

/// The name of a ready stream: 1 to 64 of `a-z A-Z 0-9 . _ -`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Route(Box<str>);

impl Route {
    /// The valid form in words, for error messages.
    pub const HINT: &'static str = "a route is 1 to 64 of a-z A-Z 0-9 . _ -";

    /// Read the name of a route.
    ///
    /// # Errors
    ///
    /// [`Self::HINT`] for a text that is not a route.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if fits { Ok(Self(text.into())) } else { Err(Self::HINT) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the route called `default`.
    pub fn is_default(&self) -> bool {
        &*self.0 == "default"
    }
}

impl Default for Route {
    fn default() -> Self {
        Self("default".into())
    }
}

impl std::str::FromStr for Route {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}
