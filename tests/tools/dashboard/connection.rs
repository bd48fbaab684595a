//! How the pages stay up to date: with a daemon that ends or hangs, in many tabs, and out of view.

use serde_json::json;

use super::browser::{Browser, DESK};
use super::{Door, OPERATE, STILL, fill, with_token};
use crate::rig::{Daemon, eventually};

fn a_lost_connection_is_shown_and_comes_back_by_itself() {
    let mut door = Door::start(STILL);
    fill(&mut door, 1);
    let mut browser = Browser::open(&door.page(""), DESK);
    browser.sees("Connected");
    browser.until("document.querySelector('.tiles dd').textContent !== '–'");
    assert_eq!(door.daemon.stop().0, Some(0));
    browser.sees("Connection lost");
    browser.sees("It is tried again; what is shown may be old.");
    browser.picture("lost");
    let lost = browser.run("document.querySelector('#lost').getAttribute('role')");
    assert_eq!(lost, "alert", "it is read out");
    door.daemon = Daemon::start(door.shell.home());
    browser.sees("Connected");
    browser.gone("is lost");
    fill(&mut door, 2);
    browser.sees("2 of 2 buckets with work.");
}

fn a_daemon_that_hangs_is_a_lost_connection_too() {
    let mut door = Door::start(STILL);
    fill(&mut door, 1);
    let mut browser = with_token(&door, "bucket/b0000", OPERATE);
    browser.sees("The next 1 of 1 job");
    door.daemon.signal("STOP");
    browser.click("button", "Pause…");
    browser.click("button", "Pause b0000");
    browser.sees("dripd did not answer in time: it is not known whether it was done");
    browser.press("Escape");
    browser.sees("Connection lost");
    browser.sees("The connection to dripd is lost: dripd does not answer.");
    door.daemon.signal("CONT");
    browser.sees("Connected");
    browser.gone("is lost");
    fill(&mut door, 2);
    browser.goto(&door.page(""));
    browser.sees("2 of 2 buckets with work.");
}

fn a_reload_is_no_lost_connection() {
    let door = Door::start(STILL);
    let mut browser = Browser::open(&door.page(""), DESK);
    browser.sees("Connected");
    browser.run(
        "globalThis.states = []; new MutationObserver(() => states.push(document.querySelector('#link').textContent))\
         .observe(document.querySelector('#link'), { childList: true, characterData: true, subtree: true }); \
         globalThis.streams = 0; const ask = fetch; globalThis.fetch = (...a) => ((streams += a[0] === '/v1/events'), ask(...a)); void 0",
    );
    assert_eq!(door.shell.run(&["reload"]).0, 0);
    browser.until("streams === 1");
    browser.until("document.querySelector('.tiles dd').textContent !== '–'");
    assert_eq!(browser.run("states"), json!([]), "it was connected all the time");
}

/// How many buckets wait, by the tile that the stream of events feeds.
fn tile(n: usize) -> String {
    format!("document.querySelector('.tiles div:nth-child(3) dd').textContent === '{n}'")
}

fn eight_tabs_share_one_stream_and_are_all_up_to_date() {
    const TABS: usize = 8;
    let mut door = Door::start(STILL);
    let mut browser = Browser::open(&door.page(""), DESK);
    browser.sees("Connected");
    for _ in 1..TABS {
        browser.tab(&door.page(""));
        browser.sees("Connected");
    }
    fill(&mut door, 3);
    for tab in 0..TABS {
        browser.turn_to(tab);
        browser.sees("3 of 3 buckets with work.");
        browser.until(&tile(3));
    }
    eventually("one listens for all", || browser.streams() == 1);
    browser.turn_to(0);
    browser.close(); // the one that listens for all
    fill(&mut door, 5);
    for tab in 0..TABS - 1 {
        browser.turn_to(tab);
        browser.until(&tile(5));
    }
    eventually("one listens for all", || browser.streams() == 1);
    assert_eq!(door.daemon.stop().0, Some(0));
    for tab in 0..TABS - 1 {
        browser.turn_to(tab);
        browser.sees("Connection lost");
    }
}

fn a_tab_with_another_token_is_told_nothing_by_the_others() {
    let door = Door::start(STILL);
    let mut browser = Browser::open(&door.page(""), DESK);
    browser.sees("Connected");
    browser.tab(&door.page(""));
    browser.run(&format!("sessionStorage.setItem('dripd-token', '{OPERATE}')"));
    browser.reload();
    browser.sees("Connected");
    eventually("each has its own stream", || browser.streams() == 2);
    browser.run("sessionStorage.setItem('dripd-token', 'wrong')");
    browser.reload();
    browser.sees("This page may not read: no token like this one is named.");
    browser.turn_to(0);
    browser.sees("Connected");
}

fn a_tab_that_hangs_does_not_keep_the_news_from_the_others() {
    let mut door = Door::start(STILL);
    let mut browser = Browser::open(&door.page(""), DESK);
    browser.sees("Connected");
    browser.tab(&door.page(""));
    browser.sees("Connected");
    browser.turn_to(0);
    browser.run("setTimeout(() => { for (const since = Date.now(); Date.now() - since < 90_000; ); }, 0); void 0");
    browser.turn_to(1);
    fill(&mut door, 4);
    browser.until(&tile(4));
}

fn a_page_out_of_view_asks_nothing_and_is_up_to_date_when_it_is_back() {
    let mut door = Door::start(STILL);
    let mut browser = Browser::open(&door.page(""), DESK);
    browser.sees("Connected");
    browser.tab(&door.page(""));
    browser.sees("Connected");
    browser.turn_to(0);
    browser.hide(true); // the one that listens for both
    fill(&mut door, 2);
    browser.turn_to(1);
    browser.until(&tile(2));
    eventually("one listens for all", || browser.streams() == 1);
    browser.hide(true);
    eventually("nobody listens", || browser.streams() == 0);
    fill(&mut door, 6);
    for tab in [0, 1] {
        browser.turn_to(tab);
        browser.hide(false);
        browser.sees("Connected");
        browser.until(&tile(6));
        browser.sees("6 of 6 buckets with work.");
    }
    eventually("one listens for all", || browser.streams() == 1);
}

tests! {
    a_lost_connection_is_shown_and_comes_back_by_itself,
    a_daemon_that_hangs_is_a_lost_connection_too,
    a_reload_is_no_lost_connection,
    eight_tabs_share_one_stream_and_are_all_up_to_date,
    a_tab_with_another_token_is_told_nothing_by_the_others,
    a_tab_that_hangs_does_not_keep_the_news_from_the_others,
    a_page_out_of_view_asks_nothing_and_is_up_to_date_when_it_is_back,
}
