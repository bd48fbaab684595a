//! The function library: its source, and the rule by which it is loaded.

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

#[cfg(test)]
mod tests {
    #[test]
    fn the_source_says_the_version_that_the_program_expects() {
        let line = super::SOURCE.lines().find_map(|line| line.strip_prefix("local VERSION = "));
        assert_eq!(line, Some(super::VERSION.to_string().as_str()));
    }
}
