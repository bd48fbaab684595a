//! What a token opens: the page says it, and is never worse with one than without.

use super::browser::{Browser, DESK};
use super::{Door, NARROW, OPERATE, READ, STILL, with_token};

const TOKEN: &str = "Token: the first line of its file";

fn the_page_says_what_a_token_may_do() {
    let door = Door::start(STILL);
    let mut browser = Browser::open(&door.page(""), DESK);
    for (token, words, rest) in [
        (READ, "Jobs and dead letters are shown, nothing can be changed", "the token \"reader\" may read, and no more"),
        (OPERATE, "It may read and change everything.", "It may read and change everything."),
        (
            NARROW,
            "It does not open everything: the token \"billing\" is for some buckets only",
            "The rest is read without a token.",
        ),
    ] {
        browser.click("button", "Read only: give a token");
        browser.fill(TOKEN, token);
        browser.click("button", "Use this token");
        browser.sees(&format!("The token is used. {words}"));
        browser.sees(rest);
        browser.click("button", "Forget the token");
    }
}

fn with_a_token_for_some_buckets_only_the_page_reads_the_rest_as_without_one() {
    let mut door = Door::start(STILL);
    for bucket in ["acme", "beta"] {
        door.case().lpush(bucket, &["gone", "of-acme-or-beta"]);
    }
    let mut browser = with_token(&door, "", NARROW);
    browser.sees("2 of 2 buckets with work.");
    browser.until("document.querySelector('.tiles dd').textContent !== '–'");
    browser.goto(&door.page("budgets"));
    browser.sees("The configuration in force names no budget that is in use.");
    browser.goto(&door.page("changes"));
    browser.sees("Nothing was changed yet.");
    browser.goto(&door.page("bucket/beta"));
    browser.sees("the token \"billing\" is not for the bucket \"beta\"");
    browser.sees("beta is at its rate");
    browser.click("button", "Pause…");
    browser.click("button", "Pause beta");
    browser.sees("the token \"billing\" is not for the bucket \"beta\"");
    browser.press("Escape");
    browser.goto(&door.page("dead"));
    browser.sees("the token \"billing\" is for some buckets only");
    browser.goto(&door.page("bucket/acme"));
    browser.sees("of-acme-or-beta");
    browser.click("button", "Pause…");
    browser.click("button", "Pause acme");
    browser.sees("acme is paused.");
    browser.goto(&door.page("changes"));
    browser.sees("by billing@");
    browser.sees("Connected");
}

tests! {
    the_page_says_what_a_token_may_do,
    with_a_token_for_some_buckets_only_the_page_reads_the_rest_as_without_one,
}
