//! A record as a line of text: its message, then its fields as `name=value`.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

use crate::model::escape;

/// The format of fields as `name=value`, so that a program can read a line: a value with anything but plain characters
/// is quoted, and no value begins a new line.
pub(super) struct Fields;

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
            "message" => self.write(format_args!("{}", escape::line(value))),
            name => self.write(format_args!("{name}={}", quoted(value))),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}");
        match field.name() {
            "message" => self.write(format_args!("{}", escape::line(&value))),
            name if is_plain(&value) => self.write(format_args!("{name}={value}")),
            name => self.write(format_args!("{name}={}", quoted(&value))),
        }
    }
}

fn is_plain(value: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || !escape::is_visible(c) || c == '"' || c == '=';
    !value.is_empty() && !value.contains(is_odd)
}

/// A value in quotes, with invisible characters escaped.
fn quoted(value: &str) -> String {
    escape::line(&format!("{value:?}")).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// The text that some records become.
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
            tracing::warn!(bucket = %"a\u{202e}b\u{3164}", "a\u{200b}b");
            tracing::warn!(url = %"a=b", quotes = %"a \"b\"", list = ?["x"], lines = %"a\nb", "one\ntwo\u{1b}[31m");
        });
        assert_eq!(
            lines,
            " INFO told bucket=sms:a jobs=3 why=\"cannot use redis: refused\" again=\"cannot use redis: refused\" empty=\"\"\n \
             WARN a\\u{200b}b bucket=\"a\\u{202e}b\\u{3164}\"\n \
             WARN one\\ntwo\\u{1b}[31m url=\"a=b\" quotes=\"a \\\"b\\\"\" list=\"[\\\"x\\\"]\" lines=\"a\\nb\"\n"
        );
    }
}
