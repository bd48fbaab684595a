//! `dripd slow`: slow a bucket or a budget down by hand, before its other side tells a worker to wait; or end a
//! slow-down.

use std::time::Duration;

use clap::Args;

use super::change::{NodeArgs, by};
use super::{Exit, Failure, connect, say};
use crate::config::Config;
use crate::operate::bounds;

/// Slow down a bucket or a budget for a while, or end that.
#[derive(Debug, Args)]
#[command(mut_arg("within", |arg| arg.help("Slow down this budget above the bucket, and so all that is below it")))]
#[command(mut_arg("reason", |arg| arg.help("Why, for whoever reads `dripd settings` later")))]
pub(super) struct Slow {
    /// For how long, as in 30s, or `clear`: it goes on now, at its full rate
    #[arg(index = 2, value_name = "DURATION|clear", value_parser = how_long)]
    how_long: HowLong,
    #[command(flatten)]
    node: NodeArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HowLong {
    Clear,
    For(Duration),
}

fn how_long(text: &str) -> Result<HowLong, String> {
    if text == "clear" {
        return Ok(HowLong::Clear);
    }
    bounds::time(text).map(HowLong::For).map_err(|why| format!("{why}; or clear"))
}

impl Slow {
    pub(super) fn action(&self) -> String {
        let about = self.node.about();
        match self.how_long {
            HowLong::Clear => format!("end the slow-down of {about}"),
            HowLong::For(_) => format!("slow down {about}"),
        }
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let lasts = match self.how_long {
            HowLong::Clear => None,
            HowLong::For(lasts) => Some(lasts),
        };
        let request = self.node.request(lasts);
        let slowed = request.run(&mut connect(config).await?, &by()).await?;
        say(&request.describe(&slowed));
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_for_a_duration_or_is_cleared() {
        assert_eq!(how_long("clear"), Ok(HowLong::Clear));
        assert_eq!(how_long("90s"), Ok(HowLong::For(Duration::from_secs(90))));
        for bad in ["", "0s", "10us", "367d", "soon", "Clear"] {
            assert!(how_long(bad).expect_err(bad).ends_with("; or clear"), "{bad}");
        }
    }
}
