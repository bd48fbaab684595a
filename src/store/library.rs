//! The function library: its source, and the rule by which it is loaded.

use redis::Value;

use super::reply::unexpected;
use super::{Store, StoreError};

/// The Lua source: all files of `functions`, each after those that it needs (`functions/join.rs`).
pub const SOURCE: &str = include_str!(concat!(env!("OUT_DIR"), "/library.lua"));

/// The version of [`SOURCE`]; the library says the same of itself (a test compares them).
pub const VERSION: i64 = 21;

/// A library, and what it needs to know about others before it replaces one or makes do with it.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    /// Its Lua source.
    pub source: &'static str,
    /// Its version: it is loaded where none or an older one is, never over a newer one.
    pub version: i64,
    /// The oldest version whose functions take and reply what this program expects.
    pub oldest_usable: i64,
}

/// The library of this program.
pub const CURRENT: Library = Library { source: SOURCE, version: VERSION, oldest_usable: 7 };

impl Store {
    /// Load a library where none is loaded or an older one, never over a newer one. When memory is full an older one that
    /// can be used goes on.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] when it cannot be loaded, or when a newer one is there that does not speak to this program.
    pub async fn load_library(&mut self, library: &Library) -> Result<(), StoreError> {
        let loaded = self.loaded_library().await?;
        if let Some((version, oldest_daemon)) = loaded
            && version >= library.version
        {
            if oldest_daemon <= library.version {
                return Ok(());
            }
            return Err(self.unusable(format!(
                "its function library is version {version} and works with dripd from library version {oldest_daemon} on, \
                 this dripd has {}: update dripd",
                library.version
            )));
        }
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(library.source);
        let Err(why) = self.call("FUNCTION LOAD", &load).await else { return Ok(()) };
        let StoreError::Refused { code, message, .. } = why else { return Err(why) };
        match loaded {
            Some((version, _)) if code == "OOM" && version >= library.oldest_usable => {
                tracing::warn!(version, wanted = library.version, "redis is full: its older function library goes on");
                Ok(())
            }
            Some((version, _)) if code == "OOM" => Err(self.unusable(format!(
                "its memory is full, and its function library, version {version}, is too old to go on with: free memory or \
                 raise maxmemory, so that version {} can be loaded",
                library.version
            ))),
            None if code == "NOPERM" => Err(self.unusable(
                "its function library is not loaded, and the user that dripd logs in as may not load it: start a daemon \
                 (`dripd run`) as a user with the rights that `dripd acl daemon` prints"
                    .to_owned(),
            )),
            _ => Err(self.unusable(format!("the function library cannot be loaded: {code} {message}"))),
        }
    }

    /// The version of the library that is loaded, and the oldest program that it speaks to; `None` where there is none.
    async fn loaded_library(&mut self) -> Result<Option<(i64, i64)>, StoreError> {
        match self.call("drip__version", redis::cmd("FCALL_RO").arg("drip__version").arg(0)).await {
            Ok(Value::Int(version)) => Ok(Some((version, 0))), // one of before version 5 says no more
            Ok(Value::Array(versions)) => match versions[..] {
                [Value::Int(version), Value::Int(oldest_daemon)] => Ok(Some((version, oldest_daemon))),
                _ => Err(unexpected("drip__version", &Value::Array(versions))),
            },
            Ok(other) => Err(unexpected("drip__version", &other)),
            Err(StoreError::Refused { message, .. }) if is_missing_function(&message) => Ok(None),
            Err(other) => Err(other),
        }
    }
}

/// Whether an error says that the library is gone, or was never there.
pub(super) fn is_missing_function(message: &str) -> bool {
    message.contains("unction not found")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_source_says_the_version_that_the_program_expects() {
        let line = super::SOURCE.lines().find_map(|line| line.strip_prefix("local VERSION = "));
        assert_eq!(line, Some(super::VERSION.to_string().as_str()));
    }
}
