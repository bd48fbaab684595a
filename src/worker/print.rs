//! A line of standard output per job.

use std::sync::Arc;

use tokio::io::{AsyncWriteExt, Stdout};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Job, Outcome};

/// Standard output, shared by the slots.
#[derive(Debug, Clone)]
pub struct Print {
    out: Arc<Mutex<Stdout>>,
    closed: CancellationToken,
}

impl Print {
    /// Print until nobody reads any more: then `closed` is cancelled, and the job in hand is given back.
    #[must_use]
    pub fn new(closed: CancellationToken) -> Self {
        Self { out: Arc::new(Mutex::new(tokio::io::stdout())), closed }
    }

    pub(super) async fn run(&self, job: &Job) -> Outcome {
        let mut out = self.out.lock().await;
        let mut line = job.body.clone();
        line.push(b'\n');
        let written = async {
            out.write_all(&line).await?;
            out.flush().await
        };
        match written.await {
            Ok(()) => Outcome::Done,
            Err(why) => {
                self.closed.cancel();
                Outcome::GivenBack(Some(std::time::Duration::ZERO), format!("standard output: {why}"))
            }
        }
    }
}
