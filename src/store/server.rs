//! The server itself: its version, what it lacks to keep the promises, the types of our keys, its reports of changed
//! queues, and what the supervisor of the built-in Redis asks of it.

use std::collections::HashMap;

use redis::{FromRedisValue as _, Value};

use super::reply::unexpected;
use super::{Store, StoreError, Whole};
use crate::config::Fsync;

/// What is worth saying of a server that can be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    /// Its version, as it says it.
    pub version: String,
    /// What it lacks: each a sentence with the way out.
    pub warnings: Vec<String>,
    /// Whether Redis reports changed queues; otherwise they are looked for.
    pub tracking: bool,
}

impl Whole {
    /// What the servers lack to keep the promises, each once: a sentence with the way out. Those that are away are passed over.
    pub(super) async fn lacks(&mut self) -> Result<Vec<String>, StoreError> {
        let mut all = Vec::new();
        for mut primary in self.primaries() {
            match primary.lacks().await {
                Err(why) if self.goes_on_without(&why) => {}
                lacks => {
                    let new: Vec<String> = lacks?.into_iter().filter(|one| !all.contains(one)).collect();
                    all.extend(new);
                }
            }
        }
        Ok(all)
    }

    /// Refuse a key of ours that has the wrong type.
    pub(super) async fn check_types(&mut self) -> Result<(), StoreError> {
        self.all(async |mut store: Store| store.check_types().await).await.map(drop)
    }

    /// What the servers should have to keep the promises, in a word each, and whether one of them lacks that.
    ///
    /// # Errors
    ///
    /// As [`Store::lacking`].
    pub async fn lacking(&mut self) -> Result<[(&'static str, bool); 2], StoreError> {
        let mut found = [("appendonly", false), ("noeviction", false)];
        for mut primary in self.primaries() {
            match primary.lacking().await {
                Err(why) if self.goes_on_without(&why) => {}
                lacking => found.iter_mut().zip(lacking?).for_each(|(found, (_, lacks))| found.1 |= lacks),
            }
        }
        Ok(found)
    }
}

impl Store {
    /// What the server lacks to keep the promises: each a sentence with the way out.
    pub(super) async fn lacks(&mut self) -> Result<Vec<String>, StoreError> {
        let lacking = self.lacking().await?;
        // Of a cluster each node has settings of its own.
        let at = self.line().map_or_else(String::new, |_| format!(" at {}", self.shown()));
        let sentence = |what: &str| match what {
            "appendonly" => {
                format!("appendonly is off{at}: a crash of Redis loses accepted jobs; set appendonly yes in redis.conf")
            }
            _ => format!(
                "maxmemory-policy is not noeviction{at}: Redis may throw jobs away; set maxmemory-policy noeviction"
            ),
        };
        let lacks = lacking.into_iter().filter(|(_, lacks)| *lacks).map(|(what, _)| sentence(what));
        Ok(lacks.chain(self.full_coverage().await?).collect())
    }

    /// What it means that a cluster stops as a whole when one of its slots is not served. Who may not ask is not told.
    async fn full_coverage(&mut self) -> Result<Option<String>, StoreError> {
        const SETTING: &str = "cluster-require-full-coverage";
        if self.line().is_none() {
            return Ok(None);
        }
        let told = match self.call("CONFIG GET", redis::cmd("CONFIG").arg("GET").arg(SETTING)).await {
            Err(StoreError::Refused { .. }) => return Ok(None),
            told => told?,
        };
        let told = HashMap::<String, String>::from_redis_value(told).unwrap_or_default();
        let sentence = format!(
            "{SETTING} is yes: while one primary is away and no replica has taken its place, no partition is served; set it to no on every node"
        );
        Ok(told.get(SETTING).is_some_and(|set| set == "yes").then_some(sentence))
    }

    /// What the server should have to keep the promises, in a word each, and whether it lacks that.
    ///
    /// # Errors
    ///
    /// [`StoreError::Loading`] while it loads its data: what it says of that is not true until then.
    pub async fn lacking(&mut self) -> Result<[(&'static str, bool); 2], StoreError> {
        let (persistence, memory) = (self.info("persistence").await?, self.info("memory").await?);
        let says = |info: &str, line: &str| info.lines().any(|have| have == line);
        if says(&persistence, "loading:1") {
            return Err(StoreError::Loading { address: self.shown().to_owned() });
        }
        let (appends, keeps) = (says(&persistence, "aof_enabled:1"), says(&memory, "maxmemory_policy:noeviction"));
        Ok([("appendonly", !appends), ("noeviction", !keeps)])
    }

    /// Refuse a key of ours that has the wrong type.
    pub(super) async fn check_types(&mut self) -> Result<(), StoreError> {
        let Some((key, found, wanted)) = self.wrong_key().await? else { return Ok(()) };
        Err(self.unusable(format!(
            "key {key} is a {found} and must be a {wanted}: rename or delete it, or choose another redis.prefix"
        )))
    }

    /// A key of ours that has the wrong type, with that type and the right one.
    pub(super) async fn wrong_key(&mut self) -> Result<Option<(String, String, &'static str)>, StoreError> {
        let typed = self.keys().typed();
        let mut pipeline = redis::pipe();
        for (key, _) in &typed {
            pipeline.cmd("TYPE").arg(key);
        }
        let found: Vec<String> = self.call_all("TYPE", &pipeline).await?;
        let keys = typed.into_iter().zip(found);
        let mut wrong = keys.filter(|((_, wanted), found)| found != wanted && found != "none");
        Ok(wrong.next().map(|((key, wanted), found)| (key, found, wanted)))
    }

    pub(super) async fn check_version(&mut self) -> Result<(), StoreError> {
        let info = self.info("server").await?;
        if info.lines().any(|line| matches!(line, "redis_mode:sentinel" | "server_mode:sentinel")) {
            return Err(
                self.unusable("it is a sentinel; name it in redis.sentinel.nodes, in place of redis.url".to_owned())
            );
        }
        if self.line().is_none()
            && info.lines().any(|line| matches!(line, "redis_mode:cluster" | "server_mode:cluster"))
        {
            let way_out = "name it in redis.cluster, in place of redis.url, with redis.partitions beside it";
            return Err(self.unusable(format!("it is a node of a cluster; {way_out}")));
        }
        let version = version_in(&info);
        let major: u32 = version.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        if major >= 7 {
            return Ok(());
        }
        Err(self.unusable(format!("server is {version}, 7.0 or newer is needed")))
    }

    pub(super) async fn version(&mut self) -> Result<String, StoreError> {
        Ok(version_in(&self.info("server").await?))
    }

    pub(super) async fn info(&mut self, section: &str) -> Result<String, StoreError> {
        match self.call("INFO", redis::cmd("INFO").arg(section)).await? {
            Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Value::VerbatimString { text, .. } => Ok(text),
            other => Err(unexpected("INFO", &other)),
        }
    }

    /// The configuration file that the server was started from; empty when from none.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn config_file(&mut self) -> Result<String, StoreError> {
        self.server_field("config_file:").await
    }

    /// The server's process.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn process_id(&mut self) -> Result<i32, StoreError> {
        let text = self.server_field("process_id:").await?;
        text.parse().map_err(|_| unexpected("INFO", &Value::SimpleString(text)))
    }

    async fn server_field(&mut self, name: &str) -> Result<String, StoreError> {
        let info = self.info("server").await?;
        Ok(info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned())
    }

    /// When the server makes a write durable.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn set_fsync(&mut self, fsync: Fsync) -> Result<(), StoreError> {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("appendfsync").arg(fsync.as_str());
        self.call("CONFIG SET", &command).await.map(drop)
    }
}

/// The version in what a server says of itself.
fn version_in(info: &str) -> String {
    let find = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    find("valkey_version:").or_else(|| find("redis_version:")).unwrap_or_else(|| "unknown".to_owned())
}
