//! Changes of what is set: how long one may wait for another one that still spreads.

use std::time::{Duration, Instant};

use crate::store::change::{Change, Told};
use crate::store::link::OfStore;
use crate::store::{StoreError, Whole};
use crate::words::glob::Glob;
use crate::words::subject::Subject;

/// How long a change waits for one that still spreads, and after how long it asks whether anybody spreads it.
const WAIT_FOR_SPREAD: Duration = Duration::from_secs(60);
const WAIT_FOR_DAEMON: Duration = Duration::from_secs(1);

/// Why nothing was changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ChangeError {
    /// Redis did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is in force where it was made, and not yet everywhere.
    #[error(
        "{what} {subject}: it is stored, and partition {partitions} cannot take it yet, for an earlier change still spreads there; a daemon brings it"
    )]
    IsCarried {
        /// What was asked for.
        what: &'static str,
        /// Of what.
        subject: String,
        /// Where it is not in force yet.
        partitions: String,
    },
    /// Another change was on its way for all the time that this one waited.
    #[error("{what} {subject}: another change still spreads; nothing was changed; {way_out}")]
    Spreads {
        /// What was asked for.
        what: &'static str,
        /// Of what.
        subject: String,
        /// What would help.
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

/// Have a change in force in every partition.
async fn carry(store: &mut Whole, change: &Change) -> Result<(), ChangeError> {
    let busy = store.carry_within(WAIT_FOR_SPREAD).await?.busy;
    if busy.is_empty() {
        return Ok(());
    }
    let (what, subject) = (change.what, Subject::of_stored(&change.pattern).quoted());
    let partitions = busy.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
    Err(ChangeError::IsCarried { what, subject, partitions })
}

/// Make a change; where another one still spreads, when that is over.
///
/// # Errors
///
/// Nothing was changed.
pub async fn make(store: &mut Whole, change: &Change) -> Result<Told, ChangeError> {
    let since = Instant::now();
    // What was pushed while no daemon ran has been looked at by nobody: it is kept by what held until now. (Who is alive does not tell:
    // one that was killed counts for a while.)
    if change.is_glob && change.may_cut() {
        store.look_at_all(&Glob::parse(&change.pattern)).await?;
    }
    let mut asked = false;
    loop {
        match store.change(change).await? {
            Told::Busy if since.elapsed() < WAIT_FOR_DAEMON => tokio::time::sleep(Duration::from_millis(20)).await,
            Told::Busy => {
                let absent = (!asked || since.elapsed() >= WAIT_FOR_SPREAD)
                    && store.authority().daemons().await.is_ok_and(|daemons| daemons.is_empty());
                asked = true;
                if !absent && since.elapsed() < WAIT_FOR_SPREAD {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
                let way_out =
                    if absent { "no daemon runs to carry it on; start one with `dripd run`" } else { "try again" };
                let subject = Subject::of_stored(&change.pattern).quoted();
                return Err(ChangeError::Spreads { what: change.what, subject, way_out });
            }
            told => {
                carry(store, change).await?;
                return Ok(told);
            }
        }
    }
}
