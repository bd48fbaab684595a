//! `GET /v1/events`: figures and changes, as they happen, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Extension;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::unfold;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::context::Context;
use super::feed::Subscription;
use super::problem::Problem;

/// How long a stream may be silent before a comment is sent, so that proxies do not take the connection for a dead one.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// `GET /v1/events`.
pub(super) async fn events(
    Context { state, caller }: Context,
    Extension(connection): Extension<Connection>,
) -> Result<Response, Problem> {
    caller.may_read(None)?;
    let Some(subscription) = state.feed.subscribe(connection, caller.name()) else {
        let why = "as many streams of events as may be are open";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-streams", why).retry_after_ms(5_000));
    };
    // A reload may change what the token permits, so it ends the stream; the listener comes back with its token.
    let stop = state.until_reload();
    let body = unfold((subscription, stop), |(mut subscription, stop)| async move {
        let text = next(&mut subscription, &stop).await?;
        Some((Ok::<_, Infallible>(text), (subscription, stop)))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"), // nginx must not buffer the stream
    ];
    Ok((headers, Body::from_stream(body)).into_response())
}

/// The next piece of a stream; `None`: the stream ends. It ends for a client that fell behind, too: the client comes
/// back and gets everything that is remembered.
async fn next(subscription: &mut Subscription, stop: &CancellationToken) -> Option<Bytes> {
    if let Some(first) = subscription.first.pop_front() {
        return Some(Bytes::copy_from_slice(first.as_bytes()));
    }
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        news = tokio::time::timeout(HEARTBEAT, subscription.news.recv()) => match news {
            Ok(Ok(news)) => Some(Bytes::copy_from_slice(news.as_bytes())),
            Ok(Err(RecvError::Lagged(_) | RecvError::Closed)) => None,
            Err(_) => Some(Bytes::from_static(b": nothing new\n\n")),
        },
    }
}
