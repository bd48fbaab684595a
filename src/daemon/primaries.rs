//! The servers of a cluster: each has a session of its own within that of the daemon, made ready, served and lost by itself. When a server
//! is lost only its loops end; when a partition comes to another server its loops go there. Who is where, the table of the store tells.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::ready::{Made, make_ready};
use super::{Daemon, End, Ended, SAY_AGAIN, Serves};
use crate::store::acl::Role;
use crate::store::server::Server;
use crate::store::{StoreError, Whole};
use crate::system::systemd;

/// The wait before a server that could not be served is tried again.
const AGAIN: Duration = Duration::from_millis(250);

/// The sessions with the servers of a cluster, by the number of their connections.
#[derive(Default)]
pub(super) struct Primaries {
    known: HashMap<u64, Serving>,
    /// What the log said of servers that are not served, and when.
    said: HashMap<String, (String, Instant)>,
}

/// A session with one server.
struct Serving {
    shown: String,
    stop: CancellationToken,
    /// What ends the loops of each of its partitions.
    partitions: BTreeMap<u8, CancellationToken>,
    reconciler: CancellationToken,
    /// It, or what has come to it, is being made ready.
    is_busy: bool,
    /// Whether Redis reports changes; not known before it was made ready.
    tracking: Option<bool>,
}

impl Daemon {
    /// Begin, change and end sessions, so that they are with those that have the partitions now.
    pub(super) fn follow(
        &mut self,
        of: &mut Primaries,
        tasks: &mut JoinSet<Ended>,
        whole: &Whole,
        stop: &CancellationToken,
    ) {
        let now = whole.primaries();
        let is_there = |line: &u64| now.iter().any(|primary| primary.line() == *line);
        let gone: Vec<u64> = of.known.keys().filter(|line| !is_there(line)).copied().collect();
        for line in gone {
            self.end_primary(of, line, None, whole);
        }
        for primary in now {
            let numbers = primary.numbers();
            let serving = of.known.entry(primary.line()).or_insert_with(|| Serving {
                shown: primary.shown().to_owned(),
                stop: stop.child_token(),
                partitions: BTreeMap::new(),
                reconciler: stop.child_token(),
                is_busy: false,
                tracking: None,
            });
            serving.partitions.retain(|number, ends| {
                let stays = numbers.contains(number);
                if !stays {
                    ends.cancel();
                    self.progress.left(*number);
                }
                stays
            });
            let is_new = serving.tracking.is_none();
            let added = primary.only(|number| !serving.partitions.contains_key(&number));
            // One that is being made ready takes what has come to it meanwhile when it is.
            if serving.is_busy || (!is_new && added.numbers().is_empty()) {
                continue;
            }
            serving.is_busy = true;
            for number in added.numbers() {
                serving.partitions.insert(number, serving.stop.child_token());
            }
            let put = added.has_authority() && std::mem::take(&mut self.must_put);
            let (reports, progress) = (Arc::clone(&self.reports), Arc::clone(&self.progress));
            let making = make_ready(whole.clone(), added, is_new, reports, progress, self.config.clone(), put);
            let line = primary.line();
            tasks.spawn(async move { Ended::Ready { line, put, made: making.await.map(Box::new) } });
        }
    }

    /// A server was made ready, or could not be.
    pub(super) fn primary_ready(
        &mut self,
        of: &mut Primaries,
        (line, put, made): (u64, bool, Result<Box<Made>, StoreError>),
        tasks: &mut JoinSet<Ended>,
        whole: &Whole,
        stop: &CancellationToken,
    ) -> Option<End> {
        let made = match made {
            Ok(made) => *made,
            Err(why) => {
                self.must_put |= put;
                return self.primary_failed(of, line, why, tasks, whole);
            }
        };
        if let Some(server) = &made.server {
            self.warn_about(server);
        }
        if let Some(is_own) = made.is_own.filter(|_| !self.must_put) {
            self.say_whose_record(is_own);
        }
        let serving = of.known.get_mut(&line)?; // it was lost meanwhile
        if of.said.remove(&serving.shown).is_some() {
            self.progress.serving(); // once more
        }
        let tracking = made.server.as_ref().map_or(serving.tracking.unwrap_or(true), |server| server.tracking);
        (serving.tracking, serving.is_busy) = (Some(tracking), false);
        for store in made.primary.each() {
            let Some(ends) = serving.partitions.get(&store.keys().number()) else { continue };
            if let Err(why) = self.start_partition(tasks, store, Some(line), ends) {
                return Some(End::Lost(why));
            }
        }
        serving.reconciler.cancel();
        serving.reconciler = serving.stop.child_token();
        if let Some(all) = whole.primaries().into_iter().find(|primary| primary.line() == line) {
            let (numbers, reconciler) = (all.numbers(), serving.reconciler.clone());
            info!(redis = serving.shown, partitions = ranges(&numbers), tracking, "serving a server of the cluster");
            self.start_reconciler(tasks, all, Some(line), tracking, &reconciler);
        }
        if !made.primary.numbers().is_empty() {
            self.has_begun_to_serve(whole, made.server.as_ref(), tracking);
        }
        self.follow(of, tasks, whole, stop);
        None
    }

    /// A server could not be made ready, or a loop of it failed: its session ends, and begins anew.
    pub(super) fn primary_failed(
        &mut self,
        of: &mut Primaries,
        line: u64,
        why: StoreError,
        tasks: &mut JoinSet<Ended>,
        whole: &Whole,
    ) -> Option<End> {
        if let StoreError::OtherCut { .. } = why {
            return Some(End::Lost(why)); // waiting does not mend it
        }
        self.end_primary(of, line, Some(&why), whole);
        tasks.spawn(async {
            tokio::time::sleep(AGAIN).await;
            Ended::Again
        });
        None
    }

    /// End the loops of a server, and say so: when the reason is new, or was said a minute ago.
    fn end_primary(&self, of: &mut Primaries, line: u64, why: Option<&StoreError>, whole: &Whole) {
        let Some(serving) = of.known.remove(&line) else { return };
        serving.stop.cancel();
        serving.reconciler.cancel();
        let numbers: Vec<u8> = serving.partitions.into_keys().collect();
        for number in &numbers {
            self.progress.left(*number);
        }
        let absent = || numbers.iter().find_map(|number| whole.at(*number).absence());
        let why = match (why, absent()) {
            (Some(StoreError::Lost { .. }) | None, Some(StoreError::Away { why, .. })) => why,
            (Some(why), _) => why.on_record(Role::Daemon),
            (None, _) => "its partitions are on other servers now".to_owned(),
        };
        let said = of.said.get(&serving.shown);
        if said.is_none_or(|(said, at)| *said != why || at.elapsed() >= SAY_AGAIN) {
            warn!(
                redis = serving.shown,
                partitions = ranges(&numbers),
                why,
                "a server of the cluster is not served now; the others go on"
            );
            of.said.insert(serving.shown, (why, Instant::now()));
        }
    }

    /// A server is served: the first time, and when none was.
    pub(super) fn has_begun_to_serve(&mut self, whole: &Whole, server: Option<&Server>, tracking: bool) {
        if std::mem::replace(&mut self.serves, Serves::Now) == Serves::Now {
            return;
        }
        let version = server.map_or("", |server| &server.version);
        self.progress.serving();
        self.waited_for = None;
        info!(redis = whole.shown(), version, tracking, "serving");
        systemd::ready();
    }
}

/// Numbers as people write them: `0-3, 7`.
fn ranges(numbers: &[u8]) -> String {
    let mut ranges: Vec<(u8, u8)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let shown = ranges.iter().map(|(from, to)| if from == to { from.to_string() } else { format!("{from}-{to}") });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_in_a_row_are_a_range() {
        assert_eq!(super::ranges(&[0, 1, 2, 3, 7, 9, 10]), "0-3, 7, 9-10");
        assert_eq!(super::ranges(&[]), "");
    }
}
