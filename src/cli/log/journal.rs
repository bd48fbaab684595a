//! The log in the journal: `journalctl` shows the same lines as elsewhere, and each field of a record is a journal
//! field too, so that `journalctl DRIPD_BUCKET=sms:a` and `journalctl -p warning` find the right records.

use std::fmt;
use std::io;

use tracing::field::{Field, Value, Visit};
use tracing::{Event, Subscriber};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::fmt::FormatFields as _;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::line::Fields;

/// The prefix of the names of fields in the journal, so that none is taken for one of the journal's own.
const PREFIX: &str = "DRIPD";

/// The most fields of a record that become journal fields, the message included; the line always has all of them.
const MOST_FIELDS: usize = 32;

/// Whether standard error leads into the journal: systemd says which device and inode it has there (systemd.exec(5)).
pub(super) fn is_standard_error() -> bool {
    let Ok(promised) = std::env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(io::stderr()).is_ok_and(|stat| promised == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// A layer that sends records to the journal.
pub(super) struct Journal(tracing_journald::Layer);

impl Journal {
    /// Connect to the journal of this machine.
    ///
    /// # Errors
    ///
    /// Nothing listens at the journal's socket.
    pub(super) fn open() -> io::Result<Self> {
        // The priorities are those of a service that writes to standard error, so that `-p` means what people expect.
        let priorities =
            PriorityMappings { info: Priority::Informational, debug: Priority::Debug, ..PriorityMappings::new() };
        let layer = tracing_journald::layer()?.with_field_prefix(Some(PREFIX.to_owned()));
        Ok(Self(layer.with_priority_mappings(priorities)))
    }
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for Journal {
    /// Send the whole line as the message: `journalctl` shows nothing else, and the record's own message does not tell
    /// which bucket it is about.
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut line = String::new();
        if Fields.format_fields(Writer::new(&mut line), event).is_err() {
            return;
        }
        let mut fields = RecordFields::default();
        event.record(&mut fields);
        let Some(message) = event.metadata().fields().field("message") else { return };
        let mut values: [(&Field, Option<&dyn Value>); MOST_FIELDS] = [(&message, None); MOST_FIELDS];
        values[0].1 = Some(&line);
        for (place, (field, value)) in values[1..].iter_mut().zip(&fields.0) {
            *place = (field, Some(value));
        }
        self.0.on_event(&Event::new(event.metadata(), &event.metadata().fields().value_set(&values)), context);
    }
}

/// The fields of a record except its message.
#[derive(Default)]
struct RecordFields(Vec<(Field, String)>);

impl Visit for RecordFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() != "message" {
            self.0.push((field.clone(), value.to_owned()));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() != "message" {
            self.0.push((field.clone(), format!("{value:?}")));
        }
    }
}
