//! Forty rules that are broken one by one, a line of the source each: some test notices every one (`make mutants`).
//!
//! A rule of the function library is broken where the tests load it, so nothing is compiled again. One of the daemon is broken in a copy of
//! the tree below `target/mutants`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::rig::{BROKEN, LINE};

/// A rule: what it says, the line that breaks it and how, and the tests that are asked (names begin so, or have it in them).
struct Rule {
    says: &'static str,
    /// Where the line is; none: in the function library.
    file: Option<&'static str>,
    line: &'static str,
    broken: &'static str,
    tests: &'static str,
}

const fn lua(says: &'static str, line: &'static str, broken: &'static str, tests: &'static str) -> Rule {
    Rule { says, file: None, line, broken, tests }
}

const fn rust(
    says: &'static str,
    file: &'static str,
    line: &'static str,
    broken: &'static str,
    tests: &'static str,
) -> Rule {
    Rule { says, file: Some(file), line, broken, tests }
}

#[rustfmt::skip] // a rule is easier to read where each of its parts has a line
const RULES: &[Rule] = &[
    lua(
        "an atomic push takes no more than fits",
        "local accepted, places_for = push.fits(s, gates, #jobs)",
        "local accepted, places_for = #jobs, #jobs",
        "functions::bucket functions::gates",
    ),
    lua(
        "a plain push above the capacity is cut back",
        "if len > keeps then s.over, len = len - keeps, keeps else s.over = 0 end",
        "s.over = 0",
        "functions::bucket functions::drain",
    ),
    lua(
        "the newest jobs of a push are the ones that are rejected",
        "if oldest_first then call('LTRIM', queue, 0, -(over + 1)) else call('LTRIM', queue, over, -1) end",
        "call('LTRIM', queue, 0, -(over + 1))",
        "functions::bucket functions::drain",
    ),
    lua(
        "a job that is too large is refused",
        "if #jobs[i] > limit then",
        "if #jobs[i] > 2 * limit then",
        "functions::bucket functions::sizes",
    ),
    lua(
        "a job whose id was accepted before is not taken again",
        "local is_taken = it or ids.is_remembered(ctx, name, p, o.id)",
        "local is_taken = it",
        "functions::submit functions::ids",
    ),
    lua(
        "an id is remembered for as long as `dedup` says",
        "local old = call('ZCOUNT', key, '-inf', digits(ctx.now - p.dedup_us))",
        "local old = call('ZCOUNT', key, '-inf', digits(ctx.now))",
        "functions::ids functions::submit",
    ),
    lua(
        "what could not leave before its deadline is refused",
        "if left > 0 then return 'late'",
        "if left > 1e9 then return 'late'",
        "functions::submit functions::delayed",
    ),
    lua(
        "a job whose deadline comes while it backs off is given up",
        "if o.deadline_us and ends > o.deadline_us then return bury(ctx, stream, route_name, id, fields, list, 'expired') end",
        "",
        "functions::submit functions::delayed functions::jobs",
    ),
    lua(
        "after the last attempt a job is dead",
        "if how.dead or (counts and attempt >= p.attempts) then",
        "if how.dead or (counts and attempt > p.attempts) then",
        "functions::jobs",
    ),
    lua(
        "a job that is given back counts as no attempt, twenty times",
        "local counts = not how.keep or kept >= FREE_KEEPS",
        "local counts = not how.keep",
        "functions::jobs functions::kept",
    ),
    lua(
        "the back-off doubles",
        "return min(p.backoff_max_us, p.backoff_initial_us * 2 ^ (attempt - 1))",
        "return min(p.backoff_max_us, p.backoff_initial_us * attempt)",
        "functions::jobs functions::model",
    ),
    lua(
        "jobs that a moved group skipped go back into their buckets",
        "local is_moved = newest or has_fallen or p.read and not read and shows_move(p, stream, group, missing)",
        "local is_moved = newest",
        "functions::ready functions::moved_groups",
    ),
    lua(
        "what is older than the ready window lets nothing more in",
        "r.least, r.least_us, most = huge, now, 0",
        "r.least, r.least_us = huge, now",
        "functions::ready_window functions::delivered",
    ),
    lua(
        "a route's limit starts at eight",
        "local START = 8 --",
        "local START = 80 --",
        "functions::ready_window",
    ),
    lua(
        "the limit falls where the age is over the window",
        "r.limit, r.cut_us = max(1, floor(r.limit * window / age)), now",
        "r.cut_us = now",
        "functions::ready_window",
    ),
    lua(
        "what others push into a list counts as not taken",
        "if length == 0 then r.is_shared = false elseif r.sent - length < r.gone then r.is_shared = true end",
        "",
        "functions::ready_window functions::forward",
    ),
    lua(
        "a job is charged no less than one unit",
        "local charged = max(1, floor(cost - credit / interval * part + 0.5))",
        "local charged = floor(cost - credit / interval * part + 0.5)",
        "functions::credit",
    ),
    lua(
        "what a job cost too much becomes credit",
        "local most = max(CREDIT_MOST_US, base_cost * interval)",
        "local most = 0",
        "functions::credit",
    ),
    lua(
        "an incident leaves nine tenths of an adaptive rate",
        "LEAST, LESS = 1 / 64, 0.9",
        "LEAST, LESS = 1 / 64, 1",
        "functions::adaptive functions::slow",
    ),
    lua(
        "a pause that is asked for is never shortened by another one",
        "if now + length > d.till then d.till, d.length = now + length, length end",
        "d.till, d.length = now + length, length",
        "functions::slow",
    ),
    lua(
        "jobs that left before a slow-down belong to its incident",
        "if d.begun > 0 and left_us <= d.begun then",
        "if false then",
        "functions::slow",
    ),
    lua(
        "a sliding window forgets a call after its period",
        "return at + p.period - s.now",
        "return at + p.period + 1000000 - s.now",
        "functions::limiters",
    ),
    lua(
        "a token bucket regains its tokens with time",
        "lacking, parts = lacking - back, parts - (gain - back * period)",
        "parts = parts - (gain - back * period)",
        "functions::limiters",
    ),
    lua(
        "a limiter does not touch dripd's own keys",
        "if key and find(key, ':', 1, true) and keys.is_ours(key) then",
        "if false then",
        "functions::limiters",
    ),
    lua(
        "a push asks its gates",
        "if one.state.free < 1 and (not name or ms > wait) then wait, name = ms, one.name end",
        "if false then wait, name = ms, one.name end",
        "functions::gates",
    ),
    lua(
        "a partition that moves takes nothing",
        "if key and find(key, '{', 1, true) and partition.is_migrating(key) then",
        "if false then",
        "functions::moving",
    ),
    lua(
        "a slow-down after another one counts from its end",
        "if constraint.held and constraint.held <= now then pace = max(pace, constraint.held) end",
        "",
        "functions::regressions",
    ),
    rust(
        "429 and 503 slow a bucket down",
        "src/worker/http.rs",
        "429 | 503 => Outcome::Throttled(wait, said),",
        "429 => Outcome::Throttled(wait, said),",
        "worker::http",
    ),
    rust(
        "what passes by itself is tried again",
        "src/worker/http.rs",
        "408 | 409 | 425 => Outcome::Failed(said),",
        "408 | 409 => Outcome::Failed(said),",
        "worker::http",
    ),
    rust(
        "no server is left alone for more than a day",
        "src/worker/limit_headers.rs",
        "ms.clamp(0.0, MOST_MS as f64).round() as u64",
        "ms.max(0.0).round() as u64",
        "worker::limit_headers",
    ),
    rust(
        "exit code 75 is no failure but a slow-down",
        "src/worker/exec.rs",
        "(Some(THROTTLED), _) => Outcome::Throttled(None,",
        "(Some(THROTTLED), _) if status.success() => Outcome::Throttled(None,",
        "program::slow program::work",
    ),
    rust(
        "a worker renews its leases in time",
        "src/worker/job_run.rs",
        "sleep(held.lease / 3).await;",
        "sleep(held.lease * 3).await;",
        "program::work",
    ),
    rust(
        "a token may do what its role may, and no more",
        "src/http/auth.rs",
        "if !enough.contains(&token.may) {",
        "if enough.is_empty() {",
        "program::http_who",
    ),
    rust(
        "a token is for its buckets only",
        "src/http/auth.rs",
        "if token.only.is_some() && !bucket.is_some_and(|bucket| self.covers(bucket)) {",
        "if token.only.is_some() && bucket.is_none() {",
        "program::http_who",
    ),
    rust(
        "without a token nobody changes anything",
        "src/http/auth.rs",
        "None if self.is_local && !self.has_tokens => Err(name_a_token(\"a change\")),",
        "None if self.is_local && !self.has_tokens => Ok(()),",
        "program::http_who",
    ),
    rust(
        "a bucket lives where its first parts say",
        "src/model/partitioning.rs",
        "name.match_indices(':').nth(usize::from(n) - 1)",
        "name.match_indices(':').nth(usize::from(n))",
        "model::partitioning",
    ),
    rust(
        "what nobody sees is shown escaped",
        "src/model/escape.rs",
        "c if is_visible(c) && !(at == 0 && is_mark(c)) => text.push(c),",
        "c if is_visible(c) || !(at == 0 && is_mark(c)) => text.push(c),",
        "model::escape",
    ),
    rust(
        "a minute has sixty seconds",
        "src/model/duration.rs",
        "\"m\" => 60_000_000,",
        "\"m\" => 6_000_000,",
        "model::duration",
    ),
    rust(
        "a signature holds for one moment",
        "src/worker/webhook.rs",
        "let text = [id.as_bytes(), b\".\", timestamp.to_string().as_bytes(), b\".\", body].concat();",
        "let text = [id.as_bytes(), b\".\", (timestamp / 100).to_string().as_bytes(), b\".\", body].concat();",
        "worker::webhook",
    ),
    rust(
        "a ready window of nothing is refused",
        "src/model/ready_window.rs",
        "let bounds = Duration::from_millis(1)..=Duration::from_secs(3_600);",
        "let bounds = Duration::ZERO..=Duration::from_secs(3_600);",
        "ready_window config",
    ),
];

#[test]
fn each_rule_is_in_the_source_once() {
    for rule in RULES {
        let source = rule.file.map(|file| std::fs::read_to_string(file).expect("a source file"));
        let source = source.as_deref().unwrap_or(dripd::store::library::source());
        assert_eq!(source.matches(rule.line).count(), 1, "{}", rule.says);
    }
    assert_eq!(RULES.len(), 40);
}

/// The copy of the tree in which rules of the daemon are broken.
struct Copy(PathBuf);

impl Copy {
    fn make() -> Self {
        let copy = Self(std::env::current_dir().expect("a directory").join("target/mutants/tree"));
        drop(std::fs::remove_dir_all(copy.0.join("src"))); // files that are no more in the tree would be compiled
        let listed = Command::new("git").args(["ls-files", "-z"]).output().expect("git lists the files");
        for file in String::from_utf8_lossy(&listed.stdout).split('\0').filter(|file| Path::new(file).is_file()) {
            copy.write(file, &std::fs::read(file).expect("a file"));
        }
        copy
    }

    /// Write a file, unless it is so already: cargo compiles what is newer.
    fn write(&self, file: &str, bytes: &[u8]) {
        let path = self.0.join(file);
        if std::fs::read(&path).is_ok_and(|old| old == bytes) {
            return;
        }
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, bytes).expect("written");
    }

    fn cargo(&self, args: &[&str]) -> bool {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--quiet"]).args(args).current_dir(&self.0);
        let output = cargo.env("CARGO_TARGET_DIR", self.0.with_file_name("target")).output().expect("cargo runs");
        output.status.success()
    }

    /// Whether the tests of a rule pass in the copy: those of the library, and the others.
    fn passes(&self, rule: &Rule) -> bool {
        let names: Vec<&str> = rule.tests.split(' ').collect();
        self.cargo(&[&["--lib", "--test", "all", "--"], &names[..]].concat())
    }
}

/// Whether the tests of a rule pass, with the library as it is or with that rule broken.
fn passes(rule: &Rule, is_broken: bool) -> bool {
    let mut tests = Command::new(std::env::current_exe().expect("this program"));
    tests.args(rule.tests.split(' '));
    if is_broken {
        tests.env(LINE, rule.line).env(BROKEN, rule.broken);
    }
    tests.output().expect("the tests run").status.success()
}

#[test]
#[ignore = "it takes half an hour: make mutants"]
fn each_broken_rule_is_noticed() {
    let (mut copy, mut missed) = (None, Vec::new());
    for rule in RULES {
        let began = Instant::now();
        let (good, bad) = if let Some(file) = rule.file {
            let copy = copy.get_or_insert_with(Copy::make);
            let good = copy.passes(rule);
            let whole = std::fs::read_to_string(file).expect("a source file");
            copy.write(file, whole.replace(rule.line, rule.broken).as_bytes());
            assert!(copy.cargo(&["--lib", "--test", "all", "--no-run"]), "{}: it does not compile", rule.says);
            let bad = copy.passes(rule);
            copy.write(file, whole.as_bytes());
            (good, bad)
        } else {
            (passes(rule, false), passes(rule, true))
        };
        let noticed = match (good, bad) {
            (true, false) => "noticed",
            (true, true) => "NOT NOTICED",
            (false, _) => "its tests fail without it",
        };
        println!("| {} | {noticed} | {} | {:.0} s |", rule.says, rule.tests, began.elapsed().as_secs_f64());
        if noticed != "noticed" {
            missed.push(rule.says);
        }
    }
    assert_eq!(missed, Vec::<&str>::new(), "not noticed");
}
