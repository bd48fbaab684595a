//! The function library: its source, and the rule by which it is loaded.

use redis::Value;

use super::reply::unexpected;
use super::{Store, StoreError};

/// The Lua source, one file a step, joined in order.
pub const SOURCE: &str = concat!(
    include_str!("functions/10_head.lua"),
    include_str!("functions/12_limiter.lua"),
    include_str!("functions/14_windows.lua"),
    include_str!("functions/16_meters.lua"),
    include_str!("functions/20_policy.lua"),
    include_str!("functions/30_bucket.lua"),
    include_str!("functions/35_ready.lua"),
    include_str!("functions/40_drain.lua"),
    include_str!("functions/45_sweep.lua"),
    include_str!("functions/47_wake.lua"),
    include_str!("functions/48_gate.lua"),
    include_str!("functions/50_push.lua"),
    include_str!("functions/60_jobs.lua"),
    include_str!("functions/90_register.lua"),
);

/// The version of [`SOURCE`]; the library says the same of itself (a test compares them).
pub const VERSION: i64 = 4;

/// The oldest version whose functions take and reply what this program expects.
pub const OLDEST_COMPATIBLE: i64 = 2;

impl Store {
    /// Load the library when it is missing or older, never over a newer one. When memory is full an older compatible
    /// one goes on.
    pub(super) async fn load_library(&mut self) -> Result<(), StoreError> {
        let loaded = match self.call("drip__version", redis::cmd("FCALL_RO").arg("drip__version").arg(0)).await {
            Ok(Value::Int(version)) => Some(version),
            Ok(other) => return Err(unexpected("drip__version", &other)),
            Err(StoreError::Refused { message, .. }) if is_missing_function(&message) => None,
            Err(other) => return Err(other),
        };
        if loaded.is_some_and(|version| version >= VERSION) {
            return Ok(());
        }
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(SOURCE);
        match (self.call("FUNCTION LOAD", &load).await, loaded) {
            (Ok(_), _) => Ok(()),
            (Err(StoreError::Refused { code, .. }), Some(version)) if code == "OOM" && version >= OLDEST_COMPATIBLE => {
                tracing::warn!(version, wanted = VERSION, "redis is full: its older function library goes on");
                Ok(())
            }
            (Err(StoreError::Refused { code, message, .. }), _) => {
                Err(self.unusable(format!("the function library cannot be loaded: {code} {message}")))
            }
            (Err(other), _) => Err(other),
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
