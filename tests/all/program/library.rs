//! The function library beside others of its kind: newer ones, older ones, and a Redis that is full.

use dripd::config::{Config, Environment};
use dripd::store::library::{CURRENT, Library, VERSION, source};
use dripd::store::{Address, Layout, Store, StoreError};

use crate::rig::{Case, Daemon, Server, eventually};

/// The library as another version of it would be.
pub fn as_version(version: i64, oldest_daemon: i64) -> String {
    let (line, oldest) = (format!("local VERSION = {VERSION}\n"), "local OLDEST_DAEMON = ");
    let at = source().find(oldest).expect("it names the oldest daemon") + oldest.len();
    let end = at + source()[at..].find(|c: char| !c.is_ascii_digit()).expect("the line ends");
    let changed = format!("{}{oldest_daemon}{}", &source()[..at], &source()[end..]);
    assert!(changed.contains(&line), "it names its version");
    changed.replace(&line, &format!("local VERSION = {version}\n"))
}

fn load(server: &Server, source: &str) {
    redis::cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(source).exec(&mut server.connect()).expect("it loads");
}

fn loaded(server: &Server) -> i64 {
    let versions: Vec<i64> =
        redis::cmd("FCALL").arg("drip__version").arg(0).query(&mut server.connect()).expect("FCALL");
    versions[0]
}

fn set_maxmemory(server: &Server, bytes: u64) {
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).exec(&mut server.connect()).expect("CONFIG SET");
}

#[test]
fn a_library_is_never_loaded_over_a_newer_one() {
    let server = Server::start(&[]);
    load(&server, &as_version(1_000, VERSION));
    let home = server.home("");
    let _daemon = Daemon::start(home.path());
    assert_eq!(loaded(&server), 1_000);
    load(&server, &as_version(0, 0));
    let _another = Daemon::start(home.path());
    assert_eq!(loaded(&server), VERSION, "and over an older one at once");
}

#[test]
fn a_newer_library_that_does_not_speak_to_this_daemon_is_refused_with_the_way_out() {
    let server = Server::start(&[]);
    load(&server, &as_version(1_000, VERSION + 1));
    let home = server.home("");
    let daemon = Daemon::spawn(home.path());
    eventually("it says so", || daemon.log().contains("redis cannot be used"));
    let log = daemon.log();
    assert!(log.contains("is version 1000") && log.contains("update dripd"), "{log}");
    assert!(!log.contains("serving redis"), "{log}");
    assert_eq!(loaded(&server), 1_000);
    load(&server, &as_version(VERSION, VERSION));
    eventually("one that it knows serves", || daemon.log().contains("serving redis"));
}

#[test]
fn an_older_library_goes_on_while_memory_is_full_if_it_can_be_used() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '1000/s'\n");
    case.lpush("b", &["x"]);
    let newer = Library { source: Some(&*as_version(VERSION + 1, VERSION).leak()), version: VERSION + 1, ..CURRENT };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let toml = format!("[redis]\nurl = '{}'\nprefix = '{}'\n", server.url(), case.prefix);
        let settings = Config::parse(&toml, None, &Environment::default()).expect("good").redis;
        let (address, partition) = (Address::of(&settings).expect("an address"), Layout::of(&settings).authority());
        let mut store = Store::connect(&address, &partition).await.expect("redis answers");
        set_maxmemory(&server, 1);
        store.load_library(&newer).await.expect("the older one goes on");
        assert_eq!(loaded(&server), VERSION);
        let drained = store.drain(&["b".into()]).await.expect("and works");
        assert_eq!(drained.dispatched, 1, "a full Redis can be emptied");

        let strict = Library { oldest_usable: VERSION + 1, ..newer };
        let why = store.load_library(&strict).await.expect_err("it is too old");
        assert!(matches!(&why, StoreError::Unusable { why, .. } if why.contains("memory is full")), "{why}");
        assert!(why.to_string().contains("raise maxmemory"), "the way out: {why}");

        set_maxmemory(&server, 0);
        store.load_library(&strict).await.expect("there is room now");
        assert_eq!(loaded(&server), VERSION + 1);
    });
}

#[test]
fn a_daemon_that_meets_a_library_too_old_on_a_full_redis_waits_for_room() {
    let server = Server::start(&[]);
    load(&server, &as_version(CURRENT.oldest_usable - 1, 0));
    set_maxmemory(&server, 1);
    let home = server.home("");
    let daemon = Daemon::spawn(home.path());
    eventually("it says why", || daemon.log().contains("memory is full"));
    assert!(!daemon.log().contains("serving redis"));
    set_maxmemory(&server, 0);
    eventually("it serves", || daemon.log().contains("serving redis"));
    assert_eq!(loaded(&server), VERSION);
}
