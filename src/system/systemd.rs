//! Messages to systemd. Without systemd every call does nothing.

use std::time::Duration;

use sd_notify::NotifyState;

fn send(states: &[NotifyState<'_>]) {
    if let Err(why) = sd_notify::notify(states) {
        tracing::debug!(%why, "systemd was not told");
    }
}

/// Tell systemd that the daemon serves.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// Tell systemd that the start takes longer: it must not give up for another `more`.
pub fn still_starting(more: Duration) {
    let more = u32::try_from(more.as_micros()).unwrap_or(u32::MAX);
    send(&[NotifyState::ExtendTimeoutUsec(more)]);
}

/// Tell systemd that the configuration is being read again; [`ready`] follows.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(_) => send(&[NotifyState::Reloading]),
    }
}

/// Tell systemd that the daemon stops.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Show one line in `systemctl status`.
pub fn status(line: &str) {
    send(&[NotifyState::Status(line)]);
}

/// Tell systemd that the daemon is alive.
pub fn watchdog() {
    send(&[NotifyState::Watchdog]);
}

/// How often to call [`watchdog`]: a third of systemd's limit; `None` if systemd does not watch.
pub fn watchdog_every() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 3)
}
