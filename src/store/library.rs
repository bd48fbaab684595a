//! The function library: its source, the rule by which it is loaded, and how its functions are called.

use redis::{ToRedisArgs, Value};

use super::client::Store;
use super::connection::{StoreError, names_no_key};
use super::reply::Reply;

#[cfg(debug_assertions)]
#[path = "functions/join.rs"]
#[allow(dead_code, reason = "it is the build script too")]
mod join;

/// The Lua source: all files of `functions`, each after those that it needs (`functions/join.rs`).
const SOURCE: &str = include_str!(concat!(env!("OUT_DIR"), "/library.lua"));

/// The Lua source of the library. In a debug build `$DRIPD_LUA` may name the folder of its files: then they are joined now, and a change
/// of them needs no compiler.
///
/// # Panics
///
/// Where the files of that folder cannot be joined.
pub fn source() -> &'static str {
    #[cfg(debug_assertions)]
    {
        static JOINED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        let join = |folder| join::join(std::path::Path::new(&folder)).unwrap_or_else(|why| panic!("$DRIPD_LUA: {why}"));
        JOINED.get_or_init(|| std::env::var_os("DRIPD_LUA").map(join)).as_deref().unwrap_or(SOURCE)
    }
    #[cfg(not(debug_assertions))]
    SOURCE
}

/// The version of the library; it says the same of itself (a test compares them).
pub const VERSION: i64 = 37;

/// A library, and what it needs to know about others before it replaces one or makes do with it.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    /// Its Lua source; `None`: that of this program ([`source`]).
    pub source: Option<&'static str>,
    /// Its version: it is loaded where none or an older one is, never over a newer one.
    pub version: i64,
    /// The oldest version whose functions take and reply what this program expects.
    pub oldest_usable: i64,
}

/// The library of this program.
pub const CURRENT: Library = Library { source: None, version: VERSION, oldest_usable: 7 };

impl Store {
    /// Call a function. Where the library is gone (`FUNCTION FLUSH`, an empty replica) it is loaded and the call made
    /// once more: a function that was not found has done nothing. Where it met a key of another type, which Redis does not name,
    /// that is looked for.
    pub(super) async fn call_function(
        &mut self,
        name: &'static str,
        keys: &[impl ToRedisArgs],
        args: impl ToRedisArgs,
    ) -> Result<Reply, StoreError> {
        self.call_function_with("FCALL", name, keys, args).await
    }

    /// Call a function that writes nothing: a user who may only read may call it.
    pub(super) async fn call_read_only(
        &mut self,
        name: &'static str,
        keys: &[impl ToRedisArgs],
        args: impl ToRedisArgs,
    ) -> Result<Reply, StoreError> {
        self.call_function_with("FCALL_RO", name, keys, args).await
    }

    async fn call_function_with(
        &mut self,
        command: &str,
        name: &'static str,
        keys: &[impl ToRedisArgs],
        args: impl ToRedisArgs,
    ) -> Result<Reply, StoreError> {
        let mut command = redis::cmd(command);
        command.arg(name).arg(keys.len()).arg(keys).arg(args);
        match self.call(name, &command).await {
            Err(StoreError::Refused { message, .. }) if is_missing_function(&message) => {
                self.load_library(&CURRENT).await?;
                self.call(name, &command).await
            }
            Err(StoreError::Refused { call, code, message }) if code == "WRONGTYPE" => {
                // Who may not ask for types is told what Redis says.
                let wrong = if names_no_key(&message) { self.wrong_key().await.ok().flatten() } else { None };
                let message = wrong.map_or(message, |(key, found, wanted)| {
                    format!("{key} holds a {found} and must hold a {wanted}: rename or delete it")
                });
                Err(StoreError::Refused { call, code, message })
            }
            other => other,
        }
    }

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
        load.arg("LOAD").arg("REPLACE").arg(library.source.unwrap_or_else(source));
        let Err(why) = self.call("FUNCTION LOAD", &load).await else { return Ok(()) };
        let StoreError::Refused { code, message, .. } = why else { return Err(why) };
        match loaded {
            Some((version, _)) if code == "OOM" && version >= library.oldest_usable => {
                tracing::warn!(version, wanted = library.version, "redis is full: its older function library stays in use");
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
            Ok(Reply { value: Value::Int(version), .. }) => Ok(Some((version, 0))), // one of before version 5 says no more
            Ok(versions) => versions.decode().map(Some),
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
        let line = super::source().lines().find_map(|line| line.strip_prefix("local VERSION = "));
        assert_eq!(line, Some(super::VERSION.to_string().as_str()));
    }
}
