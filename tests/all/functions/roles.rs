//! The rights that `dripd acl` prints, compared with the library: every function has its role, and every command and key is known.

use std::collections::BTreeSet;
use std::path::Path;

use dripd::store::acl::Role;

use crate::layers::files;
use crate::rig::partition;
use crate::roles::rights;

/// Functions that only the daemon calls, and the audit, which is for tests.
const OF_THE_DAEMON: [&str; 11] = [
    "drip__audit",
    "drip__beat",
    "drip__drain",
    "drip__heal",
    "drip__keep",
    "drip__policy",
    "drip__post",
    "drip__rank",
    "drip__reap",
    "drip__walk",
    "drip__wake",
];

fn lua(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/functions").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// The functions as users call them, and whether each writes nothing: the twins that take a time are for tests.
fn registered() -> Vec<(String, bool)> {
    let text = lua("register.lua");
    let calls = text.lines().filter_map(|line| {
        let (kind, rest) = line.trim_start().split_once("('")?;
        let name = rest.split_once('\'')?.0;
        let head = match kind {
            "public" | "limit" => "drip_",
            "internal" | "of_policy" => "drip__",
            _ => return None,
        };
        Some((format!("{head}{name}"), line.contains("'no-writes'")))
    });
    let found: Vec<_> = calls.collect();
    assert!(found.len() > 30, "{found:?}");
    found
}

/// The words that a role is granted, without the brackets of selectors.
fn words(role: Role) -> BTreeSet<String> {
    let of = rights(role, "user", "drip");
    of.iter().map(|word| word.trim_matches(['(', ')']).to_owned()).collect()
}

#[test]
fn every_function_of_the_library_has_its_role() {
    let others: Vec<BTreeSet<String>> = Role::ALL.into_iter().filter(|role| *role != Role::Daemon).map(words).collect();
    for (function, only_reads) in registered() {
        let granted = |command: &str| others.iter().any(|words| words.contains(&format!("+{command}|{function}")));
        assert!(
            granted("fcall") || granted("fcall_ro") || OF_THE_DAEMON.contains(&function.as_str()),
            "{function}: who calls it? src/store/connection/acl.rs says"
        );
        assert!(!(only_reads && granted("fcall")), "{function} writes nothing: FCALL_RO is enough");
    }
    let observer = words(Role::Observer);
    for (function, only_reads) in registered().iter().filter(|(name, _)| !OF_THE_DAEMON.contains(&name.as_str())) {
        if function == "drip__writes" {
            continue; // an observer calls it by FCALL_RO, which never lets it run: what it is refused for tells
        }
        assert_eq!(observer.contains(&format!("+fcall_ro|{function}")), *only_reads, "{function}");
    }
    assert!(
        !observer.iter().any(|word| word.starts_with("+fcall|") || word.starts_with('~') || word.starts_with("%W"))
    );
    let known: BTreeSet<String> = registered().into_iter().map(|(name, _)| name).collect();
    for word in others.iter().flatten().filter_map(|word| word.split_once("|drip_")) {
        assert!(known.contains(&format!("drip_{}", word.1)), "{word:?} is no function");
    }
}

/// The commands of a file: what stands in quotes behind `call(` and `pcall_redis(`, with the second word where there is one.
fn commands(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for opening in ["call('", "pcall_redis('"] {
        for after in text.split(opening).skip(1) {
            let mut quoted = after.split('\'');
            let command = quoted.next().unwrap_or_default().to_lowercase();
            let second = quoted.nth(1).unwrap_or_default().to_lowercase();
            let has_second = ["xgroup", "xinfo", "memory"].contains(&command.as_str());
            found.insert(if has_second { format!("+{command}|{second}") } else { format!("+{command}") });
        }
    }
    found
}

#[test]
fn a_daemon_may_run_every_command_of_the_library() {
    let daemon = words(Role::Daemon);
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/functions");
    let mut all = BTreeSet::new();
    for path in files(&dir, "lua") {
        // What is forwarded goes to keys of another system, for which each route has grants of its own.
        if !path.to_string_lossy().contains("audit") && !path.ends_with("policy/forward.lua") {
            all.append(&mut commands(&std::fs::read_to_string(path).expect("a file")));
        }
    }
    assert!(all.len() > 40, "{all:?}");
    let missing: Vec<_> = all.difference(&daemon).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_key_of_a_role_is_one_that_the_library_knows() {
    let text = lua("base/keys.lua");
    let known: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("-- <prefix>:"))
        .map(|rest| rest.split([' ', ':', '[']).next().unwrap_or_default())
        .collect();
    for role in Role::ALL {
        for key in words(role).iter().filter_map(|word| word.split_once("~drip:")).map(|(_, key)| key) {
            let word = key.split(':').next().unwrap_or_default();
            assert!(key == "*" || known.contains(word), "{role:?}: {key}");
        }
    }
}

#[test]
fn a_prefix_that_looks_like_a_pattern_stands_for_itself() {
    let key = |prefix: &str| rights(Role::Producer, "user", prefix).pop().expect("words");
    let tag = if partition().is_some() { "{*}:" } else { "" };
    assert_eq!(key("drip"), format!("%W~drip:queue:{tag}*)"));
    assert_eq!(key("a*b?[c]"), format!(r"%W~a\*b\?\[c\]:queue:{tag}*)"));
    assert_eq!(key("it's(x)"), format!("%W~it?s(x):queue:{tag}*)")); // a rule holds no quotes
}

#[test]
fn what_writes_nothing_is_called_so_that_a_user_who_may_only_read_can_do_it() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store");
    for path in files(&dir, "rs") {
        let text = std::fs::read_to_string(&path).expect("a source");
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        for (function, _) in registered().iter().filter(|(_, only_reads)| *only_reads) {
            assert!(
                !text.contains(&format!(".call_function(\"{function}\"")),
                "{}: call {function} by `call_read_only`",
                path.display()
            );
        }
    }
}
