//! The primaries that there have been, one in the place of the other: how clients find the one that is, and what its successor has.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use redis::{Connection, RedisResult};

use super::cast::{Shared, now_us};
use super::line::Way;
use super::server::connect;

/// Each promotion gives the history of a primary another name.
struct Primary {
    name: String,
    /// The name of the one that it took the place of, if it was a replica before.
    before: String,
    port: u16,
}

pub struct Primaries {
    /// The port of the primary that whoever knows names now.
    named: Box<dyn Fn() -> Option<u16> + Send + Sync>,
    seen: Mutex<Vec<Primary>>,
    /// How often somebody asked elsewhere because a primary said so, while a slot was on the move.
    pub asked: AtomicUsize,
}

impl Primaries {
    pub fn new(named: impl Fn() -> Option<u16> + Send + Sync + 'static) -> Self {
        Self { named: Box::new(named), seen: Mutex::default(), asked: AtomicUsize::new(0) }
    }

    pub fn connect(&self) -> RedisResult<(Connection, usize)> {
        let nobody = || redis::RedisError::from((redis::ErrorKind::Io, "no primary"));
        let port = (self.named)().ok_or_else(nobody)?;
        let mut server = connect(port)?;
        let info: String = redis::cmd("INFO").arg("replication").query(&mut server)?;
        let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
        if of("role:") != "master" {
            return Err(nobody());
        }
        let (name, before) = (of("master_replid:"), of("master_replid2:"));
        let mut seen = self.seen.lock().expect("no panic");
        let number = seen.iter().position(|one| one.name == name).unwrap_or_else(|| {
            seen.push(Primary { name, before, port });
            seen.len() - 1
        });
        Ok((server, number))
    }

    /// Whether it is still named: one that was replaced while it ran goes on answering for some seconds.
    pub fn is_still(&self, primary: usize) -> bool {
        let port = self.seen.lock().expect("no panic")[primary].port;
        (self.named)().is_none_or(|named| named == port)
    }

    /// Whether one took the place of another, or of one that had. A slot that was moved has another primary, which is no successor.
    pub fn succeeds(&self, later: usize, earlier: usize) -> bool {
        let seen = self.seen.lock().expect("no panic");
        let before = |one: &usize| seen.iter().position(|other| other.name == seen[*one].before);
        std::iter::successors(before(&later), before).any(|one| one == earlier)
    }
}

/// Up to when each primary's replica is known to have got everything: write something again and again, and wait until the replica has it.
#[derive(Default)]
pub struct Kept(Mutex<Vec<u64>>);

impl Kept {
    pub fn watch(&self, shared: &Shared) {
        while shared.working.load(Ordering::Relaxed) {
            if let Ok((mut server, primary)) = shared.way.connect() {
                let mut note = || self.note(&mut server, primary, &format!("witness{}", shared.names.tag));
                while shared.working.load(Ordering::Relaxed) && matches!(note(), Ok(true)) {
                    sleep(Duration::from_millis(2));
                }
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// Replies whether the replica has got everything.
    fn note(&self, server: &mut Connection, primary: usize, key: &str) -> RedisResult<bool> {
        let before = now_us();
        redis::cmd("SET").arg(key).arg(before).exec(server)?;
        let replicas: i64 = redis::cmd("WAIT").arg(1).arg(50).query(server)?;
        let mut kept = self.0.lock().expect("no panic");
        let missing = (primary + 1).saturating_sub(kept.len());
        kept.extend(std::iter::repeat_n(0, missing));
        if replicas > 0 {
            kept[primary] = before;
        }
        Ok(replicas > 0)
    }

    /// The same for all primaries; one that has no successor loses nothing.
    pub fn until_us(&self, way: &Way) -> Vec<u64> {
        let Way::Primaries(primaries) = way else { return Vec::new() };
        let kept = self.0.lock().expect("no panic");
        let count = primaries.seen.lock().expect("no panic").len();
        let has_successor = |one| (0..count).any(|other| primaries.succeeds(other, one));
        let until = |one: usize| if has_successor(one) { kept.get(one).copied().unwrap_or(0) } else { u64::MAX };
        (0..count).map(until).collect()
    }
}

#[test]
fn a_successor_was_a_replica_and_whoever_only_has_the_slot_now_is_none() {
    let primaries = Primaries::new(|| None);
    let seen = [("a", "0"), ("b", "a"), ("c", "b"), ("elsewhere", "0")];
    let seen = seen.map(|(name, before)| Primary { name: name.to_owned(), before: before.to_owned(), port: 0 });
    primaries.seen.lock().expect("no panic").extend(seen);
    let pairs = (0..4).flat_map(|later| (0..4).map(move |earlier| (later, earlier)));
    let found: Vec<(usize, usize)> = pairs.filter(|(later, earlier)| primaries.succeeds(*later, *earlier)).collect();
    assert_eq!(found, [(1, 0), (2, 0), (2, 1)]);
    // What one that goes on did is known for ever.
    let kept = Kept(Mutex::new(vec![5, 6, 7, 8]));
    assert_eq!(kept.until_us(&Way::Primaries(primaries)), [5, 6, u64::MAX, u64::MAX]);
}
