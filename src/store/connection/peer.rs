//! A peer: a server to which a stream is opened, with TLS and a login on it; and why that fails, with the way out.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::{MultiplexedConnection, SendError};
use redis::{AsyncConnectionConfig, ErrorKind, PushInfo, RedisError};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::login::Login;
use super::tls::{self, no_tls};
use crate::config::connection::{Node, TlsSettings};

/// How long it may take until a server can be used that others named: it may be the one that died.
pub(super) const CONNECT_TO_PRIMARY_WITHIN: Duration = Duration::from_secs(1);

/// A callback for reports of Redis besides answers, and for the end of a connection.
pub(in crate::store) type OnPush = Arc<dyn Fn(&PushInfo) + Send + Sync>;

/// A server, and what it takes to speak to it.
pub(super) struct Peer<'a> {
    pub(super) place: Place<'a>,
    pub(super) login: &'a Login,
    pub(super) tls: Option<&'a TlsSettings>,
    /// The keys of the configuration that say where it is, and its password.
    pub(super) named_in: &'static str,
    pub(super) password_in: &'static str,
}

/// Where a server is.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    Node(&'a Node),
    Socket(&'a std::path::Path),
}

/// Why a server cannot be used.
pub(super) enum Failed {
    /// The server still loads its data.
    Loading,
    /// Why, and the way out.
    For(String),
}

/// The reason given for a server of a cluster that loads its data.
pub(super) const LOADING: &str = "it is loading its data";

impl Failed {
    pub(super) fn in_words(self) -> String {
        match self {
            Self::Loading => LOADING.to_owned(),
            Self::For(why) => why,
        }
    }
}

/// Connect to a node of a cluster, whatever it is.
pub(super) async fn to_node(
    node: &Node,
    login: &Login,
    tls: Option<&TlsSettings>,
    answer_within: Duration,
    on_push: &OnPush,
) -> Result<(MultiplexedConnection, AbortOnDropHandle<()>), String> {
    let (named_in, password_in) = ("redis.cluster", "redis.password_file");
    let peer = Peer { place: Place::Node(node), login, tls, named_in, password_in };
    peer.open(CONNECT_TO_PRIMARY_WITHIN, answer_within, on_push).await.map_err(Failed::in_words)
}

impl Peer<'_> {
    /// A stream, TLS, a login: a connection, and what moves its bytes.
    pub(super) async fn open(
        &self,
        within: Duration,
        answer_within: Duration,
        on_push: &OnPush,
    ) -> Result<(MultiplexedConnection, AbortOnDropHandle<()>), Failed> {
        let until = Instant::now() + within;
        let login = self.login.now().map_err(Failed::For)?;
        let stream: Box<dyn Stream> = match self.place {
            Place::Socket(path) => match timeout_at(until, UnixStream::connect(path)).await {
                Ok(stream) => Box::new(stream.map_err(|why| self.not_there(&why))?),
                Err(_) => return Err(self.no_answer(within)),
            },
            Place::Node(node) => {
                let stream = match timeout_at(until, tcp(node)).await {
                    Ok(stream) => stream.map_err(|why| self.not_there(&why))?,
                    Err(_) => return Err(self.no_answer(within)),
                };
                match self.tls {
                    None => Box::new(stream),
                    Some(tls) => match timeout_at(until, tls::speak(stream, tls, &node.host)).await {
                        Ok(stream) => Box::new(stream.map_err(Failed::For)?),
                        Err(_) => {
                            return Err(Failed::For(no_tls(&format!("it did not answer in TLS within {within:?}"))));
                        }
                    },
                }
            }
        };
        let on_push = Arc::clone(on_push);
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(answer_within)).set_push_sender(
            move |push: PushInfo| {
                on_push(&push);
                Ok::<(), SendError>(())
            },
        );
        match timeout_at(until, MultiplexedConnection::new_with_config(&login, stream, config)).await {
            Ok(Ok((calls, driver))) => Ok((calls, AbortOnDropHandle::new(tokio::spawn(driver)))),
            Ok(Err(why)) => Err(self.refused(&why)),
            Err(_) => Err(self.no_answer(within)),
        }
    }

    fn not_there(&self, why: &std::io::Error) -> Failed {
        Failed::For(format!("{why}; is it running, and is {} right?", self.named_in))
    }

    fn no_answer(&self, within: Duration) -> Failed {
        Failed::For(format!("it did not answer within {within:?}; is it running, and is {} right?", self.named_in))
    }

    /// Why a server that was reached does not let dripd in.
    fn refused(&self, why: &RedisError) -> Failed {
        let password_in = self.password_in;
        Failed::For(match (why.kind(), why.code()) {
            (_, Some("LOADING")) => return Failed::Loading,
            (_, Some("NOAUTH")) => format!("it wants a password and none was given: name a file in {password_in}"),
            (ErrorKind::AuthenticationFailed, _) | (_, Some("WRONGPASS" | "NOPERM")) => {
                let url = if self.named_in == "redis.url" { "redis.url, " } else { "" };
                let user_in = password_in.replace("password_file", "user");
                format!("it refuses the user or the password ({why}); check {url}{user_in} and {password_in}")
            }
            _ if why.to_string().contains("refused to switch database") => format!(
                "it refuses database {} ({why}); take the number out of {}, or let the user choose it: `dripd acl` prints that right",
                self.login.database, self.named_in
            ),
            (ErrorKind::RESP3NotSupported, _) => {
                "it does not speak RESP3; Redis or Valkey 7.0 or newer is needed".to_owned()
            }
            _ => match (io_error(why), self.tls) {
                (Some(why), Some(tls)) => tls::in_words(why, tls),
                (Some(_), None) if why.is_connection_dropped() => self.maybe_tls(why),
                (None, None) if why.kind() == ErrorKind::Parse => self.maybe_tls(why),
                _ => format!("{why}; is it running, and is {} right?", self.named_in),
            },
        })
    }

    /// Why a server that was reached did not speak as Redis does.
    fn maybe_tls(&self, why: &RedisError) -> String {
        let way_out = if self.named_in == "redis.url" { "write rediss:// there" } else { "add redis.tls = {}" };
        format!("{why}; is {} right? if it speaks TLS, {way_out}", self.named_in)
    }
}

/// A stream that the redis crate speaks over.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A TCP connection to the first of a host's addresses that answers. A peer that is gone without a word is noticed by keep-alive.
async fn tcp(node: &Node) -> std::io::Result<TcpStream> {
    let found: Vec<_> = lookup_host((node.host.as_str(), node.port)).await?.collect();
    if found.is_empty() {
        return Err(std::io::Error::other("its name has no address"));
    }
    let (stream, _) = select_ok(found.into_iter().map(|address| Box::pin(TcpStream::connect(address)))).await?;
    stream.set_nodelay(true)?;
    let keep_alive =
        TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(Duration::from_secs(5)).with_retries(3);
    SockRef::from(&stream).set_tcp_keepalive(&keep_alive)?;
    Ok(stream)
}

/// The error of the system, where the redis crate passes it on.
fn io_error(why: &RedisError) -> Option<&std::io::Error> {
    let cause = std::error::Error::source(why)?;
    let shared = cause.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()?;
    shared.downcast_ref::<std::io::Error>()
}
