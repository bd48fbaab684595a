//! Sockets: where the server listens, and what becomes of them at the end.

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use tracing::warn;

use crate::config::http::{HttpSettings, Listen, is_loopback, open_to_all};

/// Why the server cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BadListener {
    /// The address is taken, or the system does not give it.
    #[error("http.listen: cannot listen on {listen}: {why}")]
    Taken {
        /// Where.
        listen: String,
        /// What the system says, and the way out.
        why: String,
    },
    /// Anybody could push.
    #[error("the socket that systemd passes: {0}")]
    OpenToAll(String),
}

/// A socket that listens.
pub(super) enum Listener {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

/// A socket in the file system that this daemon made. It is removed with this, unless another one has taken its place.
pub(super) struct Made {
    path: PathBuf,
    /// Its device and its number there.
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
    /// A socket that is removed in the end: systemd's own are not.
    made: Option<Made>,
    shown: Vec<String>,
}

impl fmt::Display for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown.join(", "))
    }
}

impl Listeners {
    /// The sockets that systemd passes, else what the configuration names; `None` where there is no server.
    ///
    /// # Errors
    ///
    /// When it cannot listen there, or would be open to all without a token.
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

    /// Whether others reach one of them.
    pub(super) fn are_open_to_all(&self) -> bool {
        !self.all.iter().all(Listener::is_local)
    }

    /// The sockets, and what is removed in the end.
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

/// How many connections may wait until they are taken; the system may allow fewer.
const WAITING: i32 = 4_096;

fn bind_address(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    // The standard library lets 128 wait. One that finds no place tries again after a second.
    socket2::SockRef::from(&listener).listen(WAITING)?;
    Ok(listener)
}

/// How many bytes the system keeps for a connection on its way in, and on its way out. Left alone these grow to megabytes for each client
/// that sends without end or takes no answers, and the time to copy them is the pacer's, too.
const BUFFERED: usize = 256 * 1_024;

/// Bound the buffers of the connections that come by this socket: they take them over from it.
pub(super) fn bound_buffers(listener: &std::net::TcpListener) -> std::io::Result<()> {
    let socket = socket2::SockRef::from(listener);
    socket.set_recv_buffer_size(BUFFERED)?;
    socket.set_send_buffer_size(BUFFERED)
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// A socket in the file system, for its owner and its group. One that nobody listens on any more is left over and removed.
fn bind_path(path: &Path) -> std::io::Result<(std::os::unix::net::UnixListener, Made)> {
    if is_socket(path)
        && let Err(why) = std::os::unix::net::UnixStream::connect(path)
        && why.kind() == ErrorKind::ConnectionRefused
    {
        std::fs::remove_file(path)?;
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    socket2::SockRef::from(&listener).listen(WAITING)?;
    let made = Made { path: path.to_owned(), file: Made::file_at(path)? };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok((listener, made))
}
