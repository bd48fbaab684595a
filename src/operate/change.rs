//! Changes of what is set: made at the authority and carried into every partition, one at a time.

use std::time::{Duration, Instant};

use super::changed::Changed;
use super::target::Target;
use crate::model::glob::Glob;
use crate::model::subject::Subject;
use crate::store::change::Change;
use crate::store::link::OfStore;
use crate::store::{Partitions, StoreError};

/// How long a change waits for one that still spreads, and after how long it asks whether anybody spreads it.
const WAIT_FOR_SPREAD: Duration = Duration::from_secs(60);
const WAIT_FOR_DAEMON: Duration = Duration::from_secs(1);

/// How often it is tried again meanwhile.
const POLL_SPREAD: Duration = Duration::from_millis(20);

/// Why a change is not in force everywhere.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ChangeError {
    /// A call failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is in force where it was made, and not yet everywhere.
    #[error(
        "{what} {subject}: it is stored, and partition {partitions} cannot take it yet, for an earlier change still spreads there; a daemon brings it"
    )]
    IsCarried {
        /// The command.
        what: &'static str,
        /// The name or glob, in quotes.
        subject: String,
        /// Where it is not in force yet.
        partitions: String,
    },
    /// Another change was on its way for all the time that this one waited.
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

/// Carry a change into every partition.
async fn carry(store: &mut Partitions, change: &Change) -> Result<(), ChangeError> {
    let busy = store.replicate_within(WAIT_FOR_SPREAD).await?.busy;
    if busy.is_empty() {
        return Ok(());
    }
    let (what, subject) = (change.what, Subject::of_stored(&change.pattern).quoted());
    let partitions = busy.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
    Err(ChangeError::IsCarried { what, subject, partitions })
}

/// The parts of a change that every command has: what it is about, who asks for it, and why.
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

/// Make a change. While another one spreads, wait for it.
pub(super) async fn apply(store: &mut Partitions, change: &Change) -> Result<Changed, ChangeError> {
    let since = Instant::now();
    // What was pushed while no daemon ran has been looked at by nobody: it is kept by what held until now. (Who is alive does not tell:
    // one that was killed counts for a while.)
    if change.is_glob && change.may_cut() {
        store.look_at_all(&Glob::parse(&change.pattern)).await?;
    }
    let mut asked = false;
    loop {
        if let Some(changed) = Changed::of(change, store.change(change).await?) {
            carry(store, change).await?;
            return Ok(changed);
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
