//! The `[redis]` section: the connection to Redis (`connection`), the prefix and the partitions of its keys, and the
//! built-in Redis.

use std::path::PathBuf;

use super::connection::{Connection, Place, TlsSettings};
use super::environment::Environment;
use super::section::{Problems, Section};
use crate::model::partitioning::{self, Partitioning};
use crate::model::words;

/// The most parts of a name that may be its tag.
const MAX_PARTS: u8 = 8;

/// The port of the built-in Redis unless `redis.port` says otherwise.
pub const BUILT_IN_PORT: u16 = 7379;

/// The `[redis]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// The place of Redis.
    pub place: Place,
    /// The user that dripd logs in as; none: the user of the URL, or the default user.
    pub user: Option<String>,
    /// The file that holds the password.
    pub password_file: Option<PathBuf>,
    /// The settings of TLS, where they are written. With sentinels or a cluster they ask for TLS; with a URL its scheme
    /// does.
    pub tls: Option<TlsSettings>,
    /// Whether the configuration file itself holds a password, in its URL.
    pub file_holds_password: bool,
    /// The prefix of every key.
    pub prefix: String,
    /// The partitioning of the keys.
    pub partitioning: Partitioning,
    /// The directory in which the built-in Redis keeps its data.
    pub data_dir: PathBuf,
    /// The loopback port of the built-in Redis.
    pub port: u16,
    /// The time at which the built-in Redis makes a write durable.
    pub fsync: Fsync,
}

words! {
    /// The built-in Redis' `appendfsync`.
    pub enum Fsync {
        /// Once a second: a crash of Redis may undo the last two.
        EverySecond = "everysec",
        /// Before each reply.
        Always = "always",
    }
}

/// Read the section, and the variables of the environment that concern it.
pub(super) fn redis_settings(
    section: &mut Section,
    environment: &Environment,
    problems: &mut Problems,
) -> RedisSettings {
    let text = |v: &toml::Value| v.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let connection = Connection::read(section, environment, problems);
    let prefix = section.read("prefix", |v| text(v).filter(|prefix| is_prefix(prefix)), problems);
    let partitioning = partitioning(section, problems);
    if matches!(connection.place, Place::Cluster(_)) && partitioning.is_single() {
        let hint = "two to four times the primaries that you will ever have";
        problems.add(format!("redis.cluster: a cluster needs redis.partitions, 2 to 64; write {hint}"));
    }
    let data_dir = section.read("data_dir", text, problems).map(PathBuf::from);
    let port = |v: &toml::Value| v.as_integer().and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
    let port = section.read("port", port, problems);
    let fsync = section.read("fsync", |v| Fsync::parse(v.as_str()?), problems);
    section.finish(problems);
    let data_dir =
        data_dir.or_else(|| environment.state_directory.clone()).unwrap_or_else(|| PathBuf::from("dripd-data"));
    RedisSettings {
        place: connection.place,
        user: connection.user,
        password_file: connection.password_file,
        tls: connection.tls,
        file_holds_password: connection.file_holds_password,
        prefix: prefix.unwrap_or_else(|| "drip".to_owned()),
        partitioning,
        data_dir: std::path::absolute(&data_dir).unwrap_or(data_dir),
        port: port.unwrap_or(BUILT_IN_PORT),
        fsync: fsync.unwrap_or(Fsync::EverySecond),
    }
}

/// Read the number of partitions, and how many parts of a name choose one.
fn partitioning(section: &mut Section, problems: &mut Problems) -> Partitioning {
    let small = |v: &toml::Value| v.as_integer().and_then(|n| u8::try_from(n).ok());
    let is_partitioned = section.has("partitions");
    let partitions = |v: &toml::Value| small(v).filter(|n| n.is_power_of_two() && *n <= partitioning::MAX_PARTITIONS);
    let partitions = section.read("partitions", partitions, problems).unwrap_or(1);
    let by = section.read("partition_by", |v| small(v).filter(|n| (1..=MAX_PARTS).contains(n)), problems);
    if by.is_some() && !is_partitioned {
        problems.add("redis.partition_by: there is one partition; write redis.partitions too".to_owned());
    }
    // With one partition `partition_by` has no effect. It is left out, so that keys and record are those of a system
    // without it.
    Partitioning { partitions, by: by.filter(|_| partitions > 1).unwrap_or(0) }
}

fn is_prefix(prefix: &str) -> bool {
    !prefix.contains(":queue:")
        && !prefix.ends_with(":ready")
        && !prefix.ends_with(":queue")
        && !prefix.contains(|c: char| c.is_control() || c.is_whitespace() || c == '{' || c == '}')
}
