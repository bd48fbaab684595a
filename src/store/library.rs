//! The function library: its source, and the rule by which it is loaded.

/// The Lua source, one file a step, joined in order.
pub const SOURCE: &str = concat!(
    include_str!("functions/10_head.lua"),
    include_str!("functions/12_names.lua"),
    include_str!("functions/14_keys.lua"),
    include_str!("functions/20_limiter.lua"),
    include_str!("functions/22_windows.lua"),
    include_str!("functions/24_meters.lua"),
    include_str!("functions/30_glob.lua"),
    include_str!("functions/32_rate.lua"),
    include_str!("functions/34_record.lua"),
    include_str!("functions/36_memory.lua"),
    include_str!("functions/38_call.lua"),
    include_str!("functions/42_route.lua"),
    include_str!("functions/44_bucket.lua"),
    include_str!("functions/50_rejected.lua"),
    include_str!("functions/52_retries.lua"),
    include_str!("functions/56_gate.lua"),
    include_str!("functions/58_dispatch.lua"),
    include_str!("functions/62_sweep.lua"),
    include_str!("functions/64_drain.lua"),
    include_str!("functions/70_push.lua"),
    include_str!("functions/72_jobs.lua"),
    include_str!("functions/74_reap.lua"),
    include_str!("functions/76_policy.lua"),
    include_str!("functions/90_register.lua"),
);

/// The version of [`SOURCE`]; the library says the same of itself (a test compares them).
pub const VERSION: i64 = 5;

/// The oldest version whose functions take and reply what this program expects.
pub const OLDEST_COMPATIBLE: i64 = 5;

#[cfg(test)]
mod tests {
    #[test]
    fn the_source_says_the_version_that_the_program_expects() {
        let line = super::SOURCE.lines().find_map(|line| line.strip_prefix("local VERSION = "));
        let line = line.map(|rest| rest.split_whitespace().next().unwrap_or_default());
        assert_eq!(line, Some(super::VERSION.to_string().as_str()));
    }
}
