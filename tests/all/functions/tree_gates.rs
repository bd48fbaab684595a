//! The reference model of `tree_model`: a gate before the doors of a bucket that run code. "A plain LPUSH runs none."

/// A `fixed-window` limiter: so many in each window, which begins with the first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gate {
    pub(super) limit: usize,
    pub(super) period: u64,
    ends: u64,
    passed: usize,
}

impl Gate {
    pub(super) fn new(limit: usize, period: u64) -> Self {
        Self { limit, period, ends: 0, passed: 0 }
    }

    /// How many more may pass.
    pub(super) fn free(self, now: u64) -> usize {
        if now < self.ends { self.limit - self.passed } else { self.limit }
    }

    /// "The gate's wait": milliseconds until one more may pass; 0: one may now.
    pub(super) fn wait_ms(self, now: u64) -> i64 {
        if self.free(now) > 0 { 0 } else { (self.ends - now).div_ceil(1_000) as i64 }
    }

    /// Some pass; "what is refused charges nothing".
    pub(super) fn lets_in(&mut self, jobs: usize, now: u64) {
        if now >= self.ends {
            (self.ends, self.passed) = (now + self.period, 0);
        }
        self.passed += jobs;
    }
}
