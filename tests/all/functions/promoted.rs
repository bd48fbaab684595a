//! The server that counts the changes of what is set is replaced by its replica, and comes back as the primary: what was counted in between
//! may not have reached it, though it goes on with the number that it counted itself.

use redis::{Connection, Value};

use crate::cluster::{ask, id_of, is_in_step, join, options};
use crate::rig::{Server, eventually, load_library, record};

const POLICY: &str = "drip:policy:{0}";

/// A primary that has all slots, and its replica.
fn pair() -> [Server; 2] {
    let pair = [(); 2].map(|()| {
        let options = options("no");
        Server::start(&options.iter().map(String::as_str).collect::<Vec<_>>())
    });
    let [mut primary, mut replica] = [pair[0].connect(), pair[1].connect()];
    let _: Value = ask(&mut primary, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    load_library(&mut primary);
    join(&[pair[0].port, pair[1].port]);
    let _: Value = ask(&mut replica, &["CLUSTER", "REPLICATE", &id_of(pair[0].port)]);
    eventually("the replica has all", || is_in_step(pair[1].port));
    pair
}

/// A line of INFO.
fn info(redis: &mut Connection, section: &str, name: &str) -> String {
    let info: String = ask(redis, &["INFO", section]);
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in {info}")).trim().to_owned()
}

/// Set a capacity for a name; the number of that change.
fn set(redis: &mut Connection, name: &str) -> u64 {
    let change = format!(
        r#"{{"what":"set","match":"{name}","is_glob":false,"set":{{"capacity":{{"text":"5","policy":{{"capacity":5}}}}}},"by":"t","user":"t"}}"#
    );
    let _: Value = ask(redis, &["FCALL", "drip__set", "1", POLICY, "", &change]);
    ask(redis, &["HGET", POLICY, "number"])
}

fn floor(redis: &mut Connection) -> u64 {
    ask(redis, &["HGET", POLICY, "floor"])
}

#[test]
fn a_server_that_is_promoted_again_raises_the_floor_though_it_counted_the_last_number_that_it_has() {
    let pair = pair();
    let [mut first, mut second] = [pair[0].connect(), pair[1].connect()];
    let json = record("[redis]\npartitions = 8\n");
    let _: Value = ask(&mut first, &["FCALL", "drip__policy", "1", POLICY, "", "0123456789", &json, "replace", ""]);
    let at_first = floor(&mut first);
    let counted = set(&mut first, "a");
    assert_eq!(floor(&mut first), at_first, "the same server goes on counting");

    // The replica is promoted, and the old primary follows it without a new copy of everything.
    eventually("it is promoted", || {
        let reply: Result<Value, _> = redis::cmd("CLUSTER").arg("FAILOVER").query(&mut second);
        reply.is_ok() && info(&mut second, "replication", "role") == "master"
            || info(&mut second, "replication", "role") == "master"
    });
    eventually("the old one follows", || {
        info(&mut first, "replication", "role") == "slave" && is_in_step(pair[0].port)
    });
    assert_eq!(info(&mut second, "stats", "sync_partial_ok"), "1", "the functions of the old one remember");
    // From now on nothing reaches the old one.
    let _: Value = ask(&mut second, &["CONFIG", "SET", "requirepass", "other"]);
    let _: Value = ask(&mut second, &["CLIENT", "KILL", "TYPE", "replica"]);
    eventually("the link is down", || info(&mut first, "replication", "master_link_status") == "down");
    let lost = set(&mut second, "b");
    assert!(lost > counted && floor(&mut second) == lost, "another server counts");

    let _: Value = ask(&mut first, &["CLUSTER", "FAILOVER", "TAKEOVER"]);
    eventually("it is the primary again, and serves", || {
        let state: String = ask(&mut first, &["CLUSTER", "INFO"]);
        info(&mut first, "replication", "role") == "master" && state.contains("cluster_state:ok")
    });
    assert_eq!(ask::<u64>(&mut first, &["HGET", POLICY, "number"]), counted, "it never had the change");
    let next = set(&mut first, "c");
    assert!(next > lost);
    assert_eq!(floor(&mut first), next, "whoever took the lost change begins anew");
    set(&mut first, "d");
    assert_eq!(floor(&mut first), next, "once");
}
