//! The environment of the process, read once at the start.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the names of all variables of dripd's own begin with.
pub(super) const PREFIX: &str = "DRIPD_";

/// Take all variables of dripd's own from a command: it shall do what its configuration file says, and nothing else.
pub fn without_variables(command: &mut Command) -> &mut Command {
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes())) {
        command.env_remove(name);
    }
    command
}

/// The value of a variable; an empty one counts as not set.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The environment variables on which the configuration depends, and the name of this machine.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `$DRIPD_CONFIG`
    pub config: Option<PathBuf>,
    /// `$DRIPD_REDIS_URL`
    pub redis_url: Option<String>,
    /// All variables that begin with `DRIPD_` and are not empty: some set keys of the configuration.
    pub variables: BTreeMap<String, String>,
    /// `$STATE_DIRECTORY`, set by systemd
    pub state_directory: Option<PathBuf>,
    /// `$CREDENTIALS_DIRECTORY`, set by systemd
    pub credentials_directory: Option<PathBuf>,
    /// The name of this machine, which is stored as the origin of the policies.
    pub host: String,
}

impl Environment {
    /// Read the environment of this process. An empty variable counts as none.
    pub fn read() -> Self {
        let path = |name| variable(name).map(PathBuf::from);
        Self {
            config: path("DRIPD_CONFIG"),
            redis_url: std::env::var("DRIPD_REDIS_URL").ok().filter(|url| !url.is_empty()),
            variables: std::env::vars_os()
                .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
                .filter(|(name, value)| name.starts_with(PREFIX) && !value.is_empty())
                .collect(),
            state_directory: path("STATE_DIRECTORY"),
            credentials_directory: path("CREDENTIALS_DIRECTORY"),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }

    /// The file of the credential with this name, if systemd passes one.
    pub fn credential(&self, name: impl AsRef<Path>) -> Option<PathBuf> {
        let name = name.as_ref();
        let file = self.credentials_directory.as_ref().filter(|_| name.is_relative())?.join(name);
        file.exists().then_some(file)
    }

    /// The path of a file that the configuration names. Under systemd a relative path may be the name of a credential.
    pub fn file(&self, written: impl Into<PathBuf>) -> PathBuf {
        let written = written.into();
        self.credential(&written).unwrap_or(written)
    }
}
