//! What goes wrong: each fault once, on a stage whose load is on. Whatever it stops goes on afterwards.

use std::time::Duration;

use dripd::store::library::VERSION;

use super::cast::now_us;
use super::stage::{Setting, Stage};
use super::{clock, disk, failover, nodes, proxy};
use crate::program::library::as_version;
use crate::rig::{Daemon, eventually, signal};

/// A fault by its name, where it is made, and how.
#[derive(Clone, Copy)]
pub struct Fault(pub &'static str, pub Setting, pub fn(&mut Stage));

/// All of them, each for a stage of its own.
#[rustfmt::skip]
pub const FAULTS: [Fault; 33] = [
    Fault("nothing", Setting::Plain, |_| pause(1_000)),
    Fault("kill -9 of a daemon", Setting::Plain, kill_a_daemon),
    Fault("a daemon hangs for 2 s", Setting::Plain, hang_a_daemon),
    Fault("both daemons are killed", Setting::Plain, kill_both_daemons),
    Fault("a worker dies with jobs in hand", Setting::Plain, |stage| stage.kill_a_worker()),
    Fault("kill -9 of Redis", Setting::Plain, kill_redis),
    Fault("Redis hangs for 2 s", Setting::Plain, hang_redis),
    Fault("CLIENT PAUSE for 1 s", Setting::Plain, |stage| ask(stage, &["CLIENT", "PAUSE", "1000", "ALL"])),
    Fault("DEBUG SLEEP for 1 s", Setting::Plain, |stage| ask(stage, &["DEBUG", "SLEEP", "1"])),
    Fault("CLIENT KILL of everybody", Setting::Plain, kill_clients),
    Fault("FUNCTION FLUSH", Setting::Plain, |stage| ask(stage, &["FUNCTION", "FLUSH"])),
    Fault("FLUSHALL", Setting::Plain, flush_all),
    Fault("a busy script for 1 s", Setting::Plain, busy_script),
    Fault("memory is full for 1 s", Setting::Plain, memory_is_full),
    Fault("the disk is full for 1 s, fsync always", Setting::Disk("always"), disk::is_full),
    Fault("the disk is full for 1 s, fsync everysec", Setting::Disk("everysec"), disk::is_full),
    Fault("maxclients for 1 s", Setting::Plain, maxclients),
    Fault("the password is changed", Setting::Password, change_password),
    Fault("a demoted primary for 1 s", Setting::Plain, demote),
    Fault("failover by an operator", Setting::Sentinels, failover::ask_for_a_failover),
    Fault("failover, the primary was killed", Setting::Sentinels, failover::kill_the_primary),
    Fault("failover by an operator in a cluster", Setting::Cluster, nodes::ask_for_a_failover),
    Fault("a primary of a cluster is killed", Setting::Cluster, nodes::kill_a_primary),
    Fault("a primary of a cluster hangs", Setting::Cluster, nodes::hang_a_primary),
    Fault("a loaded slot is moved and comes back", Setting::Cluster, nodes::move_a_slot),
    Fault("connections die without a word", Setting::Proxy, proxy::freeze_both),
    Fault("answers are lost without a word", Setting::Proxy, proxy::freeze_answers),
    Fault("the server's clock steps 1 h ahead", Setting::Clock, clock::an_hour_ahead),
    Fault("the server's clock steps 1 h back", Setting::Clock, clock::an_hour_back),
    Fault("the server's clock steps 1 day back", Setting::Clock, clock::a_day_back),
    Fault("a newer library, then an older one", Setting::Plain, other_libraries),
    Fault("the configuration is reloaded", Setting::Plain, reload),
    Fault("several at once", Setting::Plain, several),
];

pub fn pause(ms: u64) {
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

fn kill_clients(stage: &mut Stage) {
    ask(stage, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
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

/// Redis knows the new one half a second before the daemons do, and everybody's connection is closed.
fn change_password(stage: &mut Stage) {
    let new = format!("{:016x}", crate::rig::rand_u64());
    ask(stage, &["ACL", "SETUSER", "drip", "resetpass", &format!(">{new}")]);
    kill_clients(stage);
    pause(500);
    stage.set_password(&new);
}

/// A replica of nobody that answers: it keeps what it has, and takes no writes.
fn demote(stage: &mut Stage) {
    let nobody = crate::rig::free_port().to_string();
    ask(stage, &["REPLICAOF", "127.0.0.1", &nobody]);
    pause(1_000);
    ask(stage, &["REPLICAOF", "NO", "ONE"]);
}

/// A newer daemon brings its library, which older ones work with and leave alone; then an older library comes back, as with a backup, and a
/// daemon that starts replaces it.
fn other_libraries(stage: &mut Stage) {
    put_library(stage, &as_version(VERSION + 1, VERSION));
    pause(500);
    stage.daemons.remove(0).kill();
    stage.daemons.push(Daemon::start(stage.home()));
    assert_eq!(library(stage), VERSION + 1, "the newer one stays");
    put_library(stage, &as_version(VERSION - 1, 0));
    pause(500);
    stage.daemons.remove(0).kill();
    stage.daemons.push(Daemon::start(stage.home()));
    eventually("the older one is replaced", || library(stage) == VERSION);
}

fn put_library(stage: &Stage, source: &str) {
    let mut redis = stage.redis.connect().expect("it answers");
    redis::cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(source).exec(&mut redis).expect("it loads");
}

/// The version of the library that is loaded.
fn library(stage: &Stage) -> i64 {
    let mut redis = stage.redis.connect().expect("it answers");
    let versions: Vec<i64> = redis::cmd("FCALL").arg("drip__version").arg(0).query(&mut redis).expect("FCALL");
    versions[0]
}

fn reload(stage: &mut Stage) {
    stage.daemons.iter().for_each(|daemon| daemon.signal("HUP"));
}

fn several(stage: &mut Stage) {
    stage.kill_a_worker();
    ask(stage, &["FUNCTION", "FLUSH"]);
    stage.daemons.remove(0).kill();
    kill_redis(stage);
    kill_clients(stage);
    stage.daemons.push(another_daemon(stage));
}
