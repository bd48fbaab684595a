//! Paths below `/v1/buckets` and `/v1/budgets`: the name in them, the verb and the key.
//!
//! A bucket may have the name of a verb; what follows in the path decides what a word means.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use percent_encoding::percent_decode_str;

use super::problem::Problem;
use crate::model::bucket::{BadBucketName, BucketName};

/// The verbs that may follow a name.
pub(super) const VERBS: [&str; 9] = ["jobs", "drips", "pause", "resume", "close", "open", "slow", "told", "purge"];

/// The verb that a key may follow.
pub(super) const SETTINGS: &str = "settings";

/// The parts of a path below `/v1/buckets` or `/v1/budgets`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResourcePath {
    pub(super) is_budget: bool,
    /// The name in the path; `None`: a glob in the query takes its place.
    pub(super) named: Option<BucketName>,
    /// The verb behind the name, or in its place; empty: there is none.
    pub(super) verb: &'static str,
    /// The key behind `settings`, or the id behind `jobs`.
    pub(super) key: Option<String>,
}

/// The problem of a name that no bucket or budget can have.
pub(super) fn bad_name(why: &BadBucketName) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad-name", why.to_string())
}

/// Read the name of a bucket or a budget.
pub(super) fn name(text: &str) -> Result<BucketName, Problem> {
    BucketName::parse(text.as_bytes()).map_err(|why| bad_name(&why))
}

fn verb_of(text: &str) -> Option<&'static str> {
    VERBS.into_iter().chain([SETTINGS]).find(|verb| *verb == text)
}

impl ResourcePath {
    /// Read a path. With a method that only reads, a single word is a name; with one that sets keys, the word behind
    /// `settings` is a key.
    fn read(path: &str, method: &Method) -> Result<Self, Problem> {
        let parts: Vec<&str> = path.split('/').skip(2).collect();
        let (kind, parts) = parts.split_first().ok_or_else(|| Problem::internal("the path is too short"))?;
        let name = |text: &str| {
            let bytes: Vec<u8> = percent_decode_str(text).collect();
            BucketName::parse(&bytes).map(Some).map_err(|why| bad_name(&why))
        };
        let key = |text: &str| Some(percent_decode_str(text).decode_utf8_lossy().into_owned());
        let sets_keys = [Method::PATCH, Method::DELETE].contains(method);
        let (named, verb, key) = match parts {
            [one] => match verb_of(one).filter(|_| !method.is_safe()) {
                Some(verb) => (None, verb, None),
                None => (name(one)?, "", None),
            },
            [one, last] if *one == SETTINGS && *last != SETTINGS && sets_keys => (None, SETTINGS, key(last)),
            [one, verb] => match verb_of(verb) {
                Some(verb) => (name(one)?, verb, None),
                None => (None, SETTINGS, key(verb)),
            },
            [one, _, last] => (name(one)?, SETTINGS, key(last)),
            _ => (None, "", None),
        };
        Ok(Self { is_budget: *kind == "budgets", named, verb, key })
    }

    /// The name in the path, or a problem where it has none.
    pub(super) fn into_name(self) -> Result<BucketName, Problem> {
        self.named.ok_or_else(|| Problem::bad_request("the path names none"))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ResourcePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::read(parts.uri.path(), &parts.method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_word_decides_whether_it_is_a_name() {
        let at = |path: &str, method: Method| {
            let ResourcePath { is_budget, named, verb, key } = ResourcePath::read(path, &method).ok()?;
            Some((is_budget, named.map(|name| name.to_string()), verb, key))
        };
        let some = |text: &str| Some(text.to_owned());
        for (path, method, expected) in [
            ("/v1/buckets/acme", Method::GET, (false, some("acme"), "", None)),
            ("/v1/buckets/pause", Method::GET, (false, some("pause"), "", None)),
            ("/v1/buckets/pause", Method::POST, (false, None, "pause", None)),
            ("/v1/budgets/a%2Fb%3Ac/slow", Method::POST, (true, some("a/b:c"), "slow", None)),
            ("/v1/buckets/settings", Method::POST, (false, None, "settings", None)),
            ("/v1/buckets/settings/rate", Method::POST, (false, None, "settings", some("rate"))),
            ("/v1/buckets/settings/slow", Method::PATCH, (false, None, "settings", some("slow"))),
            ("/v1/buckets/settings/slow", Method::POST, (false, some("settings"), "slow", None)),
            ("/v1/buckets/settings/settings", Method::PATCH, (false, some("settings"), "settings", None)),
            ("/v1/buckets/settings/jobs", Method::POST, (false, some("settings"), "jobs", None)),
            ("/v1/buckets/settings/settings", Method::POST, (false, some("settings"), "settings", None)),
            ("/v1/buckets/acme/settings/rate", Method::POST, (false, some("acme"), "settings", some("rate"))),
        ] {
            assert_eq!(at(path, method), Some(expected), "{path}");
        }
        for bad in ["/v1/buckets/%ff/jobs", "/v1/buckets/a%00/jobs", "/v1/buckets//jobs", "/v1/buckets/%7Ba%7D"] {
            assert_eq!(at(bad, Method::POST), None, "{bad}");
        }
    }
}
