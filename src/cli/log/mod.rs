//! The log of `run` and `work`. Under systemd it goes to the journal, with its fields and priorities. Elsewhere, or
//! when a format is asked for, it goes to standard error: a line for each record, as text or as JSON.

mod journal;
mod line;

use std::io::IsTerminal as _;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::{Exit, Failure};
use crate::config::variable;
use crate::model::escape::escaped_json;
use crate::store::acl::Role;

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// The options of a command that logs.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Log {
    /// How the log is written on standard error, one record a line [default: text; under systemd the log goes to the journal instead, with its fields and priorities]. `$RUST_LOG` chooses how much: error, warn, info, debug
    #[arg(long, value_name = "FORMAT", value_enum)]
    log_format: Option<Format>,
}

/// The place where the records of a command go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Started {
    /// Standard error: a line for people, like the message of a failure at the end.
    Text,
    /// Standard error, where each line must be an object.
    Json,
    /// The journal, which knows the priority of each record.
    Journal,
}

impl Log {
    /// Begin to write the log.
    pub(super) fn start(self) -> Started {
        let filter = EnvFilter::builder().with_default_directive(tracing::Level::INFO.into()).from_env_lossy();
        if self.log_format.is_none()
            && journal::is_standard_error()
            // Without the socket, standard error still leads to the journal.
            && let Ok(journal) = journal::Journal::open()
        {
            tracing_subscriber::registry().with(filter).with(journal).init();
            return Started::Journal;
        }
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
        // A closed terminal must not end a daemon: records that cannot be written are dropped.
        let builder = builder.log_internal_errors(false);
        if self.log_format == Some(Format::Json) {
            let builder = builder.with_writer(|| Escaped);
            builder.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
            return Started::Json;
        }
        let builder = builder.fmt_fields(line::Fields).with_ansi(wants_color());
        // The journal adds its own time.
        if journal::is_standard_error() {
            builder.without_time().init();
        } else {
            builder.init();
        }
        Started::Text
    }
}

impl Started {
    /// Report the end of a command. Where records are more than lines for people, a failure becomes a record too.
    pub(super) fn end(self, action: &str, role: Role, done: Result<Exit, Failure>) -> Result<Exit, Failure> {
        let failure = match done {
            Err(failure) if self != Self::Text => failure,
            done => return done,
        };
        if self == Self::Json {
            tracing::error!(why = failure.record(role), "failed");
        } else {
            // A bad configuration has a line for each problem.
            failure.said(action, role).lines().for_each(|line| tracing::error!("{line}"));
        }
        Ok(failure.exit)
    }
}

/// Standard error for records of JSON, which the formatter writes one at a time. Characters that a terminal or a reader
/// could misread become escapes.
struct Escaped;

impl std::io::Write for Escaped {
    fn write(&mut self, record: &[u8]) -> std::io::Result<usize> {
        std::io::Write::write_all(&mut std::io::stderr(), escaped_json(&String::from_utf8_lossy(record)).as_bytes())?;
        Ok(record.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::Write::flush(&mut std::io::stderr())
    }
}

/// Whether the log is coloured: on a terminal that shows colours, for a user who has not refused them (no-color.org).
fn wants_color() -> bool {
    std::io::stderr().is_terminal()
        && variable("NO_COLOR").is_none()
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
