//! What the pages show: to everybody, of any bytes, however many buckets there are, and while the connection is lost.

use redis::Commands as _;
use serde_json::{Value, json};

use super::browser::{Browser, DARK_DESK, DARK_PHONE, DESK, PHONE};
use super::{Door, OPERATE, READ, STILL, bury, fill, with_token};
use crate::rig::eventually;

const TREE: &str = "[[budget]]\nmatch = 'twilio'\nrate = '1/h'\n[[budget]]\nmatch = 'twilio:eu'\nwithin = 'twilio'\nrate = '1/h'\nweight = 3\n\
                    [[budget]]\nmatch = 'twilio:us'\nwithin = 'twilio'\nrate = '1/h'\n[[budget]]\nmatch = 'slots'\nconcurrency = 2\n\
                    [[bucket]]\nmatch = 'sms:eu:*'\nwithin = 'twilio:eu'\n[[bucket]]\nmatch = 'sms:us:*'\nwithin = 'twilio:us'\n";

const HOSTILE: &str = "<script>window.pwned=1</script>";
const TURNED: &str = "rtl\u{202e}eman";

/// Jobs in several buckets, of which the first one leaves at once; settings, a slow-down, dead letters: something on every page.
fn furnish(door: &mut Door) {
    let case = door.case();
    for bucket in ["sms:eu:alice", "sms:us:bob", "acme", HOSTILE, TURNED, "a/b c?d#e%f"] {
        case.lpush(bucket, &["{\"to\": 1}", "<img src=x onerror=window.pwned=1>", "\u{202e}turned"]);
    }
    let queue = case.queue("acme");
    redis::cmd("LPUSH").arg(&queue).arg(&b"\xff\xfe"[..]).query::<()>(&mut case.redis).expect("LPUSH");
    // Or else the pause below might keep it back.
    eventually("the first job of acme has left", || case.redis.llen::<_, u64>(&queue) == Ok(3));
    bury(case, "acme", "http 500", &[b"<b>bold</b>", b"\xff\x00"]);
    bury(case, HOSTILE, "failed", &["\u{202e}x".as_bytes()]);
    for args in [
        &["pause", "acme", "--reason", "<img src=x onerror=window.pwned=1>"][..],
        &["slow", "sms:us:bob", "10m"],
        &["set", "sms:*", "rate=2/h", "--for", "2h", "--reason", "carrier down"],
    ] {
        assert_eq!(door.shell.run(args).0, 0, "{args:?}");
    }
    are_ranked(door, 6);
}

/// Wait until so many buckets are ranked: on a busy machine a walk over them may take longer than a browser waits.
fn are_ranked(door: &Door, buckets: usize) {
    eventually("they are ranked", || {
        let (_, out, _) = door.shell.run(&["status", "--json"]);
        serde_json::from_str::<Value>(&out).expect("JSON")["top"]["buckets"] == buckets
    });
}

/// The pages, and what each shows when it is there.
fn pages() -> Vec<(&'static str, String, &'static str)> {
    let named = |name: &str| {
        let escaped: String = name.bytes().fold(String::new(), |text, byte| text + &format!("%{byte:02x}"));
        format!("bucket/{escaped}")
    };
    vec![
        ("overview", String::new(), "sms:eu:alice"),
        ("bucket", named("acme"), "The next 3 of 3 jobs"),
        ("hostile", named(HOSTILE), "The next 2 of 2 jobs"),
        ("budget", "budget/twilio%3aeu".to_owned(), "Its limits"),
        ("budgets", "budgets".to_owned(), "twilio:us"),
        ("changes", "changes".to_owned(), "carrier down"),
        ("dead", "dead".to_owned(), "3 dead letters of all buckets shown"),
    ]
}

fn every_page_is_for_everybody_in_both_themes_on_a_desk_and_on_a_phone() {
    let mut door = Door::start(&format!("{STILL}{TREE}"));
    furnish(&mut door);
    for look in [DESK, DARK_DESK, PHONE, DARK_PHONE] {
        let mut browser = Browser::open(&door.page(""), look);
        browser.run(&format!("sessionStorage.setItem('dripd-token', '{READ}')"));
        browser.reload();
        for (name, hash, there) in pages() {
            browser.goto(&door.page(&hash));
            browser.sees(there);
            let what = format!("{name}, {} at {}", look.theme, look.width);
            assert_eq!(browser.barriers(), [""; 0], "{what}");
            assert_eq!(browser.run("document.documentElement.scrollWidth - innerWidth"), json!(0), "{what}: it fits");
            browser.picture(&format!("{name}-{}-{}", look.theme, look.width));
        }
        assert_eq!(browser.trouble(), [""; 0], "nothing is refused by the policy, and no script fails");
        assert_eq!(browser.hosts(), [format!("127.0.0.1:{}", door.port)], "nobody else is asked");
        let colour = browser.run("getComputedStyle(document.body).backgroundColor");
        let is_dark = colour.as_str().is_some_and(|text| text.starts_with("rgb(16,"));
        assert_eq!(is_dark, look.theme == "dark", "{colour}");
    }
}

fn any_name_and_any_job_is_shown_as_text() {
    let mut door = Door::start(&format!("{STILL}{TREE}"));
    furnish(&mut door);
    let mut browser = Browser::open(&door.page(""), DESK);
    browser.run(&format!("sessionStorage.setItem('dripd-token', '{READ}')"));
    browser.reload();
    browser.sees(HOSTILE);
    browser.sees(r"rtl\u{202e}eman");
    browser.click("link", HOSTILE);
    browser.sees("The next 2 of 2 jobs");
    for text in [HOSTILE, "<img src=x onerror=window.pwned=1>", r"\u{202e}turned"] {
        browser.sees(text);
    }
    browser.goto(&door.page(""));
    browser.click("link", "a/b c?d#e%f");
    browser.sees("The next 2 of 2 jobs");
    browser.goto(&door.page("bucket/acme"));
    browser.sees(r"\xff\xfe");
    browser.goto(&door.page("changes"));
    browser.sees("by ");
    browser.sees("<img src=x onerror=window.pwned=1>");
    browser.goto(&door.page("dead"));
    browser.sees("<b>bold</b>");
    browser.sees(r"\xff\u{0}");
    browser.sees(r"\u{202e}x");
    assert_eq!(browser.run("document.querySelectorAll('main img, main b, main script').length"), json!(0));
    assert_eq!(browser.run("window.pwned ?? null"), Value::Null);
    assert_eq!(browser.run("/[\\u202e\\u0000-\\u0008]/.test(document.body.innerText)"), json!(false));
    assert_eq!(browser.trouble(), [""; 0]);
}

fn no_bucket_and_three_are_shown_as_what_they_are() {
    let mut door = Door::start(STILL);
    let mut browser = Browser::open(&door.page(""), DESK);
    browser.sees("No bucket has work.");
    fill(&mut door, 3);
    browser.sees("3 of 3 buckets with work.");
    assert_eq!(browser.run("document.querySelectorAll('main tbody tr').length"), json!(3));
    browser.goto(&door.page("budgets"));
    browser.sees("The configuration in force names no budget that is in use.");
    browser.goto(&door.page("changes"));
    browser.sees("Nothing was changed yet.");
    browser.sees("Nothing is set, paused, closed or slowed down: the configuration file holds.");
    assert_eq!(browser.trouble(), [""; 0]);
}

fn of_5000_buckets_a_thousand_are_shown_and_stay_where_they_are_while_they_change() {
    let mut door = Door::start(STILL);
    fill(&mut door, 5_000);
    are_ranked(&door, 5_000);
    let mut browser = Browser::open(&door.page(""), DESK);
    browser.sees("100 of 5,000 buckets with work.");
    browser.select("At most", "1,000");
    browser.sees("1,000 of 5,000 buckets with work.");
    browser.until("document.querySelectorAll('main tbody tr').length === 1000");
    // A thousand rows without a jerk: an element is made once, and a look that finds nothing new changes nothing of the table.
    browser.run(
        "globalThis.changed = 0; new MutationObserver((all) => (changed += all.length)).observe(document.querySelector('main tbody'), \
         { childList: true, subtree: true, characterData: true }); void 0",
    );
    browser.run("globalThis.looks = 0; const ask = fetch; globalThis.fetch = (...a) => (String(a[0]).startsWith('/v1/buckets') && (looks += 1), ask(...a)); void 0");
    browser.until("looks >= 2"); // the first may still have brought what the page had asked for before
    // One more look may have been answered since. A browser that has little of the processor may still be drawing the rows: then once more.
    let mut most = 0.0;
    let is_calm = (0..3).any(|_| {
        browser.run("changed = 0; looks = 0; void 0");
        browser.until("looks >= 3");
        most = browser.run("changed / (looks + 1)").as_f64().expect("a number");
        most < 100.0
    });
    assert!(is_calm, "{most} changes a look of 1,000 rows in which nothing changed but times of the first 64");
    for n in 0..12 {
        door.case().lpush(&format!("deep{n:02}"), &["x"; 50]);
    }
    are_ranked(&door, 5_012);
    browser.select("Order", "most jobs waiting");
    browser.sees("deep00"); // the page in that order is there
    browser.fill("Filter", "eep0");
    browser.sees("Among the first 1,000: 10 of 5,012 buckets with work.");
    browser.fill("Filter", "deep?1");
    browser.sees("Among the first 1,000: 2 of 5,012 buckets with work.");
    browser.sees("deep11");
    browser.fill("Filter", "nobody");
    browser.sees("Among the first 1,000: none matches.");
    browser.picture("filtered");
    browser.click("link", "Open the bucket called nobody");
    browser.sees("nothing waits: nobody is empty");
    assert_eq!(browser.trouble(), [""; 0]);
}

fn names_that_a_browser_cannot_ask_for_are_told_with_the_commands_that_can() {
    let mut door = Door::start(STILL);
    door.case().lpush("..", &["1", "2"]);
    let mut browser = Browser::open(&door.page(""), DESK);
    browser.click("link", "..");
    browser.sees("A browser cannot ask for a bucket called “..”");
    browser.sees("dripd explain ..");
    assert!(door.shell.run(&["explain", ".."]).1.contains(".. is at its rate"), "the command can");
    browser.goto(&door.page("budget/%2e"));
    browser.sees("dripd explain . --budget");
    browser.goto(&door.page("bucket/..."));
    browser.sees("nothing waits: ... is empty");
    assert_eq!(browser.trouble(), [""; 0]);
}

fn of_many_settings_the_first_are_shown_and_that_there_are_more() {
    let door = Door::start(STILL);
    let mut browser = with_token(&door, "changes", OPERATE);
    let set = |browser: &mut Browser, from: usize, to: usize| {
        let done = browser.run(&format!(
            "(async () => {{ for (let n = {from}; n < {to}; n += 1) {{                const said = await fetch(`/v1/buckets/b${{n}}/settings`, {{ method: 'PATCH', body: '{{\"rate\": \"7/h\"}}',                  headers: {{ Authorization: 'Bearer {OPERATE}', 'Content-Type': 'application/json' }} }});                if (!said.ok) return said.text(); }} return 'done'; }})()"
        ));
        assert_eq!(done, "done");
    };
    let rows = "document.querySelectorAll('main tbody tr').length";
    set(&mut browser, 0, 200);
    browser.until(&format!("{rows} === 200"));
    browser.gone("Only the first");
    set(&mut browser, 200, 201);
    browser.sees("Only the first 200 names and globs are shown.");
    assert_eq!(browser.run(rows), json!(200));
}

fn the_page_is_light_and_there_at_once() {
    let door = Door::start(STILL);
    let mut browser = Browser::open(&door.page(""), DESK);
    browser.sees("Connected");
    let sizes = "[performance.getEntriesByType('navigation')[0], ...performance.getEntriesByType('resource')]\
                 .filter((one) => !one.name.includes('/v1/')).reduce((sum, one) => sum + one.transferSize, 0)";
    let weight = browser.run(sizes).as_u64().expect("a number");
    assert!((10_000..200_000).contains(&weight), "{weight} bytes");
    // On a machine that is busy the first one may be late, so the best of some counts.
    let mut first = f64::MAX;
    eventually("the first paint within 200 ms", || {
        browser.reload();
        browser.until("performance.getEntriesByName('first-contentful-paint').length === 1");
        let at = browser.run("performance.getEntriesByName('first-contentful-paint')[0].startTime");
        first = first.min(at.as_f64().expect("a time"));
        first < 200.0
    });
    eprintln!("first paint after {first:.0} ms, {weight} bytes");
}

fn whoever_types_a_filter_loses_no_letter_and_stays_where_they_are_while_the_page_is_redrawn() {
    // Ninety seconds of work each: they are still there when the last letter is typed.
    let mut door = Door::start("[defaults]\nrate = '10/s'\ncapacity = 1000\n");
    fill(&mut door, 300);
    for n in 0..20 {
        door.case().lpush(&format!("deep{n:02}"), &["x"; 900]);
    }
    let mut browser = Browser::open(&door.page(""), DESK);
    browser.sees("buckets with work.");
    // Far more looks than there ever are, each with other rows and figures, and every other one with another number of rows.
    browser.run(
        "globalThis.looks = 0; const ask = fetch; globalThis.fetch = (...a) => (String(a[0]).startsWith('/v1/buckets') && (looks += 1), ask(...a)); \
         globalThis.again = setInterval(() => { const limit = document.getElementById('limit'); limit.value = limit.value === '100' ? '1000' : '100'; \
         limit.dispatchEvent(new Event('change')); }, 30); document.getElementById('match').focus(); document.getElementById('match').isTheSame = true; void 0",
    );
    let mut seen = 0;
    let mut looked = |browser: &mut Browser| {
        browser.until(&format!("looks >= {}", seen + 3));
        seen = browser.run("looks").as_u64().expect("a number");
    };
    for letter in ["d", "e", "e", "1", "?"] {
        browser.type_in(letter);
        looked(&mut browser);
    }
    browser.type_in("and more that is typed at once");
    for _ in 0.."1?and more that is typed at once".len() {
        browser.press("ArrowLeft");
    }
    for letter in ["p", "?", "*"] {
        looked(&mut browser);
        browser.type_in(letter);
    }
    looked(&mut browser);
    let field = "(({ value, selectionStart, selectionEnd, isTheSame }) => [value, selectionStart, selectionEnd, isTheSame])(document.activeElement)";
    assert_eq!(browser.run(field), json!(["deep?*1?and more that is typed at once", 6, 6, true]));
    browser.press("Shift+End");
    looked(&mut browser);
    browser.press("Delete");
    browser.type_in("?");
    browser.run("clearInterval(again); void 0");
    browser.sees("20 of 20 buckets with work.");
    assert_eq!(browser.run(field), json!(["deep?*?", 7, 7, true]));
    assert_eq!(browser.trouble(), [""; 0]);
}

tests! {
    every_page_is_for_everybody_in_both_themes_on_a_desk_and_on_a_phone,
    any_name_and_any_job_is_shown_as_text,
    no_bucket_and_three_are_shown_as_what_they_are,
    of_5000_buckets_a_thousand_are_shown_and_stay_where_they_are_while_they_change,
    names_that_a_browser_cannot_ask_for_are_told_with_the_commands_that_can,
    of_many_settings_the_first_are_shown_and_that_there_are_more,
    the_page_is_light_and_there_at_once,
    whoever_types_a_filter_loses_no_letter_and_stays_where_they_are_while_the_page_is_redrawn,
}
