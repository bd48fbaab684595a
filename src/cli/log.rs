//! The log of `run` and `work`, on standard error: a line a record, as text or as JSON.

use std::fmt;
use std::io::IsTerminal as _;

use clap::{Args, ValueEnum};
use tracing::field::{Field, Visit};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

use super::{Exit, Failure};
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
    /// How the log on standard error is written, a line a record. `$RUST_LOG` chooses how much: error, warn, info, debug
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    log_format: Format,
}

impl Log {
    /// Log to standard error from now on.
    pub(super) fn start(self) {
        let filter = EnvFilter::builder().with_default_directive(tracing::Level::INFO.into()).from_env_lossy();
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
        // A terminal that was closed must not end a daemon: what cannot be written is not written.
        let builder = builder.log_internal_errors(false);
        match self.log_format {
            Format::Json => builder.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
            Format::Text => {
                let builder = builder.fmt_fields(Fields).with_ansi(wants_color());
                // The journal keeps its own time.
                if std::env::var_os("JOURNAL_STREAM").is_some() {
                    builder.without_time().init();
                } else {
                    builder.init();
                }
            }
        }
    }

    /// What a command of a role came to: where the log is JSON, a failure is a record of it like any other.
    pub(super) fn end(self, done: Result<Exit, Failure>, role: Role) -> Result<Exit, Failure> {
        match done {
            Err(failure) if self.log_format == Format::Json => {
                tracing::error!(why = failure.record(role), "failed");
                Ok(failure.exit)
            }
            done => done,
        }
    }
}

/// Colours are for a terminal that shows them and a person who wants them (no-color.org).
fn wants_color() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Fields as `name=value`, so that a line can be taken apart again: a value with anything but plain characters is quoted, and
/// nothing begins a new line.
struct Fields;

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut line = Line { writer, is_empty: true, written: Ok(()) };
        fields.record(&mut line);
        line.written
    }
}

/// The fields of one record while they are written.
struct Line<'writer> {
    writer: Writer<'writer>,
    is_empty: bool,
    written: fmt::Result,
}

impl Line<'_> {
    fn write(&mut self, text: fmt::Arguments<'_>) {
        let space = if std::mem::take(&mut self.is_empty) { "" } else { " " };
        self.written = self.written.and_then(|()| write!(self.writer, "{space}{text}"));
    }
}

impl Visit for Line<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.write(format_args!("{}", on_one_line(value))),
            name => self.write(format_args!("{name}={value:?}")),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}");
        match field.name() {
            "message" => self.write(format_args!("{}", on_one_line(&value))),
            name if is_plain(&value) => self.write(format_args!("{name}={value}")),
            name => self.write(format_args!("{name}={value:?}")),
        }
    }
}

fn is_plain(value: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || c == '"' || c == '=';
    !value.is_empty() && !value.contains(is_odd)
}

/// A message without its control characters: they are shown as `\n` and the like.
fn on_one_line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut line, c| {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
        line
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What is written of some records.
    fn written(log: impl FnOnce()) -> String {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let writer = Arc::clone(&bytes);
        let builder = tracing_subscriber::fmt().fmt_fields(Fields).with_ansi(false).without_time().with_target(false);
        let subscriber = builder.with_writer(move || Pen(Arc::clone(&writer))).finish();
        tracing::subscriber::with_default(subscriber, log);
        let bytes = bytes.lock().expect("no panic").clone();
        String::from_utf8(bytes).expect("text")
    }

    struct Pen(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Pen {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_record_is_a_line_and_a_value_with_spaces_is_quoted() {
        let why = "cannot use redis: refused";
        let lines = written(|| {
            tracing::info!(bucket = %"sms:a", jobs = 3, why = %why, again = why, empty = %"", "told");
            tracing::warn!(url = %"a=b", quotes = %"a \"b\"", list = ?["x"], lines = %"a\nb", "one\ntwo\u{1b}[31m");
        });
        assert_eq!(
            lines,
            " INFO told bucket=sms:a jobs=3 why=\"cannot use redis: refused\" again=\"cannot use redis: refused\" empty=\"\"\n \
             WARN one\\ntwo\\u{1b}[31m url=\"a=b\" quotes=\"a \\\"b\\\"\" list=\"[\\\"x\\\"]\" lines=\"a\\nb\"\n"
        );
    }
}
