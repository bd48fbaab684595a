//! What goes wrong: each fault once, on a stage whose load is on. Whatever it stops goes on afterwards.

use std::time::Duration;

use super::stage::{Stage, now_us};
use crate::rig::{Daemon, signal};

/// A fault by its name, and how it is made.
pub type Fault = (&'static str, fn(&mut Stage));

/// All of them, each for a stage of its own.
pub const FAULTS: [Fault; 18] = [
    ("nothing", |_| pause(1_000)),
    ("kill -9 of a daemon", kill_a_daemon),
    ("a daemon hangs for 2 s", hang_a_daemon),
    ("both daemons are killed", kill_both_daemons),
    ("a worker dies with jobs in hand", |stage| stage.kill_a_worker()),
    ("kill -9 of Redis", kill_redis),
    ("Redis hangs for 2 s", hang_redis),
    ("CLIENT PAUSE for 1 s", |stage| ask(stage, &["CLIENT", "PAUSE", "1000", "ALL"])),
    ("DEBUG SLEEP for 1 s", |stage| ask(stage, &["DEBUG", "SLEEP", "1"])),
    ("CLIENT KILL of everybody", |stage| ask(stage, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])),
    ("FUNCTION FLUSH", |stage| ask(stage, &["FUNCTION", "FLUSH"])),
    ("FLUSHALL", flush_all),
    ("a busy script for 1 s", busy_script),
    ("memory is full for 1 s", memory_is_full),
    ("maxclients for 1 s", maxclients),
    ("a demoted primary for 1 s", demote),
    ("the configuration is reloaded", reload),
    ("several at once", several),
];

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Ask Redis for something that it may not answer.
fn ask(stage: &mut Stage, words: &[&str]) {
    if let Ok(mut redis) = stage.redis.connect() {
        let _ = redis::cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut redis);
    }
}

fn another_daemon(stage: &Stage) -> Daemon {
    Daemon::spawn(stage.home())
}

fn kill_a_daemon(stage: &mut Stage) {
    stage.daemons.remove(0).kill();
    pause(500);
    stage.daemons.push(another_daemon(stage));
}

fn kill_both_daemons(stage: &mut Stage) {
    stage.daemons.iter_mut().for_each(Daemon::kill);
    pause(1_000);
    stage.daemons = vec![another_daemon(stage), another_daemon(stage)];
}

fn hang_a_daemon(stage: &mut Stage) {
    stage.daemons[0].signal("STOP");
    pause(2_000);
    stage.daemons[0].signal("CONT");
}

fn kill_redis(stage: &mut Stage) {
    stage.redis.kill();
    pause(300);
    stage.redis.start();
}

fn hang_redis(stage: &mut Stage) {
    let pid = stage.redis.pid();
    signal(pid, "STOP");
    pause(2_000);
    signal(pid, "CONT");
}

fn flush_all(stage: &mut Stage) {
    ask(stage, &["FLUSHALL"]);
    stage.lost_all_us.push(now_us());
}

fn busy_script(stage: &mut Stage) {
    // Another connection cannot be made meanwhile, for nothing else is answered.
    let (Ok(mut redis), Ok(mut other)) = (stage.redis.connect(), stage.redis.connect()) else { return };
    let script = "local n = 0 while true do n = n + 1 end";
    let busy = std::thread::spawn(move || redis::cmd("EVAL").arg(script).arg(0).query::<()>(&mut redis));
    pause(1_000);
    let _ = redis::cmd("SCRIPT").arg("KILL").query::<redis::Value>(&mut other);
    let _ = busy.join();
}

fn memory_is_full(stage: &mut Stage) {
    ask(stage, &["CONFIG", "SET", "maxmemory", "1"]);
    pause(1_000);
    ask(stage, &["CONFIG", "SET", "maxmemory", "0"]);
}

fn maxclients(stage: &mut Stage) {
    let Ok(mut redis) = stage.redis.connect() else { return };
    let mut ask = |words: &[&str]| redis::cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut redis);
    let _ = ask(&["CONFIG", "SET", "maxclients", "1"]);
    let _ = ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    pause(1_000);
    let _ = ask(&["CONFIG", "SET", "maxclients", "10000"]);
}

/// A replica of nobody that answers: it keeps what it has, and takes no writes.
fn demote(stage: &mut Stage) {
    let nobody = crate::rig::free_port().to_string();
    ask(stage, &["REPLICAOF", "127.0.0.1", &nobody]);
    pause(1_000);
    ask(stage, &["REPLICAOF", "NO", "ONE"]);
}

fn reload(stage: &mut Stage) {
    stage.daemons.iter().for_each(|daemon| daemon.signal("HUP"));
}

fn several(stage: &mut Stage) {
    stage.kill_a_worker();
    ask(stage, &["FUNCTION", "FLUSH"]);
    stage.daemons.remove(0).kill();
    kill_redis(stage);
    ask(stage, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    stage.daemons.push(another_daemon(stage));
}
