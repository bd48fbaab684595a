//! How a connection is made, from what the operator named to a server that may be used:
//!
//! - which server: the one that is named, the primary that a sentinel names (`sentinel`), or one of a cluster's (`table` knows which);
//! - a stream: TCP with keep-alive, or a Unix socket; TLS on it where that is asked for (`tls`);
//! - a login: HELLO 3 AUTH, with the user and the password of `address`;
//! - its role: what a sentinel or a cluster named must call itself a master.
//!
//! Passwords, certificates and keys are read from their files each time, so that new ones need no restart; a connection that is there
//! already does not notice them. It ends with its last clone, or when sentinels name another primary: it is cut then, as if the server
//! had ended it, for whoever uses a lost connection asks anew.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::{MultiplexedConnection, SendError};
use redis::{AsyncConnectionConfig, ErrorKind, PushInfo, PushKind, RedisError, Value};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::address::{At, Login};
use super::sentinel::{Found, Sentinels};
use super::table::Line;
use super::tls::{self, no_tls};
use super::{Address, StoreError};
use crate::config::connection::{Node, TlsSettings};

/// How long it may take until a server can be used: one that is named, and one that others named, which may be the one that died.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
const CONNECT_TO_PRIMARY_WITHIN: Duration = Duration::from_secs(1);

/// What is done with what Redis reports besides answers, and with the end of a connection.
pub(super) type OnPush = Arc<dyn Fn(&PushInfo) + Send + Sync>;

/// A connection, and the server that it leads to.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    pub(super) calls: MultiplexedConnection,
    /// The server, as it may be shown.
    pub(super) at: Arc<str>,
    /// Of a cluster: to which server.
    pub(super) line: Option<Arc<Line>>,
    /// What moves its bytes, and what watches the sentinels: they end with the last clone.
    _tasks: Arc<[AbortOnDropHandle<()>]>,
}

impl Connection {
    /// The number of the line, of a cluster.
    pub(super) fn line(&self) -> Option<u64> {
        self.line.as_ref().map(|line| line.number)
    }
}

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
    /// It still loads its data.
    Loading,
    /// Why, and the way out.
    For(String),
}

/// What is said of a server of a cluster that loads its data.
pub(super) const LOADING: &str = "it is loading its data";

/// Connect to a node of a cluster, whatever it is.
pub(super) async fn to_node(
    address: &Address,
    node: &Node,
    answer_within: Duration,
    on_push: &OnPush,
) -> Result<(MultiplexedConnection, AbortOnDropHandle<()>), String> {
    let (place, tls) = (Place::Node(node), address.tls.as_ref());
    let (named_in, password_in) = ("redis.cluster", "redis.password_file");
    let peer = Peer { place, login: &address.login, tls, named_in, password_in };
    peer.open(CONNECT_TO_PRIMARY_WITHIN, answer_within, on_push).await.map_err(Failed::in_words)
}

/// Connect to what the map of a cluster calls a primary, and see that it is one.
pub(super) async fn to_primary_of_cluster(
    address: &Address,
    line: Arc<Line>,
    answer_within: Duration,
    on_push: &OnPush,
) -> Result<Connection, String> {
    let (mut calls, driver) = to_node(address, &line.node, answer_within, on_push).await?;
    must_be_master(&mut calls).await.map_err(Failed::in_words)?;
    let at = line.node.to_string().into();
    Ok(Connection { calls, at, line: Some(line), _tasks: Arc::new([driver]) })
}

/// Connect to the server of an address that is no cluster, for calls that are answered within a time.
pub(super) async fn connect(
    address: &Address,
    answer_within: Duration,
    on_push: &OnPush,
) -> Result<Connection, StoreError> {
    let place = match &address.at {
        At::Node(node) => Place::Node(node),
        At::Socket(path) => Place::Socket(path),
        At::Sentinels(sentinels) => return to_primary(address, sentinels, answer_within, on_push).await,
        At::Cluster(_) => {
            let why = "a cluster has no server for all keys".to_owned();
            return Err(Failed::For(why).at(address.shown()));
        }
    };
    let (named_in, password_in) = ("redis.url", "redis.password_file");
    let peer = Peer { place, login: &address.login, tls: address.tls.as_ref(), named_in, password_in };
    let opened = peer.open(CONNECT_WITHIN, answer_within, on_push).await;
    let (calls, driver) = opened.map_err(|why| why.at(address.shown()))?;
    Ok(Connection { calls, at: address.shown().into(), line: None, _tasks: Arc::new([driver]) })
}

/// Ask the sentinels in turn until one names a server that calls itself a master, and connect to that.
async fn to_primary(
    address: &Address,
    sentinels: &Arc<Sentinels>,
    answer_within: Duration,
    on_push: &OnPush,
) -> Result<Connection, StoreError> {
    let (mut tried, mut whys): (Vec<Node>, Vec<String>) = (Vec::new(), Vec::new());
    for which in sentinels.in_turn() {
        let found = match sentinels.ask(which).await {
            Ok(found) if tried.contains(&found.node) => continue,
            Ok(found) => found,
            Err(why) => {
                whys.push(why);
                continue;
            }
        };
        let (place, tls) = (Place::Node(&found.node), address.tls.as_ref());
        let (named_in, password_in) = ("redis.sentinel", "redis.password_file");
        let peer = Peer { place, login: &address.login, tls, named_in, password_in };
        let opened = async {
            let (mut calls, driver) = peer.open(CONNECT_TO_PRIMARY_WITHIN, answer_within, on_push).await?;
            must_be_master(&mut calls).await?;
            Ok((calls, driver))
        };
        match opened.await {
            Ok((calls, driver)) => {
                sentinels.found_by(which);
                let at = format!("{} ({} of Sentinel)", found.node, sentinels.master()).into();
                let watch = watch(Arc::clone(sentinels), found, &driver, on_push);
                return Ok(Connection { calls, at, line: None, _tasks: Arc::new([watch, driver]) });
            }
            Err(Failed::Loading) => whys.push(format!("{} is loading its data", found.node)),
            Err(Failed::For(why)) => whys.push(format!("{}: {why}", found.node)),
        }
        tried.push(found.node);
    }
    Err(Failed::For(whys.join("; ")).at(address.shown()))
}

/// Cut a connection when a sentinel names another primary than the one that it leads to.
fn watch(
    sentinels: Arc<Sentinels>,
    used: Found,
    driver: &AbortOnDropHandle<()>,
    on_push: &OnPush,
) -> AbortOnDropHandle<()> {
    let (driver, on_push) = (driver.abort_handle(), Arc::clone(on_push));
    AbortOnDropHandle::new(tokio::spawn(async move {
        sentinels.until_another(&used).await;
        driver.abort();
        on_push(&PushInfo { kind: PushKind::Disconnection, data: Vec::new() });
    }))
}

async fn must_be_master(calls: &mut MultiplexedConnection) -> Result<(), Failed> {
    let role: Result<Vec<Value>, _> = redis::cmd("ROLE").query_async(calls).await;
    match role {
        Ok(role) => match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            Some(Value::BulkString(role)) => {
                Err(Failed::For(format!("it calls itself a {}, not a master", String::from_utf8_lossy(role))))
            }
            other => Err(Failed::For(format!("it answers ROLE with {other:?}"))),
        },
        Err(why) if why.code() == Some("NOPERM") => Err(Failed::For(
            "with Sentinel, and in a cluster, the user that dripd logs in as must be allowed to call ROLE: ACL SETUSER … +role".to_owned(),
        )),
        Err(why) => Err(Failed::For(format!("it does not answer ROLE: {why}"))),
    }
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

    /// It was reached, and did not speak as Redis does.
    fn maybe_tls(&self, why: &RedisError) -> String {
        let way_out = if self.named_in == "redis.url" { "write rediss:// there" } else { "add redis.tls = {}" };
        format!("{why}; is {} right? if it speaks TLS, {way_out}", self.named_in)
    }
}

impl Failed {
    fn in_words(self) -> String {
        match self {
            Self::Loading => LOADING.to_owned(),
            Self::For(why) => why,
        }
    }

    /// What a caller is told, of a server or of several.
    fn at(self, shown: &str) -> StoreError {
        let address = shown.to_owned();
        match self {
            Self::Loading => StoreError::Loading { address },
            Self::For(why) => StoreError::Unusable { address, why },
        }
    }
}

/// What the redis crate speaks over.
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

/// What the system said, where the redis crate passes it on.
fn io_error(why: &RedisError) -> Option<&std::io::Error> {
    let cause = std::error::Error::source(why)?;
    let shared = cause.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()?;
    shared.downcast_ref::<std::io::Error>()
}
