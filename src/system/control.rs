//! The control socket: `dripd reload` asks a running daemon on this machine to reload, and waits for the outcome.
//!
//! Each daemon listens on a socket of its own in a runtime directory. A request names what it is for (the configuration
//! file), and a daemon that reads another one says so.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::unix_socket::{self, Replace};
use crate::config::variable;

/// How long a daemon may take to answer: a change may have to reach many buckets.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// A request to reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reload {
    /// The name of the sender's configuration.
    pub source: String,
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Answer {
    /// The new configuration is live.
    Live,
    /// The new configuration is refused, and the old one stays.
    Refused {
        /// All problems of the new configuration.
        why: String,
    },
    /// The new configuration is good but not live.
    Failed {
        /// The reason, in words.
        why: String,
    },
    /// The new configuration is good, and will be live when Redis can be used.
    Waits {
        /// Why Redis cannot be used.
        why: String,
    },
    /// This daemon reads another configuration.
    NotMine {
        /// The process id of the daemon.
        pid: u32,
        /// The name of its configuration.
        source: String,
    },
}

/// The longest line that is a request. A request has a few hundred bytes.
const LONGEST_LINE: u64 = 64 * 1024;

/// How long a sender may take to write its request, and to read the answer.
const COMES_WITHIN: Duration = Duration::from_secs(2);

/// The most connections at a time. Further ones wait in the kernel.
const MAX_REQUESTS: usize = 64;

/// The daemon's end of the socket. Connections are read side by side, so that a silent one delays no other.
#[derive(Debug)]
pub struct Control {
    requests: mpsc::Receiver<Request>,
    path: PathBuf,
    /// The task that accepts connections. It ends with this value.
    _listening: JoinSet<()>,
}

/// A request, which is answered once.
#[derive(Debug)]
pub struct Request {
    /// The request that was read.
    pub reload: Reload,
    stream: UnixStream,
}

impl Request {
    /// Answer the request. A sender that hung up is not waited for.
    pub async fn answer(mut self, answer: &Answer) {
        let line = serde_json::to_string(answer).expect("an answer is text") + "\n";
        if !matches!(timeout(COMES_WITHIN, self.stream.write_all(line.as_bytes())).await, Ok(Ok(()))) {
            tracing::debug!("the client that asked for a reload has gone before its answer");
        }
    }
}

impl Control {
    /// Listen in the runtime directory.
    ///
    /// # Errors
    ///
    /// When there is no directory for the socket, or others could put a socket of theirs into it.
    pub fn listen() -> io::Result<Self> {
        let Place { path: dir, is_own } = runtime_directory();
        if fs::symlink_metadata(&dir).is_err() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        }
        check(&dir, is_own).map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why))?;
        let path = dir.join(format!("{}.sock", std::process::id()));
        let listener = unix_socket::bind(&path, 0o600, Replace::Yes)?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let (sender, requests) = mpsc::channel(1);
        let mut listening = JoinSet::new();
        listening.spawn(listen(listener, sender));
        Ok(Self { requests, path, _listening: listening })
    }

    /// The next valid request.
    pub async fn next(&mut self) -> Request {
        match self.requests.recv().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Accept connections for ever, and read their requests.
async fn listen(listener: UnixListener, requests: mpsc::Sender<Request>) {
    let mut reading = JoinSet::new();
    loop {
        while reading.try_join_next().is_some() {}
        if reading.len() >= MAX_REQUESTS {
            reading.join_next().await;
            continue;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                reading.spawn(pass_on(stream, requests.clone()));
            }
            Err(why) => {
                tracing::warn!(%why, "the control socket does not accept");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn pass_on(stream: UnixStream, requests: mpsc::Sender<Request>) {
    match timeout(COMES_WITHIN, read_request(stream)).await {
        Ok(Ok(request)) => drop(requests.send(request).await), // sending fails only when the daemon ends
        Ok(Err(why)) => tracing::warn!(%why, "a request on the control socket makes no sense"),
        Err(_) => tracing::warn!("a request on the control socket does not come"),
    }
}

async fn read_request(stream: UnixStream) -> io::Result<Request> {
    let mut reader = BufReader::new(stream.take(LONGEST_LINE));
    let mut line = String::new();
    reader.read_line(&mut line).await?;
    if !line.ends_with('\n') {
        let why = format!("it is no whole line of at most {LONGEST_LINE} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(Request { reload: serde_json::from_str(&line)?, stream: reader.into_inner().into_inner() })
}

/// Ask every daemon on this machine. Returns an answer of each daemon that still runs, and the reason for each
/// directory of sockets that was skipped.
pub async fn ask_all(reload: &Reload) -> (Vec<Answer>, Vec<String>) {
    let (mut answers, mut passed_over) = (Vec::new(), Vec::new());
    for Place { path: dir, is_own } in candidate_directories() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        if let Err(why) = check(&dir, is_own) {
            passed_over.push(why);
            continue;
        }
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == "sock") {
                match ask(&path, reload).await {
                    Ok(answer) => answers.push(answer),
                    Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => drop(fs::remove_file(&path)),
                    Err(_) if has_ended(&path).await => {}
                    Err(why) => {
                        let why = format!("the daemon behind {} does not answer: {why}", path.display());
                        answers.push(Answer::Failed { why });
                    }
                }
            }
        }
    }
    (answers, passed_over)
}

/// Whether nobody listens at a socket any more: its daemon has ended while it was asked.
async fn has_ended(path: &Path) -> bool {
    let gone = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
    UnixStream::connect(path).await.is_err_and(|why| gone.contains(&why.kind()))
}

async fn ask(path: &Path, reload: &Reload) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(path).await?;
    let line = serde_json::to_string(reload)? + "\n";
    stream.write_all(line.as_bytes()).await?;
    let mut answer = String::new();
    let mut reader = BufReader::new(stream);
    timeout(ANSWERS_WITHIN, reader.read_line(&mut answer)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(serde_json::from_str(&answer)?)
}

/// A directory that may contain control sockets.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    path: PathBuf,
    /// Whether this user creates the directory, inside one that others may be able to write to. Otherwise systemd or
    /// root created it.
    is_own: bool,
}

/// Check that nobody else could put a socket into a directory. The error says the way out.
fn check(dir: &Path, is_own: bool) -> Result<(), String> {
    let shown = dir.display();
    let found = if is_own { fs::symlink_metadata(dir) } else { fs::metadata(dir) };
    let found = found.map_err(|why| format!("cannot look at {shown}: {why}"))?;
    if !found.is_dir() {
        return Err(format!(
            "{shown} is no directory, or a link to one: remove it, or set $RUNTIME_DIRECTORY to a directory of your own"
        ));
    }
    if is_own && found.uid() != rustix::process::getuid().as_raw() {
        let owner = found.uid();
        return Err(format!(
            "{shown} belongs to another user, {owner}: have it removed, or set $RUNTIME_DIRECTORY to a directory of your own"
        ));
    }
    if found.mode() & 0o022 != 0 {
        return Err(format!("{shown} may be written to by others: chmod 700 {shown}"));
    }
    Ok(())
}

/// The directories that may contain control sockets, the most specific first.
fn candidate_directories() -> Vec<Place> {
    let uid = rustix::process::getuid();
    let given = |path| Place { path, is_own: false };
    let own = |path| Place { path, is_own: true };
    let mut places: Vec<Place> = variable("RUNTIME_DIRECTORY").map(|dir| given(dir.into())).into_iter().collect();
    if uid.is_root() {
        places.push(given(PathBuf::from("/run/dripd")));
    }
    places.extend(variable("XDG_RUNTIME_DIR").map(|dir| own(Path::new(&dir).join("dripd"))));
    places.push(own(std::env::temp_dir().join(format!("dripd-{}", uid.as_raw()))));
    places.dedup_by(|a, b| a.path == b.path);
    places
}

fn runtime_directory() -> Place {
    let mut places = candidate_directories();
    let usable = |place: &Place| place.path.is_dir() || place.path.parent().is_some_and(is_writable);
    let at = places.iter().position(usable).unwrap_or(places.len() - 1);
    places.swap_remove(at)
}

fn is_writable(dir: &Path) -> bool {
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    #[test]
    fn a_directory_of_one_s_own_is_trusted_where_nobody_else_can_have_made_it_or_can_write_to_it() {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path().join("dripd-0");
        let mode = |mode| fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).expect("its owner");
        fs::create_dir(&dir).expect("a directory");
        mode(0o700);
        assert_eq!((check(&dir, true), check(&dir, false)), (Ok(()), Ok(())));
        for open in [0o777, 0o720, 0o702, 0o1777] {
            mode(open);
            for is_own in [true, false] {
                let why = check(&dir, is_own).expect_err("others may write");
                assert!(why.contains("may be written to by others") && why.contains("chmod 700"), "{why}");
            }
        }
        mode(0o755);
        assert_eq!(check(&dir, true), Ok(()));
        let link = home.path().join("link");
        symlink(&dir, &link).expect("a link");
        let why = check(&link, true).expect_err("whoever made the link could lead it elsewhere");
        assert!(why.contains("is no directory") && why.contains("$RUNTIME_DIRECTORY"), "{why}");
        assert_eq!(check(&link, false), Ok(()), "systemd makes links");
        // Only root can give a directory to another user. Without root the test takes a directory of root's instead.
        let strangers = if chown(&dir, Some(65_534), None).is_ok() { dir.as_path() } else { Path::new("/etc") };
        let why = check(strangers, true).expect_err("somebody else's");
        assert!(why.contains("belongs to another user") && why.contains("$RUNTIME_DIRECTORY"), "{why}");
        assert_eq!(check(strangers, false), Ok(()));
    }
}
