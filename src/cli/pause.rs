//! `dripd pause`, `resume`, `close` and `open`: stop jobs that leave a bucket, or jobs that come, and end that.

use clap::Args;

use super::change::{KindArgs, TargetArgs, TimeArgs, by};
use super::{Exit, Failure, connect, say};
use crate::config::Config;
use crate::operate::pause::{Direction, PauseRequest, ResumeRequest};

/// Let nothing out of a bucket, or of what is below a budget.
#[derive(Debug, Args)]
pub(super) struct Pause {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    #[command(flatten)]
    pub(super) lasts: TimeArgs,
    #[command(flatten)]
    pub(super) kind: KindArgs,
}

/// Let a bucket, or what is below a budget, go on.
#[derive(Debug, Args)]
pub(super) struct Resume {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    #[command(flatten)]
    pub(super) kind: KindArgs,
}

/// Let nothing into a bucket.
#[derive(Debug, Args)]
pub(super) struct Close {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    #[command(flatten)]
    pub(super) lasts: TimeArgs,
}

/// Let jobs into a bucket again.
#[derive(Debug, Args)]
pub(super) struct Open {
    #[command(flatten)]
    pub(super) target: TargetArgs,
}

/// Stop the jobs, and report the buckets and jobs that this concerns.
pub(super) async fn stop(
    config: &Config,
    direction: Direction,
    args: TargetArgs,
    is_budget: bool,
    time: TimeArgs,
) -> Result<Exit, Failure> {
    let target = args.confirmed(is_budget, &format!("{} all of them?", direction.stop_command()))?;
    let request = PauseRequest { direction, target, lasts: time.lasts, reason: args.reason };
    let report = request.run_counted(&mut connect(config).await?, &by()).await?;
    say(&report.to_string());
    Ok(Exit::Done)
}

/// Let the jobs leave, or come, again.
pub(super) async fn resume(
    config: &Config,
    direction: Direction,
    args: TargetArgs,
    is_budget: bool,
) -> Result<Exit, Failure> {
    let (command, state) = (direction.resume_command(), direction.state());
    let target = args.confirmed(is_budget, &format!("{command} what was {state} under it?"))?;
    let request = ResumeRequest { direction, target, reason: args.reason };
    let changed = request.run(&mut connect(config).await?, &by()).await?;
    say(&request.describe(&changed).map_err(|why| Failure::new(Exit::Failed, why))?);
    Ok(Exit::Done)
}
