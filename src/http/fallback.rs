//! Answers to requests that no route takes.

use axum::http::{Method, StatusCode, Uri};
use serde_json::json;

use super::problem::Problem;
use super::resource_path::name;

/// There is nothing at a path. (A name that is empty leaves its place in the path empty.)
pub(super) async fn not_found(uri: Uri) -> Problem {
    let is_empty_name = ["/v1/buckets/", "/v1/budgets/"]
        .into_iter()
        .filter_map(|of| uri.path().strip_prefix(of))
        .any(|rest| rest.is_empty() || rest.starts_with('/'));
    if let (true, Err(why)) = (is_empty_name, name("")) {
        return why;
    }
    Problem::new(StatusCode::NOT_FOUND, "not-found", format!("there is nothing at {}", uri.path()))
        .with("see", json!("/openapi.json"))
}

/// A path is known, and not with this method; the header `Allow` names those that are.
pub(super) async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let detail = format!("{} does not answer {method}; the header Allow names what it answers", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail).with("see", json!("/openapi.json"))
}
