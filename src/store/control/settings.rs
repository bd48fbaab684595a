//! Settings that people made while dripd runs, and the slow-downs in force: read by page.

use std::collections::BTreeMap;

use redis::{FromRedisValue, Value};
use serde::Deserialize;

use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::partitions::Partitions;
use crate::store::reply::given;

/// One value that is set.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Stands {
    /// As an operator writes it; empty for a pause or a closure.
    pub text: String,
    /// Microseconds since the epoch on the server's clock, as text.
    pub since: String,
    /// When it ends by itself, likewise.
    pub till: Option<String>,
    /// Of globs: it counts, and the one set last wins.
    #[serde(default)]
    pub seq: u64,
    /// Who set it.
    #[serde(default)]
    pub by: String,
    /// Who Redis says that was.
    #[serde(default)]
    pub user: String,
    /// Why.
    #[serde(default)]
    pub reason: Option<String>,
}

/// The values that are set for one key: the timed one lies over the lasting one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Lies {
    /// Until it is taken back.
    pub lasting: Option<Stands>,
    /// Until its end.
    pub timed: Option<Stands>,
}

impl Lies {
    /// Drop the timed value if it has ended: it is stored until its end has reached every bucket, but it counts no more. Replies
    /// whether any value is left.
    fn goes_on(&mut self, now: u64) -> bool {
        self.timed = self
            .timed
            .take()
            .filter(|one| one.till.as_ref().is_none_or(|till| till.parse().is_ok_and(|till: u64| now < till)));
        self.timed.is_some() || self.lasting.is_some()
    }
}

#[derive(Deserialize)]
struct Entry {
    keys: BTreeMap<String, Lies>,
}

/// All that is set for one name or glob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The name or the glob; of budgets in braces.
    pub pattern: String,
    /// Whether it is a glob.
    pub is_glob: bool,
    /// By key.
    pub keys: BTreeMap<String, Lies>,
}

impl Partitions {
    /// All that is set, and slow-downs in force, globs first, and the server's time in microseconds. What a newer version wrote is left out.
    pub async fn settings(&mut self) -> Result<(u64, Vec<Settings>), StoreError> {
        let (mut now_us, mut all) = (0, Vec::new());
        for (mut store, first) in self.told_by() {
            let mut cursor = Some(first.to_owned());
            while let Some(at) = cursor {
                (cursor, now_us) = match store.page_of_settings(&at, &mut all).await {
                    Err(why) if self.record_skipped(store.keys().number(), &why) => (None, now_us),
                    page => page?,
                };
            }
        }
        in_order(&mut all);
        Ok((now_us, all))
    }

    /// Who tells of settings, from where on: what is set stands at the authority, and slow-downs where their nodes live.
    fn told_by(&self) -> impl Iterator<Item = (Store, &'static str)> + use<> {
        self.each().map(|store| if store.keys().is_authority() { (store, "") } else { (store, SLOW_DOWNS) })
    }

    /// The settings of at most so many names and globs that are meant, slow-downs first, and whether there are more.
    pub async fn some_settings(
        &mut self,
        most: usize,
        is_meant: impl Fn(&str) -> bool,
    ) -> Result<(Vec<Settings>, bool), StoreError> {
        let mut all = Vec::new();
        let slow_downs = self.each().map(|store| (store, SLOW_DOWNS, None));
        let set = (self.authority(), "", Some(SLOW_DOWNS));
        for (mut store, first, ends_at) in slow_downs.chain([set]) {
            let mut cursor = Some(first.to_owned());
            while let Some(at) = cursor.filter(|at| ends_at != Some(at.as_str())) {
                let from = all.len();
                cursor = match store.page_of_settings(&at, &mut all).await {
                    Err(why) if self.record_skipped(store.keys().number(), &why) => None,
                    page => page?.0,
                };
                let meant = all.split_off(from).into_iter().filter(|one| is_meant(&one.pattern));
                all.extend(meant);
                if all.len() > most {
                    all.truncate(most);
                    in_order(&mut all);
                    return Ok((all, true));
                }
            }
        }
        in_order(&mut all);
        Ok((all, false))
    }
}

impl Store {
    /// A page of settings behind those that were read. Replies where the next one begins, and the server's time.
    async fn page_of_settings(
        &mut self,
        cursor: &str,
        all: &mut Vec<Settings>,
    ) -> Result<(Option<String>, u64), StoreError> {
        let reply = self.call_read_only("drip__settings", &[self.keys().policy()], ("", cursor)).await?;
        reply.decode_with(|items: Vec<Value>| page(&items, all))
    }
}

/// Where the pages of slow-downs begin; those of what was set come before.
const SLOW_DOWNS: &str = "s0";

/// Globs first, each pattern once: a scan may tell of one twice.
fn in_order(all: &mut Vec<Settings>) {
    all.sort_by(|a, b| (!a.is_glob, &a.pattern).cmp(&(!b.is_glob, &b.pattern)));
    all.dedup();
}

/// A page of settings: where the next one begins, the time, and then three values each.
fn page(items: &[Value], all: &mut Vec<Settings>) -> Option<(Option<String>, u64)> {
    let (head, entries) = items.split_at_checked(2)?;
    let (next, now): (String, u64) = FromRedisValue::from_redis_value(Value::Array(head.to_vec())).ok()?;
    for (pattern, is_glob, json) in <(String, i64, String)>::from_redis_value_refs(entries).ok()? {
        let Ok(Entry { mut keys }) = serde_json::from_str(&json) else { continue };
        keys.retain(|_, key| key.goes_on(now));
        if !keys.is_empty() {
            all.push(Settings { pattern, is_glob: is_glob == 1, keys });
        }
    }
    Some((given(next), now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_is_not_listed_though_it_is_stored_until_its_end_has_reached_every_bucket() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let stands = |text: &str, till: &str| format!(r#"{{"text":"{text}","since":"1","till":{till}}}"#);
        let entry = |lasting: &str, till: u64| {
            bulk(&format!(
                r#"{{"keys":{{"rate":{{"lasting":{lasting},"timed":{}}}}}}}"#,
                stands("9/s", &format!("\"{till}\""))
            ))
        };
        let reply = [
            bulk(""),
            bulk("100"),
            bulk("over*"),
            Value::Int(1),
            entry("null", 100),
            bulk("goes-on"),
            Value::Int(0),
            entry("null", 101),
            bulk("lasts"),
            Value::Int(0),
            entry(&stands("5/s", "null"), 99),
        ];
        let mut all = Vec::new();
        assert_eq!(page(&reply, &mut all), Some((None, 100)));
        let left: Vec<_> = all
            .iter()
            .map(|one| {
                let rate = &one.keys["rate"];
                (one.pattern.as_str(), rate.lasting.is_some(), rate.timed.is_some())
            })
            .collect();
        assert_eq!(left, [("goes-on", false, true), ("lasts", true, false)]);
    }
}
