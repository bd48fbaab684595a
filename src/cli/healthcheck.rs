//! `dripd healthcheck`: ask the daemon of this machine, or of this container, how it is. For images without a shell or curl.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::{Exit, Failure, say};
use crate::config::http::Listen;

/// How long a daemon may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// The longest body that is read, in bytes.
const LONGEST_BODY: usize = 64 * 1024;

#[derive(Debug, clap::Args)]
pub(super) struct Healthcheck {
    #[arg(long, help = "Ask whether it serves Redis too (/readyz), not only whether its loops turn (/healthz)")]
    ready: bool,
}

impl Healthcheck {
    pub(super) fn action(&self) -> String {
        format!("ask {}", self.path())
    }

    fn path(&self) -> &'static str {
        if self.ready { "/readyz" } else { "/healthz" }
    }

    pub(super) async fn run(&self, listen: &Listen) -> Result<Exit, Failure> {
        if *listen == Listen::Off {
            let why =
                "http.listen is \"\", so no daemon can be asked; set it to 127.0.0.1:7380 or unix:/path/to/socket";
            return Err(Failure::new(Exit::BadConfig, why));
        }
        let asked = timeout(ANSWERS_WITHIN, ask(listen, self.path())).await;
        let failed = |why: String| Failure::new(Exit::Failed, format!("the daemon at {listen}: {why}"));
        let (status, body) = match asked {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => return Err(failed(format!("{why}; is one running, with this configuration?"))),
            Err(_) => return Err(failed(format!("it does not answer within {} s", ANSWERS_WITHIN.as_secs()))),
        };
        if status == StatusCode::OK && body[..] != *b"ok\n" {
            return Err(failed("it is no dripd: another program listens there".to_owned()));
        }
        if status != StatusCode::OK {
            let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            let detail = problem["detail"].as_str().unwrap_or("it says nothing more");
            return Err(failed(format!("{} is {}: {detail}", self.path(), status.as_u16())));
        }
        say("ok");
        Ok(Exit::Done)
    }
}

type Error = Box<dyn std::error::Error + Send + Sync>;

async fn ask(listen: &Listen, path: &str) -> Result<(StatusCode, Bytes), Error> {
    match listen {
        Listen::Tcp(address) => get(TcpStream::connect(from_here(*address)).await?, path).await,
        Listen::Unix(socket) => get(UnixStream::connect(socket).await?, path).await,
        Listen::Off => Err("it does not listen".into()),
    }
}

/// Where this machine reaches a listener: one that takes connections at every address is asked at the loopback.
fn from_here(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    path: &str,
) -> Result<(StatusCode, Bytes), Error> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection); // where it fails the request does too
    let request = Request::get(path).header(HOST, "localhost").body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    Ok((status, Limited::new(answer.into_body(), LONGEST_BODY).collect().await?.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_at_every_address_is_asked_at_the_loopback() {
        for (listens, asked) in
            [("0.0.0.0:7380", "127.0.0.1:7380"), ("[::]:80", "[::1]:80"), ("10.1.2.3:80", "10.1.2.3:80")]
        {
            assert_eq!(from_here(listens.parse().expect("an address")).to_string(), asked);
        }
    }
}
