//! Replication: settings and the record come into every partition. The authority numbers each change of them. Daemons, once a second, and the
//! commands that change something bring a partition the changes that it lacks.

use std::time::{Duration, Instant};

use tracing::warn;

use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::partitions::Partitions;

/// The wait for a change that still spreads in a partition.
const SPREAD_POLL_EVERY: Duration = Duration::from_millis(20);

/// How much one call takes back, and how much of that the log names.
const REVOKED_PER_CALL: usize = 100;
const REVOKED_LOGGED: usize = 5;

/// The name that stands for all globs that are set.
const GLOBS: &[u8] = b"{globs";

/// Changes of the authority, as one call tells them.
struct Changes {
    /// The number of the last one there is.
    last: u64,
    /// Removals up to this number may be told no more, or were lost.
    floor: u64,
    /// Up to this number all are told.
    upto: u64,
    /// Number, what, and three texts of each.
    list: Vec<Vec<u8>>,
}

/// The partitions that could not be brought up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicationReport {
    /// The numbers of those that an earlier change still keeps busy: they take it when that is over.
    pub busy: Vec<u8>,
}

impl Partitions {
    /// Bring every partition what the authority has and it lacks.
    pub async fn replicate(&mut self) -> Result<ReplicationReport, StoreError> {
        if self.layout().partitioning().is_single() {
            return Ok(ReplicationReport { busy: Vec::new() });
        }
        let mut authority = self.authority();
        let (last, _) = authority.applied_change().await?;
        let replicate_one = async |mut store: Store| {
            let is_current = store.applied_change().await?.0 == last;
            if is_current || store.keys().is_authority() {
                return Ok(PartitionReport::default());
            }
            self.replicate_to(store).await
        };
        let reports = self.all(replicate_one).await?;
        if reports.iter().any(|one| one.was_ahead) {
            warn!(
                "partition 0 has lost the last changes of what is set: the others take over what it has; look at `dripd settings`"
            );
        }
        Ok(ReplicationReport { busy: reports.into_iter().filter_map(|one| one.busy).collect() })
    }

    /// Replicate, and wait a while for busy partitions.
    pub async fn replicate_within(&mut self, time: Duration) -> Result<ReplicationReport, StoreError> {
        let since = Instant::now();
        loop {
            let report = self.replicate().await?;
            if report.busy.is_empty() || since.elapsed() >= time {
                return Ok(report);
            }
            tokio::time::sleep(SPREAD_POLL_EVERY).await;
        }
    }
}

/// The report of one partition.
#[derive(Default)]
struct PartitionReport {
    /// Its number, where an earlier change keeps it busy.
    busy: Option<u8>,
    /// The partition had a change that the authority has lost.
    was_ahead: bool,
}

impl Partitions {
    /// Bring one partition what it lacks.
    async fn replicate_to(&self, mut store: Store) -> Result<PartitionReport, StoreError> {
        let (mut authority, mut report, mut is_sure) = (self.authority(), PartitionReport::default(), false);
        loop {
            let (has, began_at) = store.applied_change().await?;
            let changes = authority.changes_after(has).await?;
            if has == changes.last {
                return Ok(report);
            }
            // The authority may have lost a change that came as far as here: what it has now holds.
            let is_ahead = has > changes.last;
            if is_ahead && !is_sure {
                // Or it was replaced, and nobody has told it yet: then its successor has counted that change.
                if !store.agrees_on(&mut authority).await {
                    self.refresh_topology().await;
                    return Ok(report);
                }
                is_sure = true;
                continue; // what was read before it was asked says nothing
            }
            report.was_ahead |= is_ahead;
            let is_busy = if is_ahead || (has > 0 && has < changes.floor && began_at != changes.floor) {
                replicate_anew(&mut authority, &mut store, has, &changes).await?
            } else {
                store.apply_changes(has, &changes).await?
            };
            if is_busy {
                report.busy = Some(store.keys().number());
                return Ok(report);
            }
        }
    }
}

/// Take back in a partition what the authority does not have set; it is told all the rest again, from the first change on. What is set in
/// both stays in force meanwhile. Replies whether an earlier change keeps it busy.
async fn replicate_anew(
    authority: &mut Store,
    store: &mut Store,
    mut has: u64,
    changes: &Changes,
) -> Result<bool, StoreError> {
    let gone = store.not_set_in(authority).await?;
    if !gone.is_empty() {
        let (partition, count) = (store.keys().number(), gone.len());
        let first: Vec<_> = gone.iter().take(REVOKED_LOGGED).map(|what| String::from_utf8_lossy(what)).collect();
        warn!(partition, count, first = first.join(" "), "what is set here and not in partition 0 is taken back");
    }
    let mut pages: Vec<&[Vec<u8>]> = gone.chunks(REVOKED_PER_CALL).collect();
    if pages.is_empty() {
        pages.push(&[]);
    }
    for (n, page) in pages.iter().enumerate() {
        let mut list = Vec::new();
        for (what, number) in page.iter().zip(has + 1..) {
            list.extend([number.to_string().into_bytes(), what.clone(), Vec::new(), Vec::new(), Vec::new()]);
        }
        let upto = if n + 1 == pages.len() { 0 } else { has + page.len() as u64 };
        let back = Changes { last: changes.last, floor: changes.floor, upto, list };
        if store.apply_changes(has, &back).await? {
            return Ok(true);
        }
        has = upto;
    }
    Ok(false)
}

impl Store {
    /// Up to which change it has all, and the floor of the authority when it began to take them.
    async fn applied_change(&mut self) -> Result<(u64, u64), StoreError> {
        let mut command = redis::cmd("HMGET");
        command.arg(self.keys().policy()).arg("number").arg("began_at");
        let (number, began_at): (Option<u64>, Option<u64>) = self.read("HMGET", &command).await?;
        Ok((number.unwrap_or(0), began_at.unwrap_or(0)))
    }

    /// Names and budgets that are set here and not at the authority; all globs count as one.
    async fn not_set_in(&mut self, authority: &mut Self) -> Result<Vec<Vec<u8>>, StoreError> {
        let (mut gone, mut cursor) = (Vec::new(), 0_u64);
        loop {
            let mut page = redis::cmd("HSCAN");
            page.arg(self.keys().settings()).arg(cursor).arg("COUNT").arg(REVOKED_PER_CALL);
            let (next, pairs): (u64, Vec<(Vec<u8>, redis::Value)>) = self.read("HSCAN", &page).await?;
            if !pairs.is_empty() {
                let mut there = redis::cmd("HMGET");
                there.arg(authority.keys().settings());
                for (what, _) in &pairs {
                    there.arg(what);
                }
                let found: Vec<Option<redis::Value>> = authority.read("HMGET", &there).await?;
                gone.extend(
                    pairs.into_iter().zip(found).filter(|(_, there)| there.is_none()).map(|((what, _), _)| what),
                );
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        let has_globs = async |store: &mut Self| -> Result<bool, StoreError> {
            store.read("EXISTS", redis::cmd("EXISTS").arg(store.keys().globs())).await
        };
        if has_globs(self).await? && !has_globs(authority).await? {
            gone.push(GLOBS.to_vec());
        }
        Ok(gone)
    }

    async fn changes_after(&mut self, number: u64) -> Result<Changes, StoreError> {
        let reply = self.call_read_only("drip__changed", &[self.keys().policy()], ("", number)).await?;
        let (newest, floor, upto, list) = reply.decode()?;
        Ok(Changes { last: newest, floor, upto, list })
    }

    /// Take some in. Replies whether an earlier change keeps it busy. (Where somebody else was here nothing is taken.)
    async fn apply_changes(&mut self, after: u64, changes: &Changes) -> Result<bool, StoreError> {
        let args = ("", after, changes.floor, changes.upto, &changes.list);
        let reply = self.call_function("drip__copy", &[self.keys().policy()], args).await?;
        let (_, busy): (u64, u8) = reply.decode()?;
        Ok(busy == 1)
    }
}
