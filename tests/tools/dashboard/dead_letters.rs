//! Dead letters on the dashboard: those that are shown, and those that are changed, are exactly those of the filter.

use serde_json::json;

use super::browser::Browser;
use super::{Door, OPERATE, STILL, bury, with_token};

fn dead_letters_are_put_back_and_dropped_exactly_those_that_the_filter_found() {
    let mut door = Door::start(STILL);
    bury(door.case(), "acme", "http 500", &[b"1", b"2", b"3"]);
    bury(door.case(), "acme", "expired", &[b"4"]);
    bury(door.case(), "beta", "http 500", &[b"5", b"6"]);
    let dead = door.case().key("dead");
    let mut browser = with_token(&door, "dead", OPERATE);
    browser.sees("6 dead letters of all buckets shown");
    browser.fill("Bucket", "ac*");
    browser.fill("Reason", "http*");
    browser.click("button", "Show");
    browser.sees("3 dead letters with bucket ac*, reason http* shown");
    browser.fill("Bucket", "b*"); // it is written there, and not shown: it does not count
    browser.click("button", "Put back all that match…");
    browser.sees("Put back 3 dead letters?");
    browser.sees("They are those with bucket ac*, reason http*.");
    browser.sees("“acme” is busy with 3 jobs for");
    browser.picture("retry");
    bury(door.case(), "acme", "http 500", &[b"too late"]);
    browser.click("button", "Put back 3 dead letters");
    browser.sees("3 dead letters put back.");
    let left = |door: &mut Door| -> i64 { door.case().cmd(&["XLEN", &dead]) };
    assert_eq!(left(&mut door), 4, "the one that died meanwhile was not counted, and stays");
    let retried = door.case().key("retry:acme");
    let ready = door.case().key("ready");
    let mut both = redis::pipe(); // in one look: a job may leave between two
    both.atomic().cmd("ZCARD").arg(&retried).cmd("XLEN").arg(&ready);
    let (waiting, left_bucket): (i64, i64) = both.query(&mut door.case().redis).expect("both");
    assert_eq!(waiting + left_bucket, 3);
    browser.sees("1 dead letter with bucket ac*, reason http* shown");
    browser.fill("Bucket", "beta");
    browser.fill("Reason", "");
    browser.click("button", "Show");
    browser.sees("2 dead letters with bucket beta shown");
    browser.click("button", "Drop all that match…");
    browser.sees("They are deleted for good.");
    browser.click("button", "Cancel");
    assert_eq!(left(&mut door), 4, "it was only asked");
    browser.click("button", "Drop all that match…");
    browser.click("button", "Drop 2 dead letters");
    browser.sees("2 dead letters dropped.");
    assert_eq!(left(&mut door), 2);
    assert_eq!(door.shell.run(&["dead", "list", "--bucket", "beta", "--json"]).1, "");
    browser.fill("Bucket", "");
    browser.click("button", "Show");
    browser.sees("2 dead letters of all buckets shown");
    let name = browser.run("document.querySelector('tbody button:last-child').getAttribute('aria-label')");
    browser.click("button", name.as_str().expect("a name"));
    browser.click("button", "Drop 1 dead letter");
    browser.sees("1 dead letter dropped.");
    assert_eq!(left(&mut door), 1);
}

fn what_died_after_the_count_stays_although_one_that_was_counted_is_gone() {
    let mut door = Door::start(STILL);
    bury(door.case(), "acme", "http 500", &[b"1", b"2", b"3"]);
    let dead = door.case().key("dead");
    let mut browser = with_token(&door, "dead", OPERATE);
    browser.sees("3 dead letters of all buckets shown");
    for (button, go, done) in [
        ("Put back all that match…", "Put back 3 dead letters", "2 dead letters put back."),
        ("Drop all that match…", "Drop 2 dead letters", "1 dead letter dropped."),
    ] {
        browser.click("button", button);
        browser.sees("They are those of all buckets.");
        let oldest: Vec<(String, Vec<String>)> = door.case().cmd(&["XRANGE", &dead, "-", "+", "COUNT", "1"]);
        let _: i64 = door.case().cmd(&["XDEL", &dead, &oldest[0].0]);
        bury(door.case(), "acme", "http 500", &[b"too late"]);
        browser.click("button", go);
        browser.sees(done);
        let left: Vec<(String, Vec<String>)> = door.case().cmd(&["XRANGE", &dead, "-", "+"]);
        assert_eq!(left.len(), 1);
        assert!(left[0].1.contains(&"too late".to_owned()), "{left:?}: it was not counted");
        if button.starts_with("Put back") {
            bury(door.case(), "acme", "http 500", &[b"another"]);
            browser.click("button", "Show");
            browser.sees("2 dead letters of all buckets shown");
        }
    }
}

/// Hold back what the page asks about dead letters until `held[n]()`; `done` counts the answers.
fn hold(browser: &mut Browser) {
    browser.run(
        "globalThis.held = []; globalThis.done = 0; const ask = fetch; \
         globalThis.fetch = (...a) => (String(a[0]).startsWith('/v1/dead?') \
             ? new Promise((go) => held.push(go)).then(() => ask(...a)).finally(() => (done += 1)) : ask(...a)); void 0",
    );
}

/// Let go what was held back, in this order, and wait until the page has what came of it.
fn let_go(browser: &mut Browser, order: &[usize]) {
    browser.until(&format!("held.length === {}", order.len()));
    for (n, at) in order.iter().enumerate() {
        browser.run(&format!("held[{at}]()"));
        browser.until(&format!("done === {}", n + 1));
    }
    browser.sees(" shown, the oldest first");
    browser.run("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => drawn(null))))");
    browser.run("held = []; done = 0");
}

const ENTRIES: &str =
    "[...document.querySelectorAll('tbody button:last-child')].map((one) => one.getAttribute('aria-label'))";

fn an_answer_about_another_filter_is_not_shown() {
    let mut door = Door::start(STILL);
    bury(door.case(), "acme", "http 500", &[b"1", b"2", b"3"]);
    let mut browser = with_token(&door, "dead", OPERATE);
    browser.sees("3 dead letters of all buckets shown");
    hold(&mut browser);
    for bucket in ["acme", "nobody"] {
        browser.fill("Bucket", bucket);
        browser.click("button", "Show");
        browser.sees(&format!("Looking for dead letters with bucket {bucket}"));
    }
    assert_eq!(browser.run(&format!("{ENTRIES}.length")), json!(0), "what stood there is no answer to this");
    for button in ["Put back all that match…", "Drop all that match…"] {
        assert!(browser.is_disabled("button", button), "{button}: it is not known yet what matches");
    }
    let_go(&mut browser, &[1, 0]);
    browser.sees("0 dead letters with bucket nobody shown");
    assert_eq!(browser.run(&format!("{ENTRIES}.length")), json!(0));
    browser.fill("Bucket", "acme");
    browser.click("button", "Show");
    let_go(&mut browser, &[0]);
    browser.sees("3 dead letters with bucket acme shown");
    assert!(!browser.is_disabled("button", "Drop all that match…"));
}

fn no_dead_letter_is_shown_twice_however_often_one_clicks() {
    let mut door = Door::start(STILL);
    let jobs: Vec<String> = (0..120).map(|n| n.to_string()).collect();
    bury(door.case(), "acme", "http 500", &jobs.iter().map(String::as_bytes).collect::<Vec<_>>());
    let mut browser = with_token(&door, "dead", OPERATE);
    browser.sees("50 dead letters of all buckets shown");
    hold(&mut browser);
    browser.run("document.querySelector('form.row button').click(); document.querySelector('form.row button').click()");
    let_go(&mut browser, &[0, 1]);
    let twice = |browser: &mut Browser, n: usize| {
        assert_eq!(browser.run(&format!("{ENTRIES}.length")), json!(n));
        assert_eq!(browser.run(&format!("new Set({ENTRIES}).size")), json!(n), "none of them twice");
    };
    twice(&mut browser, 50);
    let more = "[...document.querySelectorAll('main button')].find((one) => one.textContent === 'Show more')";
    browser.run(&format!("{more}.click(); {more}.click()"));
    let_go(&mut browser, &[0]);
    browser.sees("100 dead letters of all buckets shown");
    twice(&mut browser, 100);
    browser.click("button", "Show more");
    let_go(&mut browser, &[0]);
    browser.sees("120 dead letters of all buckets shown");
    twice(&mut browser, 120);
}

tests! {
    dead_letters_are_put_back_and_dropped_exactly_those_that_the_filter_found,
    what_died_after_the_count_stays_although_one_that_was_counted_is_gone,
    an_answer_about_another_filter_is_not_shown,
    no_dead_letter_is_shown_twice_however_often_one_clicks,
}
