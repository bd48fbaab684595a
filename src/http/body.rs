//! Bodies, read whole up to a limit and within a time; and the arguments in them and in queries.

use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use serde::de::DeserializeOwned;

use super::connection::{ConnectionState, InFlight};
use super::memory::{Room, SMALL};
use super::problem::Problem;
use crate::model::escape::byte_order_mark;

/// How long a body may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// The most bytes of a JSON body, which says what to do and is no job.
const JSON_MOST: usize = 64 * 1_024;

/// The body of a request, of which nothing was read yet, and the room of the request in memory.
pub(super) struct Unread {
    body: Body,
    room: Arc<Room>,
}

impl<S: Sync> FromRequest<S> for Unread {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let room = request.extensions().get::<Arc<Room>>().cloned();
        let room = room.ok_or_else(|| Problem::internal("the request has no room"))?;
        Ok(Self { body: request.into_body(), room })
    }
}

/// Read a body of at most `most` bytes whole, once there is room for it. A larger one is refused, and not read further.
pub(super) async fn read(Unread { mut body, room }: Unread, most: usize) -> Result<Vec<u8>, Problem> {
    let most = most.min(room.largest());
    let too_large = || {
        let detail = format!("the body is larger than {most} bytes; nothing was changed");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
    };
    let size = body.size_hint();
    // The head gives the size: then not a byte of the body is read.
    if size.lower() > most as u64 {
        return Err(too_large());
    }
    // A body that comes in chunks may be as long as is allowed.
    let expected = size.exact().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(most);
    room.at_least(SMALL + expected).await?;
    let whole = async {
        let mut whole = Vec::with_capacity(if size.exact().is_some() { expected } else { 0 });
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|why| Problem::bad_request(format!("the body ended before it was whole: {why}")))?;
            let Ok(piece) = frame.into_data() else { continue };
            if piece.len() > most - whole.len() {
                return Err(too_large());
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    };
    let late = async {
        tokio::select! {
            () = tokio::time::sleep(BODY_WITHIN) => BODY_WITHIN,
            after = room.is_in_the_way() => after,
        }
    };
    tokio::select! {
        biased;
        whole = whole => {
            let whole = whole?;
            room.at_most(SMALL + whole.len());
            Ok(whole)
        }
        after = late => {
            let detail = format!("the body took longer than {} s; nothing was changed", after.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail))
        }
    }
}

/// Read a JSON body; an empty body counts as an empty object.
pub(super) async fn read_json<T: DeserializeOwned>(body: Unread) -> Result<T, Problem> {
    let bytes = read(body, JSON_MOST).await?;
    let text: &[u8] = if bytes.trim_ascii().is_empty() { b"{}" } else { &bytes };
    serde_json::from_slice(text).map_err(|why| {
        let why = byte_order_mark(text).map_or_else(|| why.to_string(), |mark| format!("it begins with {mark}"));
        Problem::bad_request(format!("the body is not what is asked for: {why}"))
    })
}

/// Read a JSON body that must be an object. Deserializing into the type directly would also accept a list of the
/// members by position, and an incomplete one.
pub(super) async fn read_members<T: DeserializeOwned>(body: Unread) -> Result<T, Problem> {
    let members: serde_json::Map<String, serde_json::Value> = read_json(body).await?;
    T::deserialize(serde_json::Value::Object(members))
        .map_err(|why| Problem::bad_request(format!("the body is not what is asked for: {why}")))
}

/// A query that was read. A handler looks at it only after it has checked the permissions, so that a caller without
/// them learns nothing.
pub(super) type QueryResult<T> = Result<Query<T>, QueryRejection>;

/// The members of a query, or the problem with them.
pub(super) fn query<T>(read: QueryResult<T>) -> Result<T, Problem> {
    read.map(|Query(read)| read).map_err(|why| Problem::bad_request(why.body_text()))
}

/// Check that a number of a query is 1 to `most`.
pub(super) fn at_most<T: Copy + PartialOrd + Display + From<u8>>(name: &str, given: T, most: T) -> Result<T, Problem> {
    if given >= T::from(1) && given <= most {
        return Ok(given);
    }
    Err(Problem::bad_request(format!("{name}={given} is not allowed; write 1 to {most}")))
}

/// An extractor that refuses a query. The request's arguments are in its body, and an ignored word of a query might be
/// meant to restrict the change.
pub(super) struct NoQuery;

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match parts.uri.query() {
            None | Some("") => Ok(Self),
            Some(query) => Err(Problem::bad_request(format!(
                "{query:?}: this request has no query; write it into the body, as JSON"
            ))),
        }
    }
}

/// The body of a response. Its request counts as in flight until the body is sent or dropped.
pub(super) struct ResponseBody {
    body: Body,
    in_flight: Option<InFlight>,
}

impl ResponseBody {
    pub(super) fn new(body: Body, in_flight: InFlight) -> Self {
        let in_flight = (!body.is_end_stream()).then_some(in_flight);
        Self { body, in_flight }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) || self.body.is_end_stream() {
            self.in_flight = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a request, which records whether it was read to its end.
pub(super) struct RequestBody {
    body: Incoming,
    state: Arc<ConnectionState>,
}

impl RequestBody {
    pub(super) fn new(body: Incoming, state: Arc<ConnectionState>) -> Self {
        state.is_unread.store(!body.is_end_stream(), Ordering::Relaxed);
        Self { body, state }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) || self.body.is_end_stream() {
            self.state.is_unread.store(false, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
