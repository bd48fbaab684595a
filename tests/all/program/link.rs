//! The connection that comes back, shared by several callers.

use std::sync::Mutex;

use dripd::config::{Config, Environment};
use dripd::store::link::Link;
use dripd::store::{Address, Layout, Partitions, StoreError};
use tokio::sync::Notify;

use crate::rig::Server;

/// How many connections a server has taken so far.
fn connections(redis: &mut redis::Connection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("stats").query(redis).expect("INFO");
    let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:")).expect("a counter");
    line.parse().expect("a number")
}

fn link_to(server: &Server) -> Link {
    let config = Config::parse(&format!("[redis]\nurl = '{}'\n", server.url()), None, &Environment::default());
    let redis = config.expect("good").redis;
    Link::new(Address::of(&redis).expect("an address"), Layout::of(&redis))
}

fn lost() -> StoreError {
    StoreError::Lost { address: "the test".to_owned(), call: "a call", why: "it says so".to_owned() }
}

/// A call that fails the first time, after `until`, and says when it has begun.
async fn fail_once(link: &Link, begun: &Notify, until: &Notify) {
    let is_first = Mutex::new(true);
    let call = |_: Partitions| {
        let is_first = std::mem::replace(&mut *is_first.lock().expect("one thread"), false);
        async move {
            if !is_first {
                return Ok(());
            }
            begun.notify_one();
            until.notified().await;
            Err(lost())
        }
    };
    link.until_answered(call).await.expect("answered");
}

#[test]
fn a_call_that_fails_late_does_not_throw_away_the_connection_that_another_has_made_meanwhile() {
    let server = Server::start(&[]);
    let mut redis = server.connect();
    let before = connections(&mut redis);
    let link = link_to(&server);
    let (early_begun, late_begun, early, late) = (Notify::new(), Notify::new(), Notify::new(), Notify::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let first = async {
            fail_once(&link, &early_begun, &early).await; // on the first connection; the second one is made
            late.notify_one();
        };
        let second = fail_once(&link, &late_begun, &late);
        let both_begun = async {
            early_begun.notified().await;
            late_begun.notified().await;
            early.notify_one();
        };
        tokio::join!(first, second, both_begun);
        link.until_answered(|_| async { Ok(()) }).await.expect("answered");
    });
    assert_eq!(connections(&mut redis) - before, 2, "one, and one in its place");
}

#[test]
fn what_redis_refuses_is_said_and_not_tried_again() {
    let server = Server::start(&[]);
    let link = link_to(&server);
    let tries = Mutex::new(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let refused = runtime.block_on(link.until_answered(|_| {
        *tries.lock().expect("one thread") += 1;
        async {
            Err::<(), _>(StoreError::Refused { call: "a call", code: "NOPERM".to_owned(), message: "no".to_owned() })
        }
    }));
    assert_eq!(refused.expect_err("refused").to_string(), "a call was refused: NOPERM no");
    assert_eq!(*tries.lock().expect("one thread"), 1);
}

#[test]
fn a_call_that_is_made_once_is_not_repeated_and_a_loss_inside_of_another_error_ends_the_connection_too() {
    use dripd::operate::change::ChangeError;

    let server = Server::start(&[]);
    let mut redis = server.connect();
    let before = connections(&mut redis);
    let link = link_to(&server);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let calls = Mutex::new(0);
    runtime.block_on(async {
        for _ in 0..2 {
            let call = |_: Partitions| async {
                *calls.lock().expect("one thread") += 1;
                Err::<(), _>(ChangeError::Store(lost()))
            };
            let lost = link.once(call).await.expect_err("lost");
            assert!(matches!(lost, ChangeError::Store(StoreError::Lost { .. })), "{lost}");
        }
        // What Redis refused says nothing of the connection: it stays.
        for _ in 0..2 {
            let refused = StoreError::Refused { call: "a call", code: "NOPERM".to_owned(), message: "no".to_owned() };
            link.once(|_: Partitions| async { Err::<(), _>(refused) }).await.expect_err("refused");
        }
    });
    assert_eq!(*calls.lock().expect("one thread"), 2, "each once");
    assert_eq!(connections(&mut redis) - before, 3, "one for each that was lost, and one that stayed");
}
