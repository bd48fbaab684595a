//! The server itself: its version, what it lacks to keep the promises, the types of our keys, its reports of changed
//! queues, and what the supervisor of the built-in Redis asks of it.

use std::collections::HashMap;

use futures_util::future::{join_all, try_join_all};

use super::client::Store;
use super::connection::{StoreError, Text, version_in};
use super::library;
use super::partitions::Partitions;
use super::partitions::primary::Primary;
use super::wake::Invalidations;
use crate::config::Fsync;

/// A server that can be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    /// Its version, as it says it.
    pub version: String,
    /// Faults of the server: each a sentence with the way out.
    pub warnings: Vec<String>,
    /// Whether Redis reports changed queues; otherwise they are looked for.
    pub tracking: bool,
}

impl Partitions {
    /// Faults of the servers, each once: a sentence with the way out. Servers that are away are skipped.
    pub(super) async fn lacks(&mut self) -> Result<Vec<String>, StoreError> {
        let mut all = Vec::new();
        for mut primary in self.primaries() {
            match primary.any.lacks().await {
                Err(why) if self.tolerates(&why) => {}
                lacks => {
                    let new: Vec<String> = lacks?.into_iter().filter(|one| !all.contains(one)).collect();
                    all.extend(new);
                }
            }
        }
        Ok(all)
    }

    /// Why a server takes no writes now; `None`: they all do, or the user may not ask. Servers that are away are skipped.
    ///
    /// # Errors
    ///
    /// A server cannot be asked.
    pub async fn refuses_writes(&mut self) -> Result<Option<StoreError>, StoreError> {
        let asked = self.primaries().into_iter().map(|primary| async move {
            let Primary { mut any, .. } = primary;
            any.refuses_writes().await
        });
        for asked in join_all(asked).await {
            match asked {
                Err(why) if self.tolerates(&why) => {}
                Ok(None) => {}
                refusal => return refusal,
            }
        }
        Ok(None)
    }

    /// Refuse a key of ours that has the wrong type.
    pub(super) async fn check_types(&mut self) -> Result<(), StoreError> {
        self.all(async |mut store: Store| store.check_types().await).await.map(drop)
    }

    /// Settings that the promises need, in a word each, and whether a server lacks them.
    ///
    /// # Errors
    ///
    /// As [`Store::lacking`].
    pub async fn lacking(&mut self) -> Result<[(&'static str, bool); 2], StoreError> {
        let mut found = [("appendonly", false), ("noeviction", false)];
        for mut primary in self.primaries() {
            match primary.any.lacking().await {
                Err(why) if self.tolerates(&why) => {}
                lacking => found.iter_mut().zip(lacking?).for_each(|(found, (_, lacks))| found.1 |= lacks),
            }
        }
        Ok(found)
    }
}

impl Store {
    /// Faults of the server: each a sentence with the way out.
    pub(super) async fn lacks(&mut self) -> Result<Vec<String>, StoreError> {
        let lacking = self.lacking().await?;
        // Of a cluster each node has settings of its own.
        let at = self.connection_id().map_or_else(String::new, |_| format!(" at {}", self.redacted()));
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

    /// The fault of a cluster that stops as a whole when one slot is not served. A user who may not ask is not told.
    async fn full_coverage(&mut self) -> Result<Option<String>, StoreError> {
        const SETTING: &str = "cluster-require-full-coverage";
        if self.connection_id().is_none() {
            return Ok(None);
        }
        let reply = match self.call("CONFIG GET", redis::cmd("CONFIG").arg("GET").arg(SETTING)).await {
            Err(StoreError::Refused { .. }) => return Ok(None),
            reply => reply?,
        };
        let reply: HashMap<String, String> = reply.decode().unwrap_or_default();
        let sentence = format!(
            "{SETTING} is yes: while one primary is away and no replica has taken its place, no partition is served; set it to no on every node"
        );
        Ok(reply.get(SETTING).is_some_and(|set| set == "yes").then_some(sentence))
    }

    /// Why the server takes no writes now; `None`: it does, or the user may not ask.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`], and where the server cannot be used.
    pub async fn refuses_writes(&mut self) -> Result<Option<StoreError>, StoreError> {
        // Else it is refused because it may write, which a reader's call does not allow.
        match self.call("drip__writes", redis::cmd("FCALL_RO").arg("drip__writes").arg(0)).await {
            Err(why) if why.refuses_writes() => Ok(Some(why)),
            Ok(_) | Err(StoreError::Refused { .. }) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Settings that the promises need, in a word each, and whether the server lacks them.
    ///
    /// # Errors
    ///
    /// [`StoreError::Loading`] while it loads its data: what it says of that is not true until then.
    pub async fn lacking(&mut self) -> Result<[(&'static str, bool); 2], StoreError> {
        let (persistence, memory) = (self.info("persistence").await?, self.info("memory").await?);
        let says = |info: &str, line: &str| info.lines().any(|have| have == line);
        if says(&persistence, "loading:1") {
            return Err(StoreError::Loading { address: self.redacted().to_owned() });
        }
        let (appends, keeps) = (says(&persistence, "aof_enabled:1"), says(&memory, "maxmemory_policy:noeviction"));
        Ok([("appendonly", !appends), ("noeviction", !keeps)])
    }

    /// Refuse a key of ours that has the wrong type.
    pub(super) async fn check_types(&mut self) -> Result<(), StoreError> {
        let typed = self.keys().typed();
        let Some((key, found, wanted)) = self.wrong_of(typed).await? else { return Ok(()) };
        Err(self.unusable(format!(
            "key {key} is a {found} and must be a {wanted}: rename or delete it, or choose another redis.prefix"
        )))
    }

    /// A key of ours that has the wrong type, with that type and the right one.
    pub(super) async fn wrong_key(&mut self) -> Result<Option<(String, String, &'static str)>, StoreError> {
        let typed = [self.keys().typed(), self.keys().typed_besides()].concat();
        self.wrong_of(typed).await
    }

    /// The first of these keys that has another type than this.
    async fn wrong_of(
        &mut self,
        typed: Vec<(String, &'static str)>,
    ) -> Result<Option<(String, String, &'static str)>, StoreError> {
        let mut pipeline = redis::pipe();
        for (key, _) in &typed {
            pipeline.cmd("TYPE").arg(key);
        }
        let found: Vec<String> = self.call_pipeline("TYPE", &pipeline).await?;
        let keys = typed.into_iter().zip(found);
        let mut wrong = keys.filter(|((_, wanted), found)| found != wanted && found != "none");
        Ok(wrong.next().map(|((key, wanted), found)| (key, found, wanted)))
    }

    pub(super) async fn version(&mut self) -> Result<String, StoreError> {
        Ok(version_in(&self.info("server").await?))
    }

    pub(super) async fn info(&mut self, section: &str) -> Result<String, StoreError> {
        let Text(info) = self.read("INFO", redis::cmd("INFO").arg(section)).await?;
        Ok(info)
    }

    /// The configuration file that the server was started from; empty when from none.
    pub async fn config_file(&mut self) -> Result<String, StoreError> {
        self.server_field("config_file:").await
    }

    /// The server's process.
    pub async fn process_id(&mut self) -> Result<i32, StoreError> {
        let text = self.server_field("process_id:").await?;
        text.parse().map_err(|_| StoreError::Reply { call: "INFO", reply: text })
    }

    async fn server_field(&mut self, name: &str) -> Result<String, StoreError> {
        let info = self.info("server").await?;
        Ok(info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned())
    }

    /// When the server makes a write durable.
    pub async fn set_fsync(&mut self, fsync: Fsync) -> Result<(), StoreError> {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("appendfsync").arg(fsync.as_str());
        self.call("CONFIG SET", &command).await.map(drop)
    }
}

impl Primary {
    /// Make the server ready for a daemon: check what it lacks and the types of our keys, load the library, turn the
    /// reports on.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] when a key of ours has the wrong type or the library cannot be loaded.
    pub async fn prepare(&mut self, invalidations: &Invalidations) -> Result<Server, StoreError> {
        let (version, warnings) = (self.any.version().await?, self.any.lacks().await?);
        let mut server = Server { version, warnings, tracking: false };
        self.check_types().await?;
        self.any.load_library(&library::CURRENT).await?;
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON").arg("BCAST");
        for prefix in invalidations.prefixes() {
            tracking.arg("PREFIX").arg(prefix);
        }
        match self.any.call("CLIENT TRACKING", &tracking).await {
            Ok(_) => server.tracking = true,
            Err(StoreError::Refused { code, message, .. }) => {
                let at = self.any.connection_id().map_or_else(String::new, |_| format!(" at {}", self.any.redacted()));
                server
                    .warnings
                    .push(format!("CLIENT TRACKING is not available{at} ({code} {message}): queues are polled"));
            }
            Err(other) => return Err(other),
        }
        Ok(server)
    }

    /// Refuse a key of ours that has the wrong type.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`], with its name.
    pub async fn check_types(&mut self) -> Result<(), StoreError> {
        let check = async |mut store: Store| match store.check_types().await {
            Err(why) if why.is_retryable() => Ok(()), // whoever gets the partition looks
            checked => checked,
        };
        try_join_all(self.each().map(check)).await.map(drop)
    }
}
