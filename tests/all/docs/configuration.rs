//! The tables of `docs/configuration.md` are those of the code. After a change of the code write them anew:
//! `DRIPD_BLESS=1 cargo test configuration_page`.

use std::fmt::Write as _;

use dripd::config::keys::{self, Allowed, Key};
use dripd::config::{Config, Environment};
use dripd::model::duration;
use dripd::model::limiter::Kind;
use dripd::model::node::{Budget, Node};
use dripd::model::policy::{Policy, Record};

use super::between;

const PAGE: &str = "docs/configuration.md";

/// A whole number with its thousands apart.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let comma = |(at, digit): (usize, char)| {
        let before = at > 0 && (digits.len() - at).is_multiple_of(3);
        if before { format!(",{digit}") } else { digit.to_string() }
    };
    digits.char_indices().map(comma).collect()
}

fn allowed(allowed: &Allowed) -> String {
    match allowed {
        Allowed::Number(least, most) => format!("{} to {}", grouped(*least), grouped(*most)),
        Allowed::Duration(least, most) => {
            let least = if least.is_zero() { "0s".to_owned() } else { duration::show(*least) };
            format!("a duration, {least} to {}", duration::show(*most))
        }
        Allowed::Words(words) => words.strip_prefix("write ").unwrap_or(words).replace('|', "\\|"),
        Allowed::Table(keys) => {
            let names: Vec<_> = keys.iter().map(|key| format!("`{}`", key.name)).collect();
            let (last, others) = names.split_last().expect("a table has keys");
            format!("a table with {} and {last}", others.join(", "))
        }
    }
}

fn table(of: &[Key]) -> String {
    let mut text = "| key | default | what it may be | what it is for |\n| --- | --- | --- | --- |\n".to_owned();
    for key in of {
        let default = if key.default.is_empty() { "–".to_owned() } else { format!("`{}`", key.default) };
        writeln!(text, "| `{}` | {default} | {} | {} |", key.name, allowed(&key.allowed), key.about).expect("text");
    }
    text
}

/// The gates: their keys follow from the limiter.
fn gates() -> String {
    let mut text = "| `limiter` | its numbers | `period` |\n| --- | --- | --- |\n".to_owned();
    for kind in Kind::ALL {
        let range = |name: &str, bounds: std::ops::RangeInclusive<u32>| {
            let (least, most) = bounds.into_inner();
            format!("`{name}` {} to {}", grouped(least.into()), grouped(most.into()))
        };
        let mut numbers = match kind.size_name() {
            Some(size) => format!("{}, {}", range(size, kind.sizes()), range("count", kind.counts())),
            None => range("limit", kind.counts()),
        };
        if kind == Kind::FixedWindow {
            numbers += ", `aligned` true or false (default)";
        }
        writeln!(text, "| `\"{kind}\"` | {numbers} | {} |", kind.period_hint()).expect("text");
    }
    text
}

/// What belongs between the markers of the page.
fn parts() -> Vec<(&'static str, String)> {
    vec![
        ("keys: redis", table(keys::REDIS)),
        ("keys: redis tls", table(keys::REDIS_TLS)),
        ("keys: redis sentinel", table(keys::REDIS_SENTINEL)),
        ("keys: policy", table(keys::POLICY)),
        ("keys: backoff", table(keys::BACKOFF)),
        ("keys: admit", gates()),
        ("keys: slow", table(keys::SLOW)),
        ("keys: bucket", table(keys::BUCKET)),
        ("keys: budget match", table(keys::BUDGET_MATCH)),
        ("keys: budget", table(keys::BUDGET)),
        ("keys: expect", table(keys::EXPECT)),
        ("keys: route", table(keys::ROUTE)),
        ("keys: route register", table(keys::ROUTE_REGISTER)),
        ("keys: limits", table(keys::LIMITS)),
        ("keys: http", table(keys::HTTP)),
        ("keys: http token", table(keys::HTTP_TOKEN)),
    ]
}

#[test]
fn the_configuration_page_says_what_the_code_knows() {
    let mut page = std::fs::read_to_string(PAGE).expect("a page");
    let written = page.clone();
    for (name, part) in parts() {
        let (from, old) = between(&page, name);
        let range = from..from + old.len();
        page.replace_range(range, &format!("\n{part}\n"));
    }
    if std::env::var_os("DRIPD_BLESS").is_some() {
        std::fs::write(PAGE, &page).expect("written");
    } else {
        assert!(page == written, "{PAGE} is out of date: DRIPD_BLESS=1 cargo test configuration_page writes it anew");
    }
}

/// A section of a file with the defaults that a table of keys names.
fn written_out(name: &str, keys: &[Key]) -> String {
    let with_default = keys.iter().filter(|key| !key.default.is_empty());
    with_default.fold(format!("[{name}]\n"), |text, key| text + &format!("{} = {}\n", key.name, key.default))
}

#[test]
fn the_defaults_that_the_tables_of_keys_name_are_the_defaults() {
    let read =
        |text: &str| Config::parse(text, None, &Environment::default()).unwrap_or_else(|why| panic!("{why}\n{text}"));
    let text = written_out("redis", keys::REDIS)
        + &written_out("defaults", keys::POLICY)
        + &written_out("limits", keys::LIMITS);
    let (named, default) = (read(&text), read(""));
    assert_eq!(named.redis, default.redis, "{text}");
    let written = Policy { is_catch_up_set: true, ..Policy::default() }; // what is written is obeyed inside a budget too
    assert_eq!((&named.record.defaults, &named.record.limits), (&written, &Record::default().limits), "{text}");
    let backoff = read(&written_out("defaults.backoff", keys::BACKOFF));
    assert_eq!(backoff.record.defaults, Policy::default());
    let slow = read(&written_out("defaults.slow", keys::SLOW));
    assert_eq!(slow.record.defaults, Policy::default());
    let budget = "match = 'a'\n".to_owned() + written_out("budget", keys::BUDGET).trim_start_matches("[budget]\n");
    let of_budget = read(&format!("[[budget]]\n{}", budget.replace("concurrency = \"none\"", "concurrency = 1")));
    let default = Budget { node: Node { concurrency: Some(1), ..Node::default() }, ..Budget::default() };
    assert_eq!(of_budget.record.budgets[0].policy, default);
}
