//! Who works: with plain commands and with the functions, and not always well.

use std::io;
use std::sync::atomic::Ordering;

use dripd::model::route::Route;
use dripd::store::keys::GROUP;

use super::lab::keys;
use super::measure::Over;
use super::wire::{Reply, Wire, parts, text};
use super::{Books, Seen};

pub(super) const WORKERS: usize = 4;

/// The streams of the two routes.
pub(super) fn streams() -> [String; 2] {
    [keys().ready(&Route::default()), keys().ready(&"work".parse().expect("a route"))]
}

/// The value of a field of an entry.
fn field<'a>(entry: &'a Reply, name: &str) -> Option<&'a str> {
    let fields = parts(parts(entry).get(1)?);
    fields.chunks(2).find(|pair| text(&pair[0]) == Some(name)).and_then(|pair| text(&pair[1]))
}

/// Take jobs one at a time: of a hundred, 88 are done, six fail, one is given up, one given back and one forgotten; of those whose other
/// side is too busy every tenth is told so.
pub(super) fn work(mut wire: Wire, n: usize, books: &Books, seen: &Seen, over: &Over) -> io::Result<()> {
    let [stream, _] = streams();
    let name = format!("soak-{n}");
    while !over.is_set() {
        let words = ["XREADGROUP", "GROUP", GROUP, &name, "COUNT", "1", "BLOCK", "200", "STREAMS", &stream, ">"];
        let taken = wire.call(&words)?;
        let entry = parts(&taken).first().and_then(|stream| parts(parts(stream).get(1)?).first());
        let Some(entry) = entry else { continue };
        let id = parts(entry).first().and_then(text).ok_or_else(|| io::Error::other("an entry without an id"))?;
        let (bucket, job) = (field(entry, "bucket").unwrap_or_default(), field(entry, "job").unwrap_or_default());
        let number: u64 = job.trim().parse().map_err(io::Error::other)?;
        let at_us = field(entry, "at_us").and_then(|at| at.parse().ok());
        seen.note(bucket, at_us.ok_or_else(|| io::Error::other(format!("an entry that is no job: {entry:?}")))?);
        finish(&mut wire, &stream, id, bucket, number, books)?;
    }
    Ok(())
}

fn finish(wire: &mut Wire, stream: &str, id: &str, bucket: &str, number: u64, books: &Books) -> io::Result<()> {
    let mut fail = |how: &[&str]| wire.int(&[&["FCALL", "drip_fail", "1", stream, id], how].concat());
    let count = |of: &std::sync::atomic::AtomicU64| of.fetch_add(1, Ordering::Relaxed);
    let replied = match fastrand::u8(0..100) {
        _ if bucket.starts_with("dropped") => fail(&["DEAD", "REASON", "nobody wants it"])?,
        0..10 if bucket.starts_with("throttled") => {
            count(&books.throttled);
            fail(&["THROTTLED", "RETRY_AFTER", "300"])?
        }
        0..6 => {
            count(&books.failed);
            fail(&["REASON", "it did not work"])?
        }
        6 => fail(&["DEAD"])?,
        7 => fail(&["KEEP"])?,
        8 => {
            count(&books.forgotten);
            0
        }
        n => {
            let done = match n % 2 {
                0 => wire.int(&["XACK", stream, GROUP, id])?,
                _ => wire.int(&["FCALL", "drip_ack", "1", stream, id])?,
            };
            if done == 1 {
                books.finished(number);
            }
            0
        }
    };
    if replied == 2 {
        count(&books.dead);
    }
    Ok(())
}
