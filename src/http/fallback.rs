//! Answers to requests that no route takes.

use axum::http::{Method, StatusCode, Uri};
use serde_json::json;

use super::problem::Problem;
use super::resource_path::name;

/// The answer for a path at which there is nothing. In the place of an empty name, the answer says that the name is
/// bad.
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

/// The answer for a path that is known, but not with this method. The header `Allow` names the methods that it has.
pub(super) async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let detail = format!("{} does not answer {method}; the header Allow names what it answers", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail).with("see", json!("/openapi.json"))
}
