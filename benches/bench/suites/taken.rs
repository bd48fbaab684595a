//! Dispatches, as they are read from the ready stream by a worker that takes everything.

use std::io;
use std::time::Duration;

use super::lab::keys;
use super::measure::{Over, Times};
use super::wire::{Reply, Wire, parts, text};
use dripd::model::route::Route;
use dripd::store::keys::GROUP;

/// How often the worker takes what is there. It does not block: a reader that Redis must wake for every dispatch is another
/// load than the one to be measured.
const EVERY: Duration = Duration::from_millis(10);

/// How many it takes at once.
const MOST: usize = 5_000;

/// One job that left its bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dispatch {
    /// Which bucket.
    pub(super) bucket: String,
    /// When it was due, on the server's clock.
    pub(super) due_us: u64,
    /// When it left.
    pub(super) at_us: u64,
}

impl Dispatch {
    /// An entry of a stream, as XRANGE and XREADGROUP reply it.
    pub(super) fn of(entry: &Reply) -> Option<Self> {
        let [_, fields] = parts(entry) else { return None };
        let field = |name: &str| {
            parts(fields).chunks(2).find(|pair| text(&pair[0]) == Some(name)).and_then(|pair| text(&pair[1]))
        };
        Some(Self {
            bucket: field("bucket")?.to_owned(),
            due_us: field("due_us")?.parse().ok()?,
            at_us: field("at_us")?.parse().ok()?,
        })
    }
}

/// Take jobs until it is over. Those taken need no acknowledgement.
pub(super) fn take_until(over: &Over, mut wire: Wire) -> io::Result<Vec<Dispatch>> {
    let ready = keys().ready(&Route::default());
    let most = MOST.to_string();
    let words = ["XREADGROUP", "GROUP", GROUP, "bench", "COUNT", &most, "NOACK", "STREAMS", &ready, ">"];
    let mut taken = Vec::new();
    loop {
        let last = over.is_set();
        let reply = wire.call(&words)?;
        let entries = parts(&reply).first().and_then(|stream| parts(stream).get(1)).map_or(&[] as &[_], parts);
        taken.extend(entries.iter().filter_map(Dispatch::of));
        if entries.len() < MOST {
            if last {
                return Ok(taken);
            }
            std::thread::sleep(EVERY);
        }
    }
}

/// How late the dispatches are.
pub(super) fn lateness<'a>(taken: impl Iterator<Item = &'a Dispatch>) -> Times {
    let mut times = Times::new();
    taken.for_each(|job| times.add_us(job.at_us.saturating_sub(job.due_us)));
    times
}
