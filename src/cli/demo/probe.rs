//! What the machine itself is late with: a thread that sleeps for a moment, again and again. A promise that is measured
//! from outside on a machine that stands still for a while is not broken by dripd.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::bucket::now_us;

const NAP: Duration = Duration::from_millis(2);

/// What is slept too long and is no stall yet.
const LEAST: Duration = Duration::from_millis(5);

/// The thread. It ends when this is dropped.
pub(super) struct Probe {
    stop: Sender<()>,
    thread: JoinHandle<Stalls>,
}

/// The times for which the machine stood still: when each ended, and how long it was.
#[derive(Debug, Default)]
pub(super) struct Stalls(Vec<(u64, Duration)>);

impl Stalls {
    /// For how long those that touch some time may have delayed a job: Redis, a daemon and a worker may each have stood still.
    pub(super) fn delay(&self, from_us: u64, to_us: u64) -> Duration {
        3 * self.longest(from_us, to_us)
    }

    /// The longest one that touches some time.
    fn longest(&self, from_us: u64, to_us: u64) -> Duration {
        let touches = |(end, late): &&(u64, Duration)| *end >= from_us && end - late.as_micros() as u64 <= to_us;
        self.0.iter().filter(touches).map(|(_, late)| *late).max().unwrap_or_default()
    }

    pub(super) fn delay_of_all(&self) -> Duration {
        self.delay(0, u64::MAX)
    }

    pub(super) fn longest_of_all(&self) -> Duration {
        self.longest(0, u64::MAX)
    }
}

impl Probe {
    pub(super) fn start() -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let sample = move || {
            let (mut stalls, mut since) = (Stalls::default(), Instant::now());
            while stopped.recv_timeout(NAP) == Err(RecvTimeoutError::Timeout) {
                let late = since.elapsed().saturating_sub(NAP);
                if late >= LEAST {
                    stalls.0.push((now_us(), late));
                }
                since = Instant::now();
            }
            stalls
        };
        Ok(Self { stop, thread: std::thread::Builder::new().name("probe".to_owned()).spawn(sample)? })
    }

    /// It is over: every stall.
    pub(super) fn end(self) -> Stalls {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}
