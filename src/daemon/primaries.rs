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
use crate::store::partition::AUTHORITY;
use crate::store::server::Server;
use crate::store::{StoreError, Whole};
use crate::system::systemd;
use crate::words::cut::ranges;

/// The wait before a server that could not be served is tried again.
const AGAIN: Duration = Duration::from_millis(250);

/// What is said where the record waits for the authority.
const AUTHORITY_MOVES: &str = "partition 0 is on the move to another server: it is served, and the configuration of this daemon comes into force, when it \
                               has arrived; until then the other partitions go on with the configuration that they have, and where there is none yet nothing leaves them";

/// The sessions with the servers of a cluster, by the number of their connections.
#[derive(Default)]
pub(super) struct Primaries {
    known: HashMap<u64, Serving>,
    /// When a session with a server failed: the next one waits a little.
    failed: HashMap<String, Instant>,
    /// What the log said of servers that are not served, and when.
    said: HashMap<String, (String, Instant)>,
    /// The first look is over.
    has_begun: bool,
}

impl Primaries {
    /// Whether the record was to be put into force by a session that is not yet ready.
    pub(super) fn put(&self) -> bool {
        self.known.values().any(|serving| serving.puts)
    }

    /// Whether a session with a server failed a moment ago.
    fn rests(&self, shown: &str) -> bool {
        self.failed.get(shown).is_some_and(|at| at.elapsed() < AGAIN)
    }

    /// Whether something is to be said of a server: it is new, or was said a minute ago. From now on it was said.
    fn is_news(&mut self, shown: &str, why: &str) -> bool {
        let said = self.said.get(shown);
        let is_news = said.is_none_or(|(said, at)| *said != why || at.elapsed() >= SAY_AGAIN);
        if is_news {
            self.said.insert(shown.to_owned(), (why.to_owned(), Instant::now()));
        }
        is_news
    }
}

/// A session with one server. It has a connection of its own, which ends with it: so what comes back late is of no other session.
struct Serving {
    shown: String,
    stop: CancellationToken,
    /// What ends the loops of each of its partitions.
    partitions: BTreeMap<u8, CancellationToken>,
    reconciler: CancellationToken,
    /// It, or what has come to it, is being made ready.
    is_busy: bool,
    /// The record is put into force meanwhile.
    puts: bool,
    /// It could not be, for the authority is on the move: until then that is not asked again.
    authority_rests: Option<Instant>,
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
        if !std::mem::replace(&mut of.has_begun, true) {
            say_who_is_away(whole);
        }
        let now = whole.primaries();
        let is_there = |line: &u64| now.iter().any(|primary| primary.line() == *line);
        let gone: Vec<u64> = of.known.keys().filter(|line| !is_there(line)).copied().collect();
        for line in gone {
            self.end_primary(of, line, None, whole);
        }
        for primary in now {
            let (line, numbers) = (primary.line(), primary.numbers());
            if !of.known.contains_key(&line) && of.rests(primary.shown()) {
                continue; // it is tried again in a moment
            }
            let serving = of.known.entry(line).or_insert_with(|| Serving::new(primary.shown(), stop));
            let gone: Vec<u8> = serving.partitions.keys().filter(|number| !numbers.contains(number)).copied().collect();
            for number in &gone {
                serving.partitions.remove(number).expect("one of them").cancel();
                self.progress.left(*number);
            }
            say_where(&serving.shown, &gone, whole);
            let is_new = serving.tracking.is_none();
            let rests = serving.authority_rests.is_some_and(|until| Instant::now() < until);
            let stays = |number| serving.partitions.contains_key(&number) || rests && number == AUTHORITY;
            let added = primary.only(|number| !stays(number));
            // One that is being made ready takes what has come to it meanwhile when it is.
            if serving.is_busy || (!is_new && added.numbers().is_empty()) {
                continue;
            }
            serving.is_busy = true;
            for number in added.numbers() {
                serving.partitions.insert(number, serving.stop.child_token());
            }
            serving.puts = added.has_authority() && std::mem::take(&mut self.must_put);
            let (reports, progress, puts) = (Arc::clone(&self.reports), Arc::clone(&self.progress), serving.puts);
            let making = make_ready(whole.clone(), added, is_new, reports, progress, self.config.clone(), puts);
            tasks.spawn(async move { Ended::Ready { line, made: making.await.map(Box::new) } });
        }
    }

    /// A server was made ready, or could not be.
    pub(super) fn primary_ready(
        &mut self,
        of: &mut Primaries,
        (line, made): (u64, Result<Box<Made>, StoreError>),
        tasks: &mut JoinSet<Ended>,
        whole: &Whole,
        stop: &CancellationToken,
    ) -> Option<End> {
        let made = match made {
            Ok(made) => *made,
            Err(why) => return self.primary_failed(of, line, why, tasks, whole),
        };
        if let Some(server) = &made.server {
            self.warn_about(server);
        }
        if let Some(is_own) = made.is_own.filter(|_| !self.must_put) {
            self.say_whose_record(is_own);
        }
        let serving = of.known.get_mut(&line)?; // it was lost meanwhile
        let (put, shown) = (std::mem::take(&mut serving.puts), serving.shown.clone());
        if made.puts_later {
            self.must_put |= put;
            serving.wait_for_authority(tasks);
            if of.is_news(&shown, AUTHORITY_MOVES) {
                warn!(redis = shown, "{AUTHORITY_MOVES}");
            }
        } else if of.said.remove(&shown).is_some() {
            self.progress.serving(); // once more
        }
        let serving = of.known.get_mut(&line)?;
        if made.puts_later && made.primary.numbers().is_empty() && serving.tracking.is_some() {
            serving.is_busy = false;
            return None; // it was asked for that alone, and nothing has changed
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
            let all = all.only(|number| serving.partitions.contains_key(&number));
            let (numbers, reconciler) = (all.numbers(), serving.reconciler.clone());
            if !numbers.is_empty() {
                info!(
                    redis = serving.shown,
                    partitions = ranges(&numbers),
                    tracking,
                    "serving a server of the cluster"
                );
                self.start_reconciler(tasks, all, Some(line), tracking, &reconciler);
            }
        }
        self.progress.partitions_begun.send_modify(|n| *n += 1);
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
        whole.give_up(line);
        again(tasks);
        None
    }

    /// End the loops of a server, and say so: when the reason is new, or was said a minute ago.
    fn end_primary(&mut self, of: &mut Primaries, line: u64, why: Option<&StoreError>, whole: &Whole) {
        let Some(serving) = of.known.remove(&line) else { return };
        serving.stop.cancel();
        serving.reconciler.cancel();
        self.must_put |= serving.puts;
        let numbers: Vec<u8> = serving.partitions.into_keys().collect();
        for number in &numbers {
            self.progress.left(*number);
        }
        let absent = || numbers.iter().find_map(|number| whole.at(*number).absence());
        let why = match (why, absent()) {
            (Some(StoreError::Lost { .. } | StoreError::Away { .. }) | None, Some(StoreError::Away { why, .. })) => why,
            (Some(why), _) => {
                of.failed.insert(serving.shown.clone(), Instant::now());
                why.on_record(Role::Daemon)
            }
            (None, _) => {
                say_where(&serving.shown, &numbers, whole);
                info!(redis = serving.shown, "the session with a server of the cluster ended");
                return;
            }
        };
        if of.is_news(&serving.shown, &why) {
            warn!(
                redis = serving.shown,
                partitions = ranges(&numbers),
                why,
                "a server of the cluster is not served now; the others go on"
            );
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

impl Serving {
    fn new(shown: &str, stop: &CancellationToken) -> Self {
        let shown = shown.to_owned();
        let (stop, reconciler) = (stop.child_token(), stop.child_token());
        Self {
            shown,
            stop,
            partitions: BTreeMap::new(),
            reconciler,
            is_busy: false,
            puts: false,
            authority_rests: None,
            tracking: None,
        }
    }

    /// The record cannot be put into force yet, for the authority is on the move: that is tried again in a moment.
    fn wait_for_authority(&mut self, tasks: &mut JoinSet<Ended>) {
        self.partitions.remove(&AUTHORITY);
        self.authority_rests = Some(Instant::now() + AGAIN);
        again(tasks);
    }
}

/// What could not be done is tried again in a moment.
fn again(tasks: &mut JoinSet<Ended>) {
    tasks.spawn(async {
        tokio::time::sleep(AGAIN).await;
        Ended::Again
    });
}

/// Say where partitions of a server have gone. Those that are away are named with the reason; those that are there again are no news.
fn say_where(redis: &str, numbers: &[u8], whole: &Whole) {
    let (mut moved, mut away) = (BTreeMap::<String, Vec<u8>>::new(), BTreeMap::<String, Vec<u8>>::new());
    for number in numbers {
        let store = whole.at(*number);
        match store.absence() {
            Some(StoreError::Away { node, why, .. }) => away.entry(format!("{node}: {why}")).or_default().push(*number),
            _ if store.shown() == redis => {}
            _ => moved.entry(store.shown().to_owned()).or_default().push(*number),
        }
    }
    for (to, numbers) in moved {
        info!(redis, partitions = ranges(&numbers), to, "partitions have moved to another server");
    }
    for (why, numbers) in away {
        warn!(redis, partitions = ranges(&numbers), why, "partitions have left a server and are away");
    }
}

/// Say at first which partitions are away, and why; later that is said when they leave.
fn say_who_is_away(whole: &Whole) {
    let mut away = BTreeMap::<(String, String), Vec<u8>>::new();
    for store in whole.each() {
        if let Some(StoreError::Away { partition, node, why }) = store.absence() {
            away.entry((node, why)).or_default().push(partition);
        }
    }
    for ((redis, why), numbers) in away {
        warn!(
            redis,
            partitions = ranges(&numbers),
            why,
            "partitions are away; they are served as soon as their server is there"
        );
    }
}
