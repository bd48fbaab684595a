//! `dripd bench`: measure what it costs and how true its pace is. The instrument is built with the feature `bench` only.

use clap::Args;

use super::{Exit, Failure};

/// Measure what it costs and how true its pace is.
#[cfg(feature = "bench")]
#[derive(Debug, Args)]
#[command(after_help = "Rows appear on standard error as they are measured, the table on standard output at the end; \
                        all suites take less than ten minutes.\n\nExit codes: 0 measured, 1 a part failed")]
pub(super) struct Bench {
    #[arg(help = "What to measure [default: all but peers]")]
    suites: Vec<crate::bench::Suite>,
    #[command(flatten)]
    output: crate::bench::Output,
}

#[cfg(feature = "bench")]
impl Bench {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let measured = tokio::task::spawn_blocking(move || crate::bench::run(&self.suites, &self.output));
        let mut signals = crate::system::signals::Signals::listen()?;
        let interrupted = async { while signals.next().await == crate::system::signals::Signal::Status {} };
        tokio::select! {
            measured = measured => {
                let table = measured.map_err(std::io::Error::other)??;
                super::say(table.trim_end());
                Ok(Exit::Done)
            }
            () = interrupted => Err(Failure::new(Exit::Failed, "interrupted")),
        }
    }
}

/// Measure what it costs and how true its pace is (not in this build).
#[cfg(not(feature = "bench"))]
#[derive(Debug, Args)]
pub(super) struct Bench {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _suites: Vec<String>,
}

#[cfg(not(feature = "bench"))]
impl Bench {
    #[expect(clippy::unused_async, reason = "every command is")]
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let why = "this dripd was built without its benchmark; in the source tree, `make bench` builds one and runs it";
        Err(Failure::new(Exit::Usage, why))
    }
}
