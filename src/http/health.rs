//! The health of this daemon.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};

use super::problem::Problem;
use super::state::AppState;

/// Whether a path is one that anybody may ask without a token.
pub(super) fn is_health(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// That all is well. No cache may say so later.
type Healthy = ([(HeaderName, &'static str); 1], &'static str);
const OK: Healthy = ([(header::CACHE_CONTROL, "no-store")], "ok\n");

/// `GET /healthz`: whether the loops run. A daemon that waits for Redis is healthy: starting it again would not help.
pub(super) async fn healthz(State(state): State<Arc<AppState>>) -> Result<Healthy, Problem> {
    if state.progress.is_stuck() {
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "stuck",
            "the pacer should have moved by now and has not",
        ));
    }
    Ok(OK)
}

/// `GET /readyz`: whether this daemon serves its Redis, and that takes jobs.
pub(super) async fn readyz(State(state): State<Arc<AppState>>) -> Result<Healthy, Problem> {
    if let Some(why) = state.progress.refusal() {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "refused", why).retry_after_ms(1_000));
    }
    if state.progress.is_serving() {
        return Ok(OK);
    }
    let detail = "this daemon serves no Redis now; its log says why";
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no-redis", detail).retry_after_ms(1_000))
}
