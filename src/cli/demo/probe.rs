//! What the machine itself is late with: a thread that sleeps for a moment, again and again. A promise that is measured
//! from outside on a machine that stands still for a while is not broken by dripd.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::bucket::now_us;

const NAP: Duration = Duration::from_millis(2);

/// What is slept too long and is no stall yet.
const LEAST: Duration = Duration::from_millis(5);

/// When a nap ended, and how much too long it was.
type Stall = (u64, Duration);

#[derive(Default)]
struct Shared {
    over: AtomicBool,
    stalls: Mutex<Vec<Stall>>,
}

/// The thread. It ends with this value.
pub(super) struct Probe {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Probe {
    pub(super) fn start() -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("probe".to_owned()).spawn(move || of_thread.sample())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// It is over: every stall.
    pub(super) fn end(self) -> Stalls {
        let shared = Arc::clone(&self.shared);
        drop(self);
        let stalls = std::mem::take(&mut *shared.stalls.lock().unwrap_or_else(PoisonError::into_inner));
        Stalls(stalls)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn sample(&self) {
        while !self.over.load(Ordering::Relaxed) {
            let since = Instant::now();
            std::thread::sleep(NAP);
            let late = since.elapsed().saturating_sub(NAP);
            if late >= LEAST {
                self.stalls.lock().unwrap_or_else(PoisonError::into_inner).push((now_us(), late));
            }
        }
    }
}

/// The times for which the machine stood still.
#[derive(Debug, Default)]
pub(super) struct Stalls(Vec<Stall>);

impl Stalls {
    /// The longest one that touches some time.
    pub(super) fn longest(&self, from_us: u64, to_us: u64) -> Duration {
        let touches = |(end, late): &&Stall| *end >= from_us && end.saturating_sub(late.as_micros() as u64) <= to_us;
        self.0.iter().filter(touches).map(|(_, late)| *late).max().unwrap_or_default()
    }

    pub(super) fn longest_of_all(&self) -> Duration {
        self.longest(0, u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stall_is_that_which_touches_the_time() {
        let ms = Duration::from_millis;
        let stalls = Stalls(vec![(100_000, ms(10)), (300_000, ms(50)), (900_000, ms(80))]);
        assert_eq!(stalls.longest(0, 200_000), ms(10));
        assert_eq!(stalls.longest(100_000, 260_000), ms(50), "it began before the end of that time");
        assert_eq!(stalls.longest(310_000, 800_000), Duration::ZERO);
        assert_eq!(stalls.longest_of_all(), ms(80));
    }

    #[test]
    fn a_probe_ends_when_it_is_told_to() {
        let probe = Probe::start().expect("a thread");
        let shared = Arc::downgrade(&probe.shared);
        probe.end();
        assert!(shared.upgrade().is_none(), "its thread is gone");
    }
}
