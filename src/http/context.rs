//! The context of a request: the shared state, and the caller.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::auth::Caller;
use super::problem::Problem;
use super::state::AppState;

/// The shared state and the caller, as handlers take them.
pub(super) struct Context {
    pub(super) state: Arc<AppState>,
    pub(super) caller: Caller,
}

impl FromRequestParts<Arc<AppState>> for Context {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Problem::internal("nobody has said who asks"))?;
        Ok(Self { state: Arc::clone(state), caller })
    }
}

impl Context {
    /// The name of the caller in events about a change.
    pub(super) fn by(&self) -> String {
        self.state.by(&self.caller)
    }
}
