//! A recording of live traffic: what must have come into buckets, from how many jobs wait in them and how many have left.

use std::collections::HashMap;

use super::trace::Line;
use crate::store::snapshots::BucketSnapshot;

/// The most buckets that are recorded: so many are counted by the functions (`context/trace.lua`).
pub const MOST: usize = 2_000;

/// How a bucket stood when it was looked at last.
#[derive(Debug, Clone, Copy)]
struct Stood {
    depth: u64,
    left: u64,
    rejected: u64,
}

/// The buckets of a recording.
#[derive(Debug, Default)]
pub struct Recorder {
    names: Vec<String>,
    stood: HashMap<String, Stood>,
    /// Jobs that were written.
    pub jobs: u64,
    /// Jobs that have left the buckets since they are looked at, those that were tried again among them.
    pub left: u64,
}

impl Recorder {
    /// Look at these buckets too, as long as there are not too many.
    pub fn watch(&mut self, names: impl Iterator<Item = String>) {
        for name in names {
            if self.names.len() < MOST && !self.names.contains(&name) {
                self.names.push(name);
            }
        }
    }

    /// The buckets that are looked at.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Buckets were looked at, so many milliseconds after the beginning. What has come into them since, a line each.
    pub fn note(&mut self, at_ms: u64, snapshots: &[BucketSnapshot]) -> Vec<Line> {
        let mut lines = Vec::new();
        for now in snapshots {
            let name = &now.row.bucket;
            let stands = Stood { depth: now.row.depth, left: now.left, rejected: now.row.rejected };
            // What waits in a bucket that is seen for the first time came before: it comes now. Where the count of those
            // that left is lower than before it was begun anew, and what was counted until then is lost.
            let before =
                self.stood.insert(name.clone(), stands).unwrap_or(Stood { depth: 0, left: stands.left, ..stands });
            let left = stands.left.saturating_sub(before.left);
            let rejected = stands.rejected.saturating_sub(before.rejected);
            let came = (stands.depth + left + rejected).saturating_sub(before.depth);
            self.left += left;
            self.jobs += came;
            if came > 0 {
                lines.push(Line::of(at_ms as f64, name.clone(), came));
            }
        }
        lines
    }
}
