//! The server of partition 0, which says what is set: an old primary that has not heard of its successor is not believed.

use dripd::config::{Config, Environment};
use dripd::store::{Address, Layout, Partitions};
use redis::Value;

use super::{Cluster, PARTITIONS};
use crate::cluster::{PRIMARIES, ask, id_of};
use crate::rig::{Server, eventually};

/// What is set for a bucket, in its partition.
fn is_set(cluster: &Cluster, number: u8, bucket: &str) -> bool {
    cluster.redis(number, &["HEXISTS", &format!("drip:settings:{{{number}}}"), bucket])
}

fn epoch(server: &Server) -> u64 {
    let info: String = ask(&mut server.connect(), &["CLUSTER", "INFO"]);
    let told = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
    told.expect("it is told").trim().parse().expect("a number")
}

#[test]
fn what_an_old_primary_of_partition_0_does_not_know_is_not_taken_back() {
    let cluster = Cluster::start(true, "no", "[defaults]\nrate = '1/h'\n");
    let buckets = cluster.a_bucket_each();
    let daemon = cluster.daemon();
    eventually("all have the record", || cluster.all_have_the_record());
    drop(daemon);
    let old = cluster.home(0);
    let at = cluster.servers.iter().position(|server| server.port == old.port).expect("one of ours");
    let new = &cluster.servers[at + usize::from(PRIMARIES)];
    let number = (0..PARTITIONS).find(|number| cluster.home(*number).port != old.port).expect("one");
    let bucket = &buckets[usize::from(number)];
    let path = cluster.shell.home().join("config.toml");
    let text = std::fs::read_to_string(&path).expect("a file");

    // Somebody who knows the old one, and is not told before the next look.
    let config = Config::parse(&text, None, &Environment::default()).expect("good");
    let (address, layout) = (Address::of(&config.redis).expect("an address"), Layout::of(&config.redis));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut partitions = runtime.block_on(Partitions::connect(&address, &layout)).expect("connected");
    runtime.block_on(partitions.replicate()).expect("carried");

    // An election would begin a new epoch; a takeover alone does so only where another node has the latest one.
    let third = cluster.home(number);
    let _: Value = ask(&mut third.connect(), &["CLUSTER", "BUMPEPOCH"]);
    eventually("the epoch is known", || epoch(new) == epoch(third));

    // The old one hears nothing of the others any more, and answers clients as before. It forgets them in one step, and they
    // forget it: since Redis 7.2 a node tells those that it still knows whom it forgot, and Valkey 9 meets a node again that
    // does not answer.
    let others = || cluster.servers.iter().filter(|server| server.port != old.port);
    let mut forget = redis::pipe();
    others().for_each(|other| {
        forget.atomic().cmd("CLUSTER").arg("FORGET").arg(id_of(other.port)).ignore();
    });
    let old_id = id_of(old.port);
    forget.exec(&mut old.connect()).expect("forgotten");
    let forget_old = |server: &Server| ask::<Value>(&mut server.connect(), &["CLUSTER", "FORGET", &old_id]);
    others().filter(|server| server.port != new.port).for_each(|server| {
        forget_old(server);
    });
    let _: Value = ask(&mut new.connect(), &["CLUSTER", "FAILOVER", "TAKEOVER"]);
    forget_old(new); // a replica may not forget its primary
    let slot = cluster.slot(0);
    eventually("all others know the new one", || {
        let knows = |ranges: Vec<Vec<Value>>| {
            ranges.iter().any(|range| {
                let [Value::Int(first), Value::Int(last), Value::Array(home), ..] = &range[..] else { return false };
                (*first..=*last).contains(&i64::from(slot)) && home[1] == Value::Int(new.port.into())
            })
        };
        others().all(|server| knows(ask(&mut server.connect(), &["CLUSTER", "SLOTS"])))
    });
    cluster.shell.file(
        "config.toml",
        &text.replace(&format!("'127.0.0.1:{}'", old.port), "").replace("[, ", "[").replace(", ,", ","),
    );
    cluster.run(&["set", bucket, "capacity=3"]);
    assert!(is_set(&cluster, number, bucket));
    let role: Vec<Value> = ask(&mut old.connect(), &["ROLE"]);
    assert_eq!(role[0], Value::BulkString(b"master".to_vec()), "the old one has heard of nothing");

    eventually("the new one is known", || {
        runtime.block_on(partitions.replicate()).expect("carried");
        assert!(
            is_set(&cluster, number, bucket),
            "it is taken back, as {} knows nothing of it",
            partitions.authority().redacted()
        );
        partitions.authority().redacted() == format!("127.0.0.1:{}", new.port)
    });

    // What the new one itself has lost is taken back: as if it had been promoted without the change.
    let number_of_last: u64 = cluster.redis(0, &["HGET", "drip:policy:{0}", "number"]);
    let mut pipe = redis::pipe();
    pipe.atomic().cmd("HDEL").arg("drip:settings:{0}").arg(bucket).ignore();
    pipe.cmd("ZREM").arg("drip:changed:{0}").arg(bucket).ignore();
    pipe.cmd("HSET").arg("drip:policy:{0}").arg("number").arg(number_of_last - 1).ignore();
    pipe.exec(&mut new.connect()).expect("done");
    eventually("it is taken back", || {
        runtime.block_on(partitions.replicate()).expect("carried");
        !is_set(&cluster, number, bucket)
    });
}
