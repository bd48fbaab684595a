//! Users with the rights that `dripd acl` prints for a system of several partitions.

use redis::Value;

use super::{PARTITIONS, System, shell_at};
use crate::program::Work;
use crate::rig::{Daemon, eventually};
use crate::roles::refused;

/// The shell of a user with the rights of a role.
fn of_role(system: &System, role: &str) -> super::Shell {
    let line = system.run(&["acl", role]).trim_end().replace(">PASSWORD", ">secret");
    let words: Vec<&str> = line.split(' ').collect();
    let _: Value = system.redis(&words);
    let toml = "[http]\nlisten = ''\n[defaults]\nrate = '1000/s'\n";
    let shell =
        shell_at(&system.server, &format!("partitions = {PARTITIONS}\nuser = '{role}'\npassword_file = 'pw'\n{toml}"));
    shell.file("pw", "secret\n");
    shell
}

#[test]
fn each_role_does_its_work_in_every_partition_and_is_refused_nothing() {
    let system = System::new("[defaults]\nrate = '1000/s'\n");
    let daemon_of = of_role(&system, "daemon");
    let _daemon = Daemon::start(daemon_of.home());
    let [submitter, operator, observer, worker] =
        ["submitter", "operator", "observer", "worker"].map(|role| of_role(&system, role));
    let ok = |shell: &super::Shell, args: &[&str]| {
        let (code, out, err) = shell.run(args);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        out
    };
    let buckets = system.a_bucket_each();
    for bucket in &buckets {
        ok(&submitter, &["push", bucket, "x"]);
        ok(&operator, &["set", bucket, "capacity=5"]);
        ok(&observer, &["explain", bucket]);
    }
    // Or one would leave by the route that is set for a moment.
    eventually("all have left", || system.status(&[])["counters"]["dispatched"] == PARTITIONS);
    ok(&operator, &["set", "tenant-*", "attempts=1", "route=fast"]);
    ok(&operator, &["unset", "tenant-*"]);
    ok(&operator, &["unset", &buckets[1]]);
    ok(&operator, &["pause", &buckets[1]]);
    ok(&operator, &["resume", &buckets[1]]);
    ok(&operator, &["slow", &buckets[2], "10ms"]);
    ok(&observer, &["status"]);
    ok(&observer, &["settings"]);
    ok(&observer, &["dead", "list"]);
    let work = Work::start(&worker, &["--concurrency", "8", "--exec", "true"]);
    eventually("all are done", || {
        let status = system.status(&[]);
        let routes = status["routes"].as_array().expect("routes").clone();
        status["counters"]["dispatched"] == PARTITIONS
            && routes.iter().all(|route| route["undelivered"] == 0 && route["pending"] == 0)
    });
    work.stop();
    let producer = of_role(&system, "producer");
    let key = system.queue(&buckets[4]);
    let mut client = redis::Client::open(format!("redis://producer:secret@127.0.0.1:{}", system.server.port))
        .and_then(|client| client.get_connection())
        .expect("it logs in");
    let length: i64 = redis::cmd("LPUSH").arg(&key).arg("x").query(&mut client).expect("it may push");
    assert_eq!(length, 1);
    drop(producer);
    // Taking its name off the group is granted to nobody: a worker may try.
    let mut log = refused(&mut system.server.connect(), "");
    log.retain(|line| !line.contains("xgroup|delconsumer"));
    assert_eq!(log, [""; 0]);
}
