//! Changes of run-time settings: made at the authority, the partition whose settings hold for all, and carried into
//! every partition, one change at a time.

use std::time::{Duration, Instant};

use super::changed::Changed;
use super::target::Target;
use crate::model::glob::Glob;
use crate::model::subject::Subject;
use crate::store::change::Change;
use crate::store::link::OfStore;
use crate::store::{Partitions, StoreError};

/// How long a change waits for an earlier one that still spreads; and after how long it asks whether any daemon runs to
/// spread it.
const WAIT_FOR_SPREAD: Duration = Duration::from_secs(60);
const WAIT_FOR_DAEMON: Duration = Duration::from_secs(1);

/// How often a change is tried again while it waits.
const POLL_SPREAD: Duration = Duration::from_millis(20);

/// The error of a change that is not in force everywhere.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ChangeError {
    /// A call to Redis failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The change is in force at the authority, and not yet in every partition.
    #[error(
        "{what} {subject}: it is stored, and partition {partitions} cannot take it yet, for an earlier change still spreads there; a daemon brings it"
    )]
    IsCarried {
        /// The command.
        what: &'static str,
        /// The name or glob, in quotes.
        subject: String,
        /// The numbers of the partitions in which the change is not in force yet.
        partitions: String,
    },
    /// Another change still spreads: this one waited for a minute in vain, or no daemon runs to spread that one.
    #[error("{what} {subject}: another change still spreads; nothing was changed; {way_out}")]
    Spreads {
        /// The command.
        what: &'static str,
        /// The name or glob, in quotes.
        subject: String,
        /// The way out.
        way_out: &'static str,
    },
}

impl OfStore for ChangeError {
    fn of_store(&self) -> Option<&StoreError> {
        match self {
            Self::Store(why) => Some(why),
            Self::Spreads { .. } | Self::IsCarried { .. } => None,
        }
    }
}

/// Carry a change into every partition. While earlier changes spread there, wait for up to [`WAIT_FOR_SPREAD`].
async fn carry(store: &mut Partitions, change: &Change) -> Result<(), ChangeError> {
    let busy = store.replicate_within(WAIT_FOR_SPREAD).await?.busy;
    if busy.is_empty() {
        return Ok(());
    }
    let (what, subject) = (change.what, Subject::of_stored(&change.pattern).quoted());
    let partitions = busy.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
    Err(ChangeError::IsCarried { what, subject, partitions })
}

/// The parts of a change that every command has: its target, its author and its reason.
pub(super) async fn draft(
    store: &mut Partitions,
    what: &'static str,
    target: &Target,
    by: &str,
    reason: Option<&String>,
) -> Change {
    Change {
        what,
        pattern: target.subject().stored(),
        is_glob: target.is_glob(),
        by: by.to_owned(),
        user: store.whoami().await,
        reason: reason.cloned(),
        ..Change::default()
    }
}

/// Make a change and carry it into every partition. While another one spreads, wait and try again.
pub(super) async fn apply(store: &mut Partitions, change: &Change) -> Result<Changed, ChangeError> {
    let since = Instant::now();
    // Jobs that were pushed while no daemon ran have not been compared with a capacity yet. The settings that held
    // until now must judge them, so every queue that the glob matches is looked at first. (The list of daemons that are
    // alive does not help: a killed daemon counts as alive for a while.)
    if change.is_glob && change.may_cut() {
        store.look_at_all(&Glob::parse(&change.pattern)).await?;
    }
    let target = Target::of_change(change);
    let note = target.note(store).await; // not later: the jobs that wait may leave at once then
    let mut asked = false;
    loop {
        if let Some(changed) = Changed::of(change, store.change(change).await?) {
            carry(store, change).await?;
            // What is taken back was set: the name is known.
            let is_known = changed.done && change.set.is_empty();
            return Ok(Changed { note: if is_known { target.not_itself() } else { note }, ..changed });
        }
        if since.elapsed() >= WAIT_FOR_DAEMON {
            let is_over = since.elapsed() >= WAIT_FOR_SPREAD;
            let is_absent = (!asked || is_over) && store.authority().daemons().await.is_ok_and(|all| all.is_empty());
            asked = true;
            if is_absent || is_over {
                let way_out =
                    if is_absent { "no daemon runs to carry it on; start one with `dripd run`" } else { "try again" };
                let subject = Subject::of_stored(&change.pattern).quoted();
                return Err(ChangeError::Spreads { what: change.what, subject, way_out });
            }
        }
        tokio::time::sleep(POLL_SPREAD).await;
    }
}
