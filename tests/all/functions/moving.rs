//! A partition whose slot moves from one primary of a Redis Cluster to another: keys move one by one, and as long as they do every
//! function stops before it changes anything, whichever side it is called on.

use redis::{Connection, RedisResult, Value};

use crate::rig::{Server, eventually, free_port, load_library, record};

/// The slot of `{0}`.
const SLOT: &str = "13907";

/// Two primaries, the first of which has all slots; each is known by its id.
struct Cluster {
    servers: [Server; 2],
    ids: [String; 2],
}

fn ask(redis: &mut Connection, words: &[&str]) -> RedisResult<Value> {
    redis::cmd(words[0]).arg(&words[1..]).query(redis)
}

#[track_caller]
fn tell(redis: &mut Connection, words: &[&str]) -> Value {
    ask(redis, words).unwrap_or_else(|why| panic!("{words:?}: {why}"))
}

impl Cluster {
    fn start() -> Self {
        let buses = [free_port(), free_port()];
        let servers = buses.map(|bus| Server::start(&["--cluster-enabled", "yes", "--cluster-port", &bus.to_string()]));
        let [mut first, mut second] = [servers[0].connect(), servers[1].connect()];
        tell(&mut first, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        tell(&mut first, &["CLUSTER", "MEET", "127.0.0.1", &servers[1].port.to_string(), &buses[1].to_string()]);
        for redis in [&mut first, &mut second] {
            load_library(redis);
            eventually("both know that all slots are served", || {
                let info: String = redis::cmd("CLUSTER").arg("INFO").query(redis).expect("an answer");
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
            });
        }
        let id = |redis: &mut Connection| redis::cmd("CLUSTER").arg("MYID").query(redis).expect("an id");
        let ids = [id(&mut first), id(&mut second)];
        Self { servers, ids }
    }

    fn both(&self) -> [Connection; 2] {
        [self.servers[0].connect(), self.servers[1].connect()]
    }

    /// From now on keys of the slot may move.
    fn begin_move(&self) {
        let [mut from, mut to] = self.both();
        tell(&mut to, &["CLUSTER", "SETSLOT", SLOT, "IMPORTING", &self.ids[0]]);
        tell(&mut from, &["CLUSTER", "SETSLOT", SLOT, "MIGRATING", &self.ids[1]]);
    }

    fn move_keys(&self, keys: &[String]) {
        let (mut from, port) = (self.servers[0].connect(), self.servers[1].port.to_string());
        for key in keys {
            tell(&mut from, &["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        }
    }

    fn end_move(&self) {
        for mut redis in self.both() {
            tell(&mut redis, &["CLUSTER", "SETSLOT", SLOT, "NODE", &self.ids[1]]);
        }
    }

    /// The keys that a server has.
    fn keys_of(&self, at: usize) -> Vec<String> {
        let mut keys: Vec<String> =
            redis::cmd("KEYS").arg("*").query(&mut self.servers[at].connect()).expect("an answer");
        keys.sort();
        keys
    }

    /// All that is stored, on which server.
    fn dump(&self) -> Vec<(usize, String, Vec<u8>)> {
        let mut all = Vec::new();
        for at in 0..2 {
            let mut redis = self.servers[at].connect();
            for key in self.keys_of(at) {
                redis::cmd("ASKING").exec(&mut redis).expect("OK");
                let bytes: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut redis).expect("an answer");
                all.push((at, key, bytes));
            }
        }
        all
    }
}

/// Calls of every function that changes something, on keys of partition 0.
fn calls() -> Vec<Vec<&'static str>> {
    vec![
        vec!["drip_push", "drip:queue:{0}:a", "x"],
        vec!["drip__wake", "drip:queue:{0}:a", "", "1"],
        vec!["drip__drain", "drip:schedule:{0}", "", "1"],
        vec!["drip__reap", "drip:policy:{0}", "", "1", "", ""],
        vec!["drip__heal", "drip:policy:{0}", ""],
        vec!["drip_ack", "drip:ready:{0}", "1-1"],
        vec!["drip_fail", "drip:ready:{0}", "1-1"],
        vec!["drip__purge", "drip:queue:{0}:a", "", "0", "t", "t"],
        vec!["drip__beat", "drip:daemons:{0}", "", "d", "{}"],
        vec!["drip__set", "drip:policy:{0}", "", r#"{"what":"set","match":"a","is_glob":false,"unset_all":true}"#],
    ]
}

fn call(redis: &mut Connection, words: &[&str], asking: bool) -> RedisResult<Value> {
    if asking {
        redis::cmd("ASKING").exec(redis).expect("OK");
    }
    redis::cmd("FCALL").arg(words[0]).arg(1).arg(&words[1..]).query(redis)
}

/// Put a record into force in partition 0.
fn store(redis: &mut Connection, json: &str) {
    let words = ["drip__policy", "drip:policy:{0}", "", "0123456789", json, "replace", ""];
    assert_eq!(call(redis, &words, false), Ok(Value::Int(1)));
}

#[test]
fn while_a_slot_moves_every_function_stops_before_it_changes_anything_and_then_all_goes_on() {
    let cluster = Cluster::start();
    let [mut from, mut to] = cluster.both();
    let json = record("[redis]\npartitions = 8\n[defaults]\nrate = '1000/s'\n");
    store(&mut from, &json);
    let buckets: Vec<String> = (0..1_000)
        .map(|n| format!("b{n}"))
        .filter(|name| dripd::model::partitioning::Partitioning { partitions: 8, by: 0 }.number_of(name) == 0)
        .take(20)
        .collect();
    for bucket in &buckets {
        let queue = format!("drip:queue:{{0}}:{bucket}");
        tell(&mut from, &["LPUSH", &queue, "1", "2", "3"]);
        call(&mut from, &["drip__wake", &queue, "", "look"], false).expect("looked at");
    }
    cluster.begin_move();
    let keys = cluster.keys_of(0);
    assert!(keys.len() > 20 && keys.contains(&"drip:policy:{0}".to_owned()), "{keys:?}");
    // None has moved, half of them, and all but one.
    let half: Vec<String> = keys.iter().step_by(2).cloned().collect();
    let rest: Vec<String> = keys.iter().filter(|key| !half.contains(key)).cloned().collect();
    for moved in [&[][..], &half, &rest[1..]] {
        cluster.move_keys(moved);
        let before = cluster.dump();
        for words in calls() {
            for (redis, asking) in [(&mut from, false), (&mut to, true)] {
                let why = call(redis, &words, asking).expect_err("it stands still");
                // Of a key that it does not have a server says so itself, before any code of ours.
                let code = why.code().unwrap_or_default().to_owned();
                assert!(["TRYAGAIN", "ASK"].contains(&code.as_str()), "{words:?} asking {asking}: {why}");
            }
        }
        assert_eq!(cluster.dump(), before, "nothing was changed");
    }
    cluster.move_keys(&rest[..1]);
    cluster.end_move();
    assert_eq!(cluster.keys_of(0), [""; 0]);
    assert_eq!(cluster.keys_of(1), keys);
    eventually("all have left on the other side", || {
        call(&mut to, &["drip__drain", "drip:schedule:{0}", "", "1"], false).expect("it goes on");
        tell(&mut to, &["XLEN", "drip:ready:{0}"]) == Value::Int(60)
    });
    let why = call(&mut from, &["drip_push", "drip:queue:{0}:b0", "x"], false).expect_err("it lives elsewhere");
    assert_eq!(why.code(), Some("MOVED"));
}

#[test]
fn a_push_without_a_tag_into_a_cluster_is_refused() {
    let cluster = Cluster::start();
    let [mut first, _] = cluster.both();
    let json = record("[redis]\npartitions = 8\n");
    store(&mut first, &json);
    let why = call(&mut first, &["drip_push", "drip:queue:acme", "x"], false).expect_err("refused");
    assert_eq!(why.code(), Some("BADBUCKET"));
    assert!(why.detail().is_some_and(|detail| detail.contains("dripd partition")), "{why}");
}
