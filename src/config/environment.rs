//! What the environment says, read once at the edge.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A variable that is set to something: an empty one counts as none.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The environment variables that configuration reads, and the name of the machine.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `$DRIPD_CONFIG`
    pub config: Option<PathBuf>,
    /// `$DRIPD_REDIS_URL`
    pub redis_url: Option<String>,
    /// `$STATE_DIRECTORY`, set by systemd
    pub state_directory: Option<PathBuf>,
    /// `$CREDENTIALS_DIRECTORY`, set by systemd
    pub credentials_directory: Option<PathBuf>,
    /// The name of this machine, for whoever asks where a policy comes from.
    pub host: String,
}

impl Environment {
    /// Read the environment of this process. An empty variable counts as none.
    pub fn read() -> Self {
        let path = |name| variable(name).map(PathBuf::from);
        Self {
            config: path("DRIPD_CONFIG"),
            redis_url: std::env::var("DRIPD_REDIS_URL").ok().filter(|url| !url.is_empty()),
            state_directory: path("STATE_DIRECTORY"),
            credentials_directory: path("CREDENTIALS_DIRECTORY"),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }

    /// The file of a credential, where systemd passes one of that name.
    pub fn credential(&self, name: impl AsRef<Path>) -> Option<PathBuf> {
        let name = name.as_ref();
        let file = self.credentials_directory.as_ref().filter(|_| name.is_relative())?.join(name);
        file.exists().then_some(file)
    }

    /// A file that the configuration names: under systemd a plain name is that of a credential.
    pub fn file(&self, written: impl Into<PathBuf>) -> PathBuf {
        let written = written.into();
        self.credential(&written).unwrap_or(written)
    }
}
