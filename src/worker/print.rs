//! A line of standard output per job.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, Stdout};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Job, Outcome};
use crate::model::escape::escaped;

/// Standard output, shared by the slots.
#[derive(Debug, Clone)]
pub struct Print {
    out: Arc<Mutex<Stdout>>,
    closed: CancellationToken,
    /// People look at it: a job must not command their terminal.
    is_terminal: bool,
}

impl Print {
    /// Print until nobody reads any more: then `closed` is cancelled, and the job in hand is given back.
    pub fn new(closed: CancellationToken) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self { out: Arc::new(Mutex::new(tokio::io::stdout())), closed, is_terminal }
    }

    /// Write a line. When the run is dropped because nobody reads, a part of the line may have gone out.
    pub(super) async fn run(&self, job: &Job) -> Outcome {
        let mut out = self.out.lock().await;
        let mut line = if self.is_terminal { escaped(&job.body).into_bytes() } else { job.body.clone() };
        line.push(b'\n');
        let written = async {
            out.write_all(&line).await?;
            out.flush().await
        };
        match written.await {
            Ok(()) => Outcome::Done,
            Err(why) => {
                self.closed.cancel();
                Outcome::GivenBack(Some(Duration::ZERO), format!("standard output: {why}"))
            }
        }
    }
}
