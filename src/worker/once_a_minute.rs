//! What may happen with every job, but is said once a minute.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often the log says it.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// How often something happened since the log last said so.
#[derive(Debug, Default)]
pub(super) struct OnceAMinute(Mutex<(u64, Option<Instant>)>);

impl OnceAMinute {
    /// Count it so many times more. Replies how often it happened, where the log should say so now.
    pub(super) fn count(&self, times: usize) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.0 += times as u64;
        let is_time = state.1.is_none_or(|said| said.elapsed() >= SAID_EVERY);
        is_time.then(|| {
            state.1 = Some(Instant::now());
            std::mem::take(&mut state.0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_it_at_once_and_then_once_a_minute() {
        let counted = OnceAMinute::default();
        assert_eq!([counted.count(1), counted.count(2), counted.count(1)], [Some(1), None, None]);
        let an_earlier_time = Instant::now().checked_sub(SAID_EVERY);
        counted.0.lock().expect("nobody else has it").1 = an_earlier_time;
        let expected = an_earlier_time.is_some().then_some(4);
        assert_eq!(counted.count(1).filter(|_| an_earlier_time.is_some()), expected);
    }
}
