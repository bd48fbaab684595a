//! How long a push that waits sleeps between two tries.

use std::time::Duration;

/// The sleep after the second try in vain, and the longest one: then an operator may have changed what the last answer
/// said, so it is asked anew.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(4);

/// The tries in vain since a job went in.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    tries: u32,
}

impl Backoff {
    /// How long to sleep after a try in vain whose answer says that the next one is worth it after `asked`. The first
    /// time that is believed. What was in vain again doubles the sleep, with a quarter of jitter: others may wait too.
    pub(super) fn after(&mut self, asked: Duration) -> Duration {
        let doubled = FIRST * 2_u32.pow(self.tries.min(10));
        let least = if self.tries == 0 { Duration::ZERO } else { doubled / 2 };
        self.tries += 1;
        let pause = asked.max(least).min(LONGEST);
        if pause < FIRST { pause } else { pause.mul_f64(1.0 + fastrand::f64() / 4.0) }
    }

    /// Whether the last try was in vain, and the one before it too.
    pub(super) fn is_long(&self) -> bool {
        self.tries > 1
    }

    /// A job went in.
    pub(super) fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_believed_once_and_then_the_sleep_doubles_up_to_some_seconds() {
        let (ms, mut backoff) = (Duration::from_millis, Backoff::default());
        assert_eq!(backoff.after(ms(3)), ms(3));
        for least in [100, 200, 400, 800, 1_600, 3_200, 4_000, 4_000] {
            let pause = backoff.after(ms(3));
            assert!(pause >= ms(least) && pause <= ms(least) * 5 / 4, "{pause:?}");
        }
        backoff.reset();
        let pause = backoff.after(Duration::from_secs(3_600));
        assert!(pause >= ms(4_000) && pause <= ms(5_000), "an hour is asked about again: {pause:?}");
        assert!(!backoff.is_long());
    }
}
