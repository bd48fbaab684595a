//! The inbox: commands to a running daemon, by signals and over the control socket.

use tracing::warn;

use super::DaemonError;
use crate::system::control::{Control, Request};
use crate::system::signals::{Signal, Signals};

/// A command to the daemon.
pub(super) enum Command {
    /// Finish and stop.
    Stop,
    /// Read the configuration again. A request over the control socket waits for the answer, a signal does not.
    Reload(Option<Request>),
    /// Write the figures to the log.
    Status,
}

/// The signals of this process, and its control socket where one could be opened.
pub(super) struct Inbox {
    signals: Signals,
    control: Option<Control>,
}

impl Inbox {
    /// Listen for signals and on the control socket.
    pub(super) fn open() -> Result<Self, DaemonError> {
        let signals = Signals::listen().map_err(|why| DaemonError::System { what: "listen for signals", why })?;
        let control = Control::listen()
            .inspect_err(
                |why| warn!(%why, "there is no control socket: `dripd reload` cannot reach this daemon, HUP can"),
            )
            .ok();
        Ok(Self { signals, control })
    }

    /// The next command. A caller may drop the future: no command is lost.
    pub(super) async fn next(&mut self) -> Command {
        tokio::select! {
            signal = self.signals.next() => match signal {
                Signal::Stop => Command::Stop,
                Signal::Reload => Command::Reload(None),
                Signal::Status => Command::Status,
            },
            request = next_request(self.control.as_mut()) => Command::Reload(Some(request)),
        }
    }
}

/// The next request, or never where there is no control socket.
async fn next_request(control: Option<&mut Control>) -> Request {
    match control {
        Some(control) => control.next().await,
        None => std::future::pending().await,
    }
}
