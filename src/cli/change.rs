//! What the commands that change something at run time share: which buckets are meant, who asks, and how long a change may wait
//! for another one that still spreads.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;

use super::{Exit, Failure};
use crate::operate;
use crate::store::Whole;
use crate::store::change::{Author, Change, Told};
use crate::words::bucket::BucketName;
use crate::words::duration;
use crate::words::glob;
use crate::words::shown::line;
use crate::words::subject::Subject;

/// What each of these commands takes.
#[derive(Debug, Args)]
pub(super) struct Target {
    /// The name of a bucket, or a glob such as 'sms:*' (\ makes the next byte plain)
    #[arg(value_name = "NAME|GLOB")]
    pattern: String,
    /// Why, for whoever reads `dripd settings` later
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: Option<String>,
    /// Do not ask whether a glob for all buckets is meant
    #[arg(long)]
    yes: bool,
    #[arg(skip)]
    is_budget: bool,
}

/// Which of these commands are for budgets too.
#[derive(Debug, Args)]
pub(super) struct Kind {
    /// The name or glob means budgets, not buckets
    #[arg(long)]
    pub(super) budget: bool,
}

/// A reason, short enough to be kept.
fn reason(text: &str) -> Result<String, &'static str> {
    if text.len() <= 1_000 { Ok(text.to_owned()) } else { Err("at most 1,000 bytes") }
}

/// For how long a change holds.
#[derive(Debug, Args)]
pub(super) struct For {
    /// It ends by itself after so long: 10m, 2h
    #[arg(long = "for", value_name = "DURATION", value_parser = positive)]
    pub(super) lasts: Option<Duration>,
}

pub(super) fn positive(text: &str) -> Result<Duration, String> {
    let year = Duration::from_secs(366 * 86_400);
    let fits = |lasts: &Duration| (Duration::from_millis(1)..=year).contains(lasts);
    duration::parse(text)
        .filter(fits)
        .ok_or_else(|| "write a whole number and a unit (ms s m h d), as in 10m: 1ms to 366d".to_owned())
}

impl For {
    pub(super) fn micros(&self) -> Option<u64> {
        self.lasts.map(|lasts| u64::try_from(lasts.as_micros()).expect("at most 366 days"))
    }
}

impl Target {
    /// One bucket or budget, whatever its name looks like.
    pub(super) fn of_name(subject: &Subject) -> Self {
        Self { pattern: glob::of_name(subject.pattern), reason: None, yes: false, is_budget: subject.is_budget }
    }

    /// The same of buckets or of budgets.
    pub(super) fn of(self, kind: &Kind) -> Self {
        Self { is_budget: kind.budget, ..self }
    }

    /// How people call what is meant.
    pub(super) fn named(&self, kind: &Kind) -> String {
        Subject { is_budget: kind.budget, pattern: &self.pattern }.to_string()
    }

    /// Which buckets or budgets are meant.
    pub(super) fn subject(&self) -> Subject<'_> {
        Subject { is_budget: self.is_budget, pattern: &self.pattern }
    }

    /// Whether it is a glob; a name must be one that a bucket or a budget can have.
    pub(super) fn is_glob(&self) -> Result<bool, Failure> {
        if glob::is_glob(&self.pattern) {
            return Ok(true);
        }
        let kind = self.subject().kind();
        let why = |why| Failure::new(Exit::Usage, format!("{:?} can be no {kind}: {why}", self.pattern));
        BucketName::parse(self.pattern.as_bytes()).map(|_| false).map_err(why)
    }

    /// A glob that means every bucket, or every budget, is asked about.
    pub(super) fn confirm(&self, question: &str) -> Result<(), Failure> {
        if glob::has_plain_byte(&self.pattern) { Ok(()) } else { confirm(question, self.yes) }
    }

    /// A change of what is set for it, by whoever runs this.
    pub(super) async fn change(&self, store: &mut Whole, what: &'static str) -> Result<Change, Failure> {
        let (pattern, reason) = (self.subject().stored(), self.reason.clone());
        Ok(Change {
            what,
            pattern,
            is_glob: self.is_glob()?,
            by: by(),
            user: store.whoami().await,
            reason,
            ..Change::default()
        })
    }
}

/// Ask whether it is meant. Without a terminal nobody can be asked.
pub(super) fn confirm(question: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(Failure::new(
            Exit::Usage,
            format!("{question} There is no terminal to ask at; add --yes if it is meant"),
        ));
    }
    let _ = write!(std::io::stderr(), "{} [y/N] ", line(question));
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    let is_yes = matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    if is_yes { Ok(()) } else { Err(Failure::new(Exit::Failed, "nothing was changed")) }
}

/// Who runs this command: user@host.
pub(super) fn by() -> String {
    // `sudo` hides who it was.
    let user = std::env::var("SUDO_USER").ok().filter(|name| !name.is_empty()).or_else(|| whoami::username().ok());
    let user = user.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    format!("{user}@{}", rustix::system::uname().nodename().to_string_lossy())
}

/// The same with who Redis says that this is.
pub(super) async fn author(store: &mut Whole) -> Author {
    Author { by: by(), user: store.whoami().await }
}

/// Make a change; where another one still spreads, when that is over.
pub(super) async fn make(store: &mut Whole, change: &Change) -> Result<Told, Failure> {
    Ok(operate::change::make(store, change).await?)
}
