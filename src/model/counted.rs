//! Phrases that begin with a number, in the singular or the plural.

/// `n` and the phrase that fits it: `one` for 1, otherwise `many`, as in `1 job is ready` and `3 jobs are ready`.
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}
