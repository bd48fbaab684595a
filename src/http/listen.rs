//! Sockets: where the server listens, and which socket file is removed at the end.

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use tracing::warn;

use crate::config::http::{HttpSettings, Listen, is_loopback, open_to_all};
use crate::system::unix_socket::{self, Replace};

/// The error of a server that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BadListener {
    /// The address is taken, or the system does not give it.
    #[error("http.listen: cannot listen on {listen}: {why}")]
    Taken {
        /// The address.
        listen: String,
        /// The error of the system, and the way out.
        why: String,
    },
    /// Other machines can reach the socket, and no token is configured: anybody could push.
    #[error("the socket that systemd passes: {0}")]
    OpenToAll(String),
}

/// A listening socket.
pub(super) enum Listener {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

/// The file of a Unix socket that this daemon made. Dropping this removes the file, unless another one has taken its
/// place.
pub(super) struct Made {
    path: PathBuf,
    /// The device and the inode of the file.
    file: (u64, u64),
}

impl Made {
    fn file_at(path: &Path) -> std::io::Result<(u64, u64)> {
        std::fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if Self::file_at(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The sockets of the server.
pub struct Listeners {
    all: Vec<Listener>,
    /// The socket file that is removed at the end; those of systemd are not.
    made: Option<Made>,
    shown: Vec<String>,
}

impl fmt::Display for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown.join(", "))
    }
}

impl Listeners {
    /// The sockets that systemd passes, or else the one that the configuration names; `None` where there is no server.
    ///
    /// # Errors
    ///
    /// The address cannot be used, or other machines can reach a socket of systemd and there is no token.
    pub fn open(settings: &HttpSettings, has_tokens: bool) -> Result<Option<Self>, BadListener> {
        let passed = Self::passed();
        if !passed.all.is_empty() {
            if passed.are_open_to_all() && !has_tokens {
                return Err(BadListener::OpenToAll(open_to_all(&passed)));
            }
            return Ok(Some(passed));
        }
        let taken = |why: std::io::Error| {
            let way_out = match (why.kind(), &settings.listen) {
                (ErrorKind::AddrInUse, Listen::Unix(path)) if !is_socket(path) => {
                    "; a file that is no socket is there: remove it, or name another path"
                }
                (ErrorKind::AddrInUse, _) => "; another process listens there: end it, or name another place",
                (ErrorKind::NotFound, _) => "; make its directory first",
                _ => "",
            };
            BadListener::Taken { listen: settings.listen.to_string(), why: format!("{why}{way_out}") }
        };
        let (listener, made) = match &settings.listen {
            Listen::Off => return Ok(None),
            Listen::Tcp(address) => (Listener::Tcp(bind_address(*address).map_err(taken)?), None),
            Listen::Unix(path) => {
                let (listener, made) = bind_path(path).map_err(taken)?;
                (Listener::Unix(listener), Some(made))
            }
        };
        let shown = vec![match &listener {
            Listener::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| settings.listen.to_string(), |at| at.to_string())
            }
            Listener::Unix(_) => settings.listen.to_string(),
        }];
        Ok(Some(Self { all: vec![listener], made, shown }))
    }

    /// Whether other machines can reach one of the sockets.
    pub(super) fn are_open_to_all(&self) -> bool {
        !self.all.iter().all(Listener::is_local)
    }

    /// The sockets, and the socket file that is removed at the end.
    pub(super) fn into_parts(self) -> (Vec<Listener>, Option<Made>) {
        (self.all, self.made)
    }

    fn passed() -> Self {
        let (mut passed, mut found) = (ListenFd::from_env(), Self { all: Vec::new(), made: None, shown: Vec::new() });
        for at in 0..passed.len() {
            if let Ok(Some(listener)) = passed.take_tcp_listener(at) {
                let at = listener.local_addr().map_or_else(|_| "a TCP socket".to_owned(), |at| at.to_string());
                found.shown.push(format!("{at} (from systemd)"));
                found.all.push(Listener::Tcp(listener));
            } else if let Ok(Some(listener)) = passed.take_unix_listener(at) {
                found.shown.push("a Unix socket (from systemd)".to_owned());
                found.all.push(Listener::Unix(listener));
            } else {
                warn!(at, "systemd passes a socket that is no listener of a stream: it is not used");
            }
        }
        found
    }
}

impl Listener {
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|at| is_loopback(at.ip())),
            Self::Unix(_) => true,
        }
    }
}

/// How many connections may wait until they are accepted; the system may allow fewer.
const WAITING: i32 = 4_096;

fn bind_address(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    // The standard library allows only 128. A client that finds no place tries again after a second.
    socket2::SockRef::from(&listener).listen(WAITING)?;
    Ok(listener)
}

/// The bytes that the system buffers for a connection in each direction. By default the buffers grow to megabytes for
/// each client that sends without end or reads no answers, and copying them takes time from the pacer too.
const BUFFERED: usize = 256 * 1_024;

/// Bound the buffers of the connections that this socket accepts: they inherit its sizes.
pub(super) fn bound_buffers(listener: &std::net::TcpListener) -> std::io::Result<()> {
    let socket = socket2::SockRef::from(listener);
    socket.set_recv_buffer_size(BUFFERED)?;
    socket.set_send_buffer_size(BUFFERED)
}

/// The bytes that the system takes of an answer before it has sent those before them. The rest waits here, where it
/// counts, and a client that reads nothing is known for one sooner.
const UNSENT: u32 = 16 * 1_024;

/// Bound what the system buffers of answers that are not sent.
pub(super) fn bound_unsent(stream: &tokio::net::TcpStream) {
    let _ = socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT); // without it all works, with larger buffers
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Bind a Unix socket for its owner and its group. A socket file on which nobody listens any more is removed first.
fn bind_path(path: &Path) -> std::io::Result<(std::os::unix::net::UnixListener, Made)> {
    if is_socket(path)
        && let Err(why) = std::os::unix::net::UnixStream::connect(path)
        && why.kind() == ErrorKind::ConnectionRefused
    {
        std::fs::remove_file(path)?;
    }
    let listener = unix_socket::bind(path, 0o660, Replace::No)?;
    socket2::SockRef::from(&listener).listen(WAITING)?;
    let made = Made { path: path.to_owned(), file: Made::file_at(path)? };
    Ok((listener, made))
}
