//! `pause`, `resume`, `close` and `open`: stop what leaves a bucket or what enters it, and end that.

use std::fmt;
use std::time::Duration;

use serde_json::json;

use super::change::{ChangeError, apply, draft};
use super::changed::Changed;
use super::target::{NO_JOB_WAITS, Target};
use crate::model::counted::counted;
use crate::model::escape::shell;
use crate::model::subject::Subject;
use crate::store::acl::Role;
use crate::store::change::{Change, Out, SetTo};
use crate::store::{Partitions, StoreError};

/// The side of a bucket that is stopped: jobs that leave, or jobs that come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Nothing leaves: a pause.
    Out,
    /// Nothing enters: a closure.
    In,
}

/// Stop what leaves a bucket, or what enters it.
#[derive(Debug, Clone)]
pub struct PauseRequest {
    /// A pause or a closure.
    pub direction: Direction,
    /// The buckets or budgets.
    pub target: Target,
    /// How long it lasts; without it until somebody ends it.
    pub lasts: Option<Duration>,
    /// The reason that the operator gave, if any.
    pub reason: Option<String>,
}

/// End a pause or a closure.
#[derive(Debug, Clone)]
pub struct ResumeRequest {
    /// A pause or a closure.
    pub direction: Direction,
    /// The buckets or budgets.
    pub target: Target,
    /// The reason that the operator gave, if any.
    pub reason: Option<String>,
}

impl Direction {
    /// The command that stops, and its key among the settings.
    pub fn stop_command(self) -> &'static str {
        if self == Self::Out { "pause" } else { "close" }
    }

    /// The command that ends it.
    pub fn resume_command(self) -> &'static str {
        if self == Self::Out { "resume" } else { "open" }
    }

    /// The state of a bucket that is stopped.
    pub fn state(self) -> &'static str {
        if self == Self::Out { "paused" } else { "closed" }
    }
}

/// A pause or a closure, with the figures that people are shown.
#[derive(Debug)]
pub struct PauseReport {
    direction: Direction,
    changed: Changed,
    /// For a glob or a budget: the number of buckets with work that it applies to.
    buckets_met: Option<u64>,
    /// For a pause: the jobs that have left already and are not called back.
    jobs_out: Option<Result<Out, StoreError>>,
}

impl PauseRequest {
    /// Stop the jobs, in the name of `by`.
    ///
    /// # Errors
    ///
    /// [`ChangeError`]: nothing was changed, or not everywhere.
    pub async fn run(&self, store: &mut Partitions, by: &str) -> Result<Changed, ChangeError> {
        let what = self.direction.stop_command();
        let yes = SetTo { text: "yes".to_owned(), policy: json!({}) };
        let change = Change {
            set: [(what.to_owned(), yes)].into(),
            for_us: self.lasts.map(|lasts| u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX)),
            ..draft(store, what, &self.target, by, self.reason.as_ref()).await
        };
        apply(store, &change).await
    }

    /// Stop the jobs, and count the buckets and jobs that this concerns.
    ///
    /// # Errors
    ///
    /// [`ChangeError`]: nothing was changed, or not everywhere.
    pub async fn run_counted(&self, store: &mut Partitions, by: &str) -> Result<PauseReport, ChangeError> {
        let (direction, subject) = (self.direction, self.target.subject());
        // Buckets are counted first: while a change spreads, they change their states.
        let buckets_met = if self.target.is_glob() || subject.is_budget {
            Some(store.buckets_met(&subject.stored(), self.target.is_glob()).await?)
        } else {
            None
        };
        let changed = self.run(store, by).await?;
        let jobs_out = if direction == Direction::Out { Some(self.jobs_out(store).await) } else { None };
        Ok(PauseReport { direction, changed, buckets_met, jobs_out })
    }

    /// The jobs that have left already, which a pause does not call back.
    ///
    /// # Errors
    ///
    /// A call to Redis fails.
    pub async fn jobs_out(&self, store: &mut Partitions) -> Result<Out, StoreError> {
        store.jobs_out(&self.target.subject().stored(), self.target.is_glob()).await
    }
}

impl fmt::Display for PauseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = self.changed.subject();
        write!(f, "{subject}: {}", self.direction.state())?;
        if let Some(buckets) = self.buckets_met {
            let below = if subject.is_budget { " below" } else { "" };
            write!(f, "; {}{below} with work now", counted(buckets, "bucket", "buckets"))?;
        }
        let whose = if self.buckets_met.is_some() { "their" } else { "its" };
        match &self.jobs_out {
            None => {}
            Some(Ok(Out { ready: 0, with_workers: 0 })) => write!(f, "; none of {whose} jobs is out")?,
            Some(Ok(Out { ready, with_workers })) => {
                let out = ready + with_workers;
                let jobs = counted(out, "job is", "jobs are");
                write!(f, "; {jobs} out already and not called back: {ready} ready, {with_workers} with workers")?;
            }
            Some(Err(why)) => {
                write!(f, "; how many of {whose} jobs are out is not known: {}", why.in_words(Role::Operator))?;
            }
        }
        let are_out = matches!(&self.jobs_out, Some(Ok(out)) if out.ready + out.with_workers > 0);
        match &self.changed.note {
            Some(note) if !(are_out && note == NO_JOB_WAITS) => write!(f, "; {note}"),
            _ => Ok(()),
        }
    }
}

impl ResumeRequest {
    /// End the pause or the closure, in the name of `by`.
    ///
    /// # Errors
    ///
    /// [`ChangeError`]: nothing was changed, or not everywhere.
    pub async fn run(&self, store: &mut Partitions, by: &str) -> Result<Changed, ChangeError> {
        let direction = self.direction;
        let change = Change {
            unset: vec![direction.stop_command().to_owned()],
            asks: Some(direction.state()),
            ..draft(store, direction.resume_command(), &self.target, by, self.reason.as_ref()).await
        };
        apply(store, &change).await
    }

    /// The outcome for people.
    ///
    /// # Errors
    ///
    /// The target is stopped by another name or glob all the same, or was not stopped under this one. The error says
    /// the way out.
    pub fn describe(&self, changed: &Changed) -> Result<String, String> {
        let (subject, state) = (self.target.subject(), self.direction.state());
        let nothing = format!("nothing is {state} under {}", subject.quoted());
        Err(match (changed.done, changed.stopped_by.as_deref().map(Subject::of_stored)) {
            (true, None) => return Ok(format!("{subject}: {state} no more{}", self.read_as())),
            (true, Some(by)) => {
                let (of, command) = (by.quoted(), self.command(&by));
                format!("{subject}: its own is taken away, but {of} still has it {state}; {command}")
            }
            (false, Some(by)) => format!("{nothing}; {} has it {state}: {}", by.quoted(), self.command(&by)),
            (false, None) => format!("{nothing}; `dripd settings` lists what is{}", self.read_as()),
        })
    }

    /// How a glob was read that does not match the bucket of this very name.
    fn read_as(&self) -> String {
        self.target.not_itself().map_or_else(String::new, |note| format!("; {note}"))
    }

    /// The command that ends the stop of another name or glob.
    fn command(&self, by: &Subject) -> String {
        let flag = if by.is_budget { " --budget" } else { "" };
        format!("`dripd {}{flag} {}`", self.direction.resume_command(), shell(by.pattern))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::change::ChangeOutcome;

    fn changed(pattern: &str, told: ChangeOutcome) -> Changed {
        Changed::of(&Change { pattern: pattern.to_owned(), ..Change::default() }, told).expect("it is over")
    }

    #[test]
    fn a_report_of_a_pause_says_what_it_meets_and_what_it_cannot_call_back() {
        let report = |pattern, buckets_met, ready| {
            let jobs_out = Some(Ok(Out { ready, with_workers: 0 }));
            let changed = changed(pattern, ChangeOutcome::Nothing { stopped_by: None });
            PauseReport { direction: Direction::Out, changed, buckets_met, jobs_out }.to_string()
        };
        assert_eq!(report("acme", None, 0), "acme: paused; none of its jobs is out");
        assert_eq!(
            report("{twilio}", Some(1), 1),
            "budget twilio: paused; 1 bucket below with work now; 1 job is out already and not called back: 1 ready, 0 with workers"
        );
    }

    #[test]
    fn a_resume_names_what_still_stops_it() {
        let target = Target::parse(false, "acme").expect("a name");
        let request = ResumeRequest { direction: Direction::In, target, reason: None };
        let describe = |told| request.describe(&changed("acme", told));
        let done = |stopped_by| ChangeOutcome::Done { keys: Vec::new(), stopped_by, others: [].into() };
        assert_eq!(describe(done(None)), Ok("acme: closed no more".to_owned()));
        assert_eq!(
            describe(done(Some("{a*}".to_owned()))),
            Err("acme: its own is taken away, but budget \"a*\" still has it closed; `dripd open --budget 'a*'`"
                .to_owned())
        );
        assert_eq!(
            describe(ChangeOutcome::Nothing { stopped_by: None }),
            Err("nothing is closed under \"acme\"; `dripd settings` lists what is".to_owned())
        );
    }
}
