//! The stream of a connection, between hyper and the socket: it notes when bytes come and go, gives hyper's own answers
//! a body, and reads the rest of a request that was answered before it was read.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use super::connection::{ConnectionGuard, ConnectionState};
use super::problem::{MEDIA_TYPE, Problem, ProblemBody};

/// How many bytes, and for how long, are read of a request that was answered before it was read. A socket that is
/// closed with unread data resets the connection, and the client may lose the answer.
const UNREAD_MOST: usize = 16 * 1_048_576;
const UNREAD_WITHIN: Duration = Duration::from_secs(2);

/// The first megabyte of unread data is read at once, the rest in pieces.
const UNREAD_AT_ONCE: usize = 1_048_576;
const UNREAD_PIECE: usize = 32 * 1_024;

/// The answer that hyper writes to a request that it cannot read, as a problem with a body; `None` for all that handlers
/// answer: there no refusal has an empty body.
fn with_a_body(answer: &[u8]) -> Option<Vec<u8>> {
    const EMPTY: &str = "content-length: 0\r\n";
    let head = std::str::from_utf8(answer).ok().filter(|text| text.starts_with("HTTP/1.1 4"))?;
    let (before, after) = head.split_once(EMPTY)?;
    if !after.ends_with("\r\n") {
        return None;
    }
    let status = StatusCode::from_bytes(head.get(9..12)?.as_bytes()).ok()?;
    let problem = match status {
        StatusCode::BAD_REQUEST => {
            Problem::bad_request("this is no HTTP/1.1 request, or two parts of its head disagree")
        }
        StatusCode::URI_TOO_LONG => Problem::new(status, "too-large", "the target of the request is too long"),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            Problem::new(status, "too-large", "the head of the request is too long, or has too many headers")
        }
        _ => return None,
    };
    let body = serde_json::to_string(&ProblemBody::from(problem)).ok()?;
    let length = body.len();
    let headers = format!("content-type: {MEDIA_TYPE}\r\ncache-control: no-store\r\ncontent-length: {length}\r\n");
    Some([before, &headers, after, &body].concat().into_bytes())
}

/// A stream that records when bytes arrive and leave.
pub(super) struct MonitoredStream<S> {
    stream: S,
    state: Arc<ConnectionState>,
    /// What is still to be written in the place of hyper's own answer.
    instead: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> MonitoredStream<S> {
    pub(super) fn new(stream: S, state: Arc<ConnectionState>) -> Self {
        Self { stream, state, instead: Vec::new() }
    }

    /// Close the sending side, and read what the client still sends, so that the client gets its answer.
    pub(super) async fn end(mut self, guard: &ConnectionGuard) {
        let read_on = async {
            poll_fn(|context| self.write_instead(context)).await?;
            self.stream.shutdown().await?;
            let (mut read, mut paid, mut buffer) = (0, UNREAD_AT_ONCE, vec![0; UNREAD_PIECE]);
            while read < UNREAD_MOST {
                match self.stream.read(&mut buffer).await? {
                    0 => break,
                    n => read += n,
                }
                if read > paid {
                    guard.unread().await;
                    paid += UNREAD_PIECE;
                }
            }
            std::io::Result::Ok(())
        };
        let _ = tokio::time::timeout(UNREAD_WITHIN, read_on).await;
    }

    /// Write what stands in the place of hyper's own answer.
    fn write_instead(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        while !self.instead.is_empty() {
            let wrote = Pin::new(&mut self.stream).poll_write(context, &self.instead);
            match ready!(self.wrote(wrote))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                n => drop(self.instead.drain(..n)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn wrote<T>(&self, polled: Poll<T>) -> Poll<T> {
        match &polled {
            Poll::Ready(_) => self.state.answer_was_taken(),
            Poll::Pending => self.state.answer_waits(),
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for MonitoredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if buffer.filled().len() > before {
            self.state.bytes_came();
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for MonitoredStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        ready!(self.write_instead(context))?;
        if let Some(answer) = with_a_body(bytes) {
            self.instead = answer;
            return Poll::Ready(Ok(bytes.len()));
        }
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        if let [only] = parts {
            return self.poll_write(context, only);
        }
        ready!(self.write_instead(context))?;
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.wrote(wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(self.write_instead(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(self.write_instead(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_hyper_gets_a_body_and_no_other_one_is_changed() {
        let of_hyper = |status: &str| {
            format!(
                "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\ndate: Sat, 28 Nov 2026 12:00:00 GMT\r\n\r\n"
            )
        };
        for (status, error) in [
            ("400 Bad Request", "bad-request"),
            ("414 URI Too Long", "too-large"),
            ("431 Request Header Fields Too Large", "too-large"),
        ] {
            let answer = String::from_utf8(with_a_body(of_hyper(status).as_bytes()).expect("a body")).expect("text");
            let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
            assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\nconnection: close\r\n")), "{head}");
            assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{head}");
            let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
            assert_eq!((&body["error"], body["status"].to_string()), (&error.into(), status[..3].to_owned()));
        }
        for other in [
            of_hyper("200 OK"),
            of_hyper("404 Not Found"),
            of_hyper("400 Bad Request").replace("length: 0", "length: 5") + "hello",
            of_hyper("400 Bad Request") + "HTTP/1.1 200 OK",
            "content-length: 0\r\n\r\n".to_owned(),
        ] {
            assert_eq!(with_a_body(other.as_bytes()), None, "{other}");
        }
    }
}
