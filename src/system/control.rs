//! The control socket: how `dripd reload` asks a running daemon on this machine, and hears what became of it.
//!
//! Each daemon listens on a socket of its own in a runtime directory. A request names what it is for (the configuration
//! file); a daemon that reads another one says so.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a daemon may take to answer: a change spreads over many buckets.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// A request to reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reload {
    /// What the sender's configuration is known by.
    pub source: String,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Answer {
    /// The new configuration is live.
    Live,
    /// It is refused, and the old one stays.
    Refused {
        /// Every problem.
        why: String,
    },
    /// It is good but not live.
    Failed {
        /// What is in the way.
        why: String,
    },
    /// It is good, and will be live when Redis can be used.
    Waits {
        /// Why it cannot be used.
        why: String,
    },
    /// This daemon reads another configuration.
    NotMine {
        /// Its process.
        pid: u32,
        /// What it reads.
        source: String,
    },
}

/// A request is a line of a few hundred bytes; one that is longer than this is none.
const LONGEST_LINE: u64 = 64 * 1024;

/// How long a request may take to come, and an answer to be taken.
const COMES_WITHIN: Duration = Duration::from_secs(2);

/// The most connections at a time; more wait in the kernel.
const MOST: usize = 64;

/// A daemon's end. Its connections are read side by side, so that one that says nothing delays nobody.
#[derive(Debug)]
pub struct Control {
    requests: mpsc::Receiver<Request>,
    path: PathBuf,
    /// The task that accepts; it ends with the value.
    _listening: JoinSet<()>,
}

/// One request, to be answered once.
#[derive(Debug)]
pub struct Request {
    /// What is asked.
    pub reload: Reload,
    stream: UnixStream,
}

impl Request {
    /// Answer it. A sender that hung up is not waited for.
    pub async fn answer(mut self, answer: &Answer) {
        let line = serde_json::to_string(answer).expect("an answer is text") + "\n";
        if !matches!(timeout(COMES_WITHIN, self.stream.write_all(line.as_bytes())).await, Ok(Ok(()))) {
            tracing::debug!("whoever asked for a reload does not take the answer");
        }
    }
}

impl Control {
    /// Listen in the runtime directory.
    ///
    /// # Errors
    ///
    /// When there is no directory to do it in.
    pub fn listen() -> io::Result<Self> {
        let dir = runtime_directory();
        if !dir.is_dir() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        }
        let path = dir.join(format!("{}.sock", std::process::id()));
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let (sender, requests) = mpsc::channel(1);
        let mut listening = JoinSet::new();
        listening.spawn(listen(listener, sender));
        Ok(Self { requests, path, _listening: listening })
    }

    /// The next request that makes sense.
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

/// Accept for ever, and read what comes.
async fn listen(listener: UnixListener, requests: mpsc::Sender<Request>) {
    let mut reading = JoinSet::new();
    loop {
        while reading.try_join_next().is_some() {}
        if reading.len() >= MOST {
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
        Ok(Ok(request)) => drop(requests.send(request).await), // it fails only when the daemon ends
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

/// Ask every daemon on this machine. An answer each; those that are gone are passed over.
pub async fn ask_all(reload: &Reload) -> Vec<Answer> {
    let mut answers = Vec::new();
    for dir in candidate_directories() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == "sock") {
                match ask(&path, reload).await {
                    Ok(answer) => answers.push(answer),
                    Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => drop(fs::remove_file(&path)),
                    Err(why) => {
                        let why = format!("the daemon behind {} does not answer: {why}", path.display());
                        answers.push(Answer::Failed { why });
                    }
                }
            }
        }
    }
    answers
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

fn from_environment(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Where sockets may be, the most particular first.
fn candidate_directories() -> Vec<PathBuf> {
    let uid = rustix::process::getuid();
    let mut directories: Vec<PathBuf> = from_environment("RUNTIME_DIRECTORY").into_iter().collect();
    if uid.is_root() {
        directories.push(PathBuf::from("/run/dripd"));
    }
    directories.extend(from_environment("XDG_RUNTIME_DIR").map(|dir| dir.join("dripd")));
    directories.push(std::env::temp_dir().join(format!("dripd-{}", uid.as_raw())));
    directories.dedup();
    directories
}

fn runtime_directory() -> PathBuf {
    let candidates = candidate_directories();
    let usable = |dir: &PathBuf| dir.is_dir() || dir.parent().is_some_and(is_writable);
    candidates.iter().find(|dir| usable(dir)).or(candidates.last()).cloned().unwrap_or_default()
}

fn is_writable(dir: &Path) -> bool {
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
}
