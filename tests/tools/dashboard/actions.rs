//! What can be done on the dashboard: with a token alone, each after a question that names it, and then it is so in Redis.

use serde_json::json;

use super::browser::{Browser, DESK, PHONE};
use super::{Door, OPERATE, READ, STILL, with_token};
use crate::rig::eventually;

const REASON: &str = "Why (others see it)";
const FOR: &str = "For how long (empty: until somebody ends it)";
const TOKEN: &str = "Token: the first line of its file";

/// A page, with the token that may operate.
fn open(door: &Door, hash: &str) -> Browser {
    with_token(door, hash, OPERATE)
}

fn nothing_can_be_changed_without_a_token_and_a_token_is_gone_with_its_tab() {
    let mut door = Door::start(STILL);
    door.case().lpush("acme", &["secret", "secret"]);
    let mut browser = Browser::open(&door.page("bucket/acme"), PHONE);
    browser.sees("This page is read-only until a token is given.");
    browser.sees("Give a token that may read, and the first bytes of waiting jobs are shown.");
    for button in ["Pause…", "Resume…", "Set rate…", "Use rate in file…", "Slow down…", "End slow-down…"] {
        assert!(browser.is_disabled("button", button), "{button}");
    }
    browser.click("button", "Read only: give a token");
    browser.fill(TOKEN, "wrong");
    browser.press("Enter");
    browser.sees("no token like this one is named");
    assert_eq!(browser.run("sessionStorage.getItem('dripd-token')"), json!(null), "it is not kept");
    browser.fill(TOKEN, READ);
    browser.click("button", "Use this token");
    browser.sees("secret");
    browser.click("button", "Pause…");
    browser.sees("Pause the bucket “acme”?");
    browser.click("button", "Pause acme");
    browser.sees("the token \"reader\" may read, and no more");
    browser.press("Escape");
    assert_eq!(door.settings(), "nothing is set: the file and its defaults hold\n");
    assert_eq!(browser.run("localStorage.length + document.cookie.length"), json!(0), "it is kept in this tab alone");
    browser.click("button", "Forget the token");
    browser.sees("This page is read-only until a token is given.");
    browser.gone("secret");
    assert_eq!(browser.run("sessionStorage.length"), json!(0));
}

fn a_bucket_is_paused_and_goes_on_after_a_question_each() {
    let door = Door::start(STILL);
    let mut browser = open(&door, "bucket/acme");
    browser.click("button", "Pause…");
    browser.sees("No job leaves until it is resumed.");
    browser.click("button", "Cancel");
    assert_eq!(door.settings(), "nothing is set: the file and its defaults hold\n", "it was only asked");
    browser.click("button", "Pause…");
    browser.fill(REASON, "carrier down");
    browser.fill(FOR, "soon");
    browser.click("button", "Pause acme");
    browser.sees("\"soon\" is not a time");
    browser.fill(FOR, "10m");
    browser.picture("confirm");
    browser.click("button", "Pause acme");
    browser.sees("acme is paused.");
    let settings = door.settings();
    for part in ["acme: pause", "(in 9m", "ops@", "over HTTP", "because carrier down"] {
        assert!(settings.contains(part), "{part} is not in\n{settings}");
    }
    browser.sees("paused");
    browser.click("button", "Resume…");
    browser.click("button", "Resume acme");
    browser.sees("acme goes on.");
    assert_eq!(door.settings(), "nothing is set: the file and its defaults hold\n");
}

fn a_rate_is_set_with_the_present_one_in_view_and_taken_back() {
    let mut door = Door::start(STILL);
    let mut browser = open(&door, "bucket/acme");
    door.case().lpush("acme", &["1", "2", "3"]);
    eventually("one leaves at once", || door.shell.case.stream("ready").len() == 1);
    browser.click("button", "Set rate…");
    browser.sees("It is 1/h now.");
    browser.sees("dripd what-if acme rate=5/s");
    browser.sees("dripd simulate --config NEW.toml --against config.toml --for 10m --load 'acme: 1/h'");
    browser.fill("Rate", "1000/s");
    browser.click("button", "Set the rate of acme");
    browser.sees("The rate of acme is 1000/s.");
    eventually("the others leave", || door.shell.case.stream("ready").len() == 3);
    browser.sees("The last 3 jobs: half left at most");
    assert!(door.settings().contains("acme: rate = \"1000/s\""));
    browser.click("button", "Use rate in file…");
    browser.click("button", "Use the rate in the file for acme");
    browser.sees("The rate of acme is the one in the file.");
    assert_eq!(door.settings(), "nothing is set: the file and its defaults hold\n");
    browser.goto(&door.page("changes"));
    browser.sees("before: rate=\"1000/s\"");
}

fn a_bucket_and_a_budget_are_slowed_down_and_that_is_ended() {
    let door = Door::start(&format!("{STILL}[[budget]]\nmatch = 'twilio'\nrate = '1/h'\n"));
    for (kind, name) in [("bucket", "acme"), ("budget", "twilio")] {
        let mut browser = open(&door, &format!("{kind}/{name}"));
        browser.click("button", "Slow down…");
        browser.fill("For how long", "10m");
        browser.fill(REASON, "429");
        browser.click("button", &format!("Slow {name} down"));
        browser.sees(&format!("{name} is slowed down for 10 m."));
        let settings = door.settings();
        assert!(settings.contains(&format!("{name}: slow")) && settings.contains("because 429"), "{settings}");
        browser.click("button", "End slow-down…");
        browser.click("button", &format!("End the slow-down of {name}"));
        browser.sees(&format!("The slow-down of {name} is over."));
        eventually("it is over", || !door.settings().contains("until"));
    }
}

/// Go on by Tab until the element that has the focus is called so.
fn tab_to(browser: &mut Browser, name: &str) {
    for _ in 0..60 {
        browser.press("Tab");
        let focused = "(document.activeElement.labels?.[0] ?? document.activeElement).textContent";
        if browser.run(focused).as_str().is_some_and(|text| text.starts_with(name)) {
            return;
        }
    }
    panic!("Tab does not come to {name:?}");
}

fn all_of_it_can_be_done_with_the_keyboard_alone() {
    let mut door = Door::start(STILL);
    door.case().lpush("acme", &["1", "2"]);
    let mut browser = Browser::open(&door.page(""), DESK);
    browser.sees("Connected");
    browser.sees("acme");
    browser.press("Tab");
    assert_eq!(browser.run("document.activeElement.textContent"), "Skip to the content");
    tab_to(&mut browser, "Read only: give a token");
    browser.press("Enter");
    browser.type_in(OPERATE);
    browser.press("Enter");
    browser.sees("The token is used.");
    tab_to(&mut browser, "Filter");
    browser.type_in("acm");
    browser.sees("1 of 1 bucket with work.");
    tab_to(&mut browser, "acme");
    assert_eq!(browser.run("getComputedStyle(document.activeElement).outlineStyle"), "solid", "one sees where one is");
    browser.press("Enter");
    browser.sees("Each asks first.");
    assert_eq!(browser.run("document.activeElement.id"), "main", "what is read next is the page");
    tab_to(&mut browser, "Pause…");
    browser.press("Space");
    browser.sees("Pause the bucket “acme”?");
    assert_eq!(browser.run("document.querySelector('dialog').contains(document.activeElement)"), json!(true));
    browser.press("Escape");
    assert_eq!(browser.run("document.activeElement.textContent"), "Pause…", "one is back where one was");
    assert_eq!(door.settings(), "nothing is set: the file and its defaults hold\n");
    browser.press("Enter");
    browser.sees("Pause the bucket “acme”?");
    tab_to(&mut browser, "Pause acme");
    browser.press("Enter");
    browser.sees("acme is paused.");
    assert!(door.settings().contains("acme: pause"));
}

/// The page hears of a closed dialog a little after the keys go to the buttons again.
fn the_next_question_can_be_asked_as_soon_as_the_last_one_is_closed() {
    let door = Door::start(STILL);
    let mut browser = open(&door, "bucket/acme");
    browser.sees("Each asks first.");
    browser.click("button", "Pause…");
    browser.sees("Pause the bucket “acme”?");
    let button = "[...document.querySelectorAll('button')].find((one) => one.textContent === 'Resume…')";
    browser.run(&format!("document.querySelector('dialog').close(), {button}.click()"));
    browser.sees("Resume the bucket “acme”?");
    browser.click("button", "Resume acme");
    browser.sees("Nothing was changed.");
}

tests! {
    nothing_can_be_changed_without_a_token_and_a_token_is_gone_with_its_tab,
    a_bucket_is_paused_and_goes_on_after_a_question_each,
    a_rate_is_set_with_the_present_one_in_view_and_taken_back,
    a_bucket_and_a_budget_are_slowed_down_and_that_is_ended,
    all_of_it_can_be_done_with_the_keyboard_alone,
    the_next_question_can_be_asked_as_soon_as_the_last_one_is_closed,
}
