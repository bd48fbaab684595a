//! `dripd partition`: the partition of a bucket, computed here; Redis is not asked.

use std::io::IsTerminal as _;

use clap::Args;

use super::{Exit, print, say, say_err};
use crate::config::Config;
use crate::model::bucket::BucketName;
use crate::model::glob::is_glob;
use crate::model::partitioning;
use crate::store::Layout;

/// Say in which partition a bucket lives.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Which bucket, or which budget
    #[arg(required_unless_present = "slots")]
    bucket: Option<BucketName>,
    /// Print the key of its queue, for plain pushes
    #[arg(long)]
    key: bool,
    /// Print the key slot of each partition, a line each: its number and the slot
    #[arg(long, conflicts_with_all = ["bucket", "key"])]
    slots: bool,
}

impl Show {
    pub(super) fn run(&self, config: &Config) -> Exit {
        let layout = Layout::of(&config.redis);
        let Some(bucket) = &self.bucket else {
            for number in 0..layout.partitioning().partitions {
                say(&format!("{number} {}", partitioning::slot(number.to_string().as_bytes())));
            }
            return Exit::Done;
        };
        // Programs ask with the names that they push to: nothing is a glob here.
        if is_glob(bucket.as_str()) {
            say_err(&format!("{:?} is taken as the name of one bucket", bucket.as_str()));
        }
        let number = layout.number_of(bucket);
        if self.key {
            let key = layout.partition(number).queue(bucket);
            if std::io::stdout().is_terminal() {
                say(&key);
            } else {
                let _ = print(format!("{key}\n").as_bytes()); // unescaped: the key is for pushes
            }
        } else {
            say(&number.to_string());
        }
        Exit::Done
    }
}
