//! Arguments that are shared by the commands which change something at run time, the question before a change, and the
//! name of the user.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;

use super::{Exit, Failure};
use crate::model::bucket::BucketName;
use crate::model::escape::line;
use crate::model::subject::Subject;
use crate::operate::bounds;
use crate::operate::node_request::NodeRequest;
use crate::operate::target::{Target, one_name};

/// The arguments that say what a command acts on, and why.
#[derive(Debug, Args)]
pub(super) struct TargetArgs {
    /// The name of a bucket, or a glob such as 'sms:*' (\ makes the next byte plain)
    #[arg(value_name = "NAME|GLOB")]
    pattern: String,
    /// Why, for whoever reads `dripd settings` later
    #[arg(long, value_name = "TEXT", value_parser = bounds::reason)]
    pub(super) reason: Option<String>,
    /// Do not ask whether a glob for all buckets is meant
    #[arg(long)]
    yes: bool,
}

/// Which of these commands are for budgets too.
#[derive(Debug, Args)]
pub(super) struct KindArgs {
    /// The name or glob means budgets, not buckets
    #[arg(long)]
    pub(super) budget: bool,
}

/// For how long a change holds.
#[derive(Debug, Args)]
pub(super) struct TimeArgs {
    /// It ends by itself after so long: 10m, 2h
    #[arg(long = "for", value_name = "DURATION", value_parser = bounds::time)]
    pub(super) lasts: Option<Duration>,
}

/// The arguments that name one bucket or budget, whose slow-down or told limit is changed, and why. They stand behind those that
/// say how it is changed, whose help comes first.
#[derive(Debug, Args)]
pub(super) struct NodeArgs {
    /// The name of a bucket
    #[arg(index = 1, value_parser = one_name)]
    name: BucketName,
    #[arg(long = "in", value_name = "BUDGET", value_parser = one_name)]
    within: Option<BucketName>,
    /// The name means a budget, not a bucket
    #[arg(long, conflicts_with = "within")]
    budget: bool,
    #[arg(long, value_name = "TEXT", value_parser = bounds::reason)]
    reason: Option<String>,
}

impl NodeArgs {
    /// The node, in words.
    pub(super) fn about(&self) -> String {
        match &self.within {
            Some(budget) => format!("{} above {}", Subject { is_budget: true, pattern: budget.as_str() }, self.name),
            None => Subject { is_budget: self.budget, pattern: self.name.as_str() }.to_string(),
        }
    }

    /// What is asked for of the node; none: that it ends, or is forgotten.
    pub(super) fn request<W>(self, what: Option<W>) -> NodeRequest<W> {
        NodeRequest { target: Target::named(self.budget, &self.name), what, within: self.within, reason: self.reason }
    }
}

impl TargetArgs {
    /// The name or the glob, as it was written.
    pub(super) fn subject(&self, is_budget: bool) -> Subject<'_> {
        Subject { is_budget, pattern: &self.pattern }
    }

    /// The target of the command. The user is asked first where a glob may match every bucket or every budget;
    /// `question` says what is done with what it matches.
    pub(super) fn confirmed(&self, is_budget: bool, question: &str) -> Result<Target, Failure> {
        let kind = self.subject(is_budget).kind();
        let no_name = |why| Failure::new(Exit::Usage, format!("{:?} can be no {kind}: {why}", self.pattern));
        let target = Target::parse(is_budget, &self.pattern).map_err(no_name)?;
        if target.is_everything() {
            let means = match target.not_itself() {
                Some(way_out) => format!("{way_out}. As a glob it may mean any {kind}"),
                None => format!("{:?} means every {kind}", self.pattern),
            };
            confirm(&format!("{means}: {question}"), self.yes)?;
        }
        Ok(target)
    }
}

/// Ask the user whether a change is meant, unless `yes`. Without a terminal nobody can be asked, which is an error.
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

/// The user who runs this command: user@host.
pub(super) fn by() -> String {
    // Under `sudo` only $SUDO_USER tells who the user is.
    let user = std::env::var("SUDO_USER").ok().filter(|name| !name.is_empty()).or_else(|| whoami::username().ok());
    let user = user.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    format!("{user}@{}", rustix::system::uname().nodename().to_string_lossy())
}
