//! Sleeping to the microsecond.
//!
//! Tokio's timer rounds up to a millisecond, which is coarser than the promised pacing. So on Linux the daemon sleeps
//! on a timerfd: the kernel's high-resolution timer, waited for in the event loop. On other systems it uses tokio's
//! timer.

use std::time::Duration;

/// A timer that one task sleeps on.
#[derive(Debug)]
pub struct Timer {
    #[cfg(target_os = "linux")]
    fd: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Timer {
    /// A timer of the current runtime.
    ///
    /// # Errors
    ///
    /// When the kernel gives no timer (out of descriptors).
    pub fn new() -> std::io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // Tokio 1.54 deprecates `new` for types whose descriptor may change under it, and its successor is unsafe. An
        // OwnedFd keeps one descriptor from here until it is dropped.
        #[expect(deprecated, reason = "sound for an OwnedFd")]
        let fd = tokio::io::unix::AsyncFd::new(fd)?;
        Ok(Self { fd })
    }

    /// Sleep for `nap`. A caller may drop the future: the next call sets the timer anew.
    pub async fn sleep(&self, nap: Duration) {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        if nap.is_zero() {
            return; // a timerfd set to zero never fires
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = Timespec {
            tv_sec: i64::try_from(nap.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(nap.subsec_nanos()),
        };
        let spec = Itimerspec { it_interval: zero, it_value: at };
        if timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &spec).is_err() {
            return tokio::time::sleep(nap).await;
        }
        loop {
            let Ok(mut ready) = self.fd.readable().await else { return tokio::time::sleep(nap).await };
            let fired = ready.try_io(|fd| rustix::io::read(fd, &mut [0_u8; 8]).map_err(Into::into));
            if fired.is_ok() {
                return;
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Timer {
    /// A timer of the current runtime.
    ///
    /// # Errors
    ///
    /// There are none on these systems.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {})
    }

    /// Sleep for `nap`, rounded up to a millisecond.
    pub async fn sleep(&self, nap: Duration) {
        tokio::time::sleep(nap).await;
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::time::Instant;

    #[tokio::test(flavor = "current_thread")]
    async fn a_sleep_is_never_short_and_a_dropped_one_leaves_nothing_behind() {
        let timer = Timer::new().expect("a timer");
        drop(tokio::time::timeout(Duration::from_millis(2), timer.sleep(Duration::from_secs(60))).await);
        let start = Instant::now();
        timer.sleep(Duration::from_micros(300)).await;
        assert!(start.elapsed() >= Duration::from_micros(300));
    }
}
