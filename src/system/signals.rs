//! Signals, and what each asks the daemon to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

/// The exit code of a process that a second INT or TERM ended.
const SECOND_SIGNAL: i32 = 130;

/// Signals that come closer together than this are one request to stop: `timeout` of GNU coreutils sends two at a time,
/// one to the process and one to its group.
const ONE_REQUEST: Duration = Duration::from_millis(500);

/// The request that a signal makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// TERM or INT: finish and stop.
    Stop,
    /// HUP: read the configuration again.
    Reload,
    /// USR1: write the figures to the log.
    Status,
}

/// The stream of signals that this process receives.
pub struct Signals(signal_hook_tokio::Signals);

impl Signals {
    /// Listen for signals. A second INT or TERM, half a second after the first or later, ends the process at once,
    /// whatever it does.
    ///
    /// # Errors
    ///
    /// When the kernel does not allow a handler or a thread.
    pub fn listen() -> std::io::Result<Self> {
        let armed = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, SECOND_SIGNAL, Arc::clone(&armed))?;
        }
        // A thread of its own: the second signal must end a process whose runtime is stuck too.
        let mut first = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
        std::thread::Builder::new().name("second-signal".to_owned()).spawn(move || {
            if first.forever().next().is_some() {
                std::thread::sleep(ONE_REQUEST);
                armed.store(true, Ordering::SeqCst);
            }
        })?;
        Ok(Self(signal_hook_tokio::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1])?))
    }

    /// Wait for TERM or INT.
    pub async fn stop(&mut self) {
        while self.next().await != Signal::Stop {}
    }

    /// The next signal.
    pub async fn next(&mut self) -> Signal {
        match self.0.next().await {
            Some(SIGHUP) => Signal::Reload,
            Some(SIGUSR1) => Signal::Status,
            _ => Signal::Stop,
        }
    }
}
