//! Numbers of things in a sentence.

/// `1 job is ready`, `3 jobs are ready`.
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}
