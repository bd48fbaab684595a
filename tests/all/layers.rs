//! The shape of the source: imports point down, loops do not know each other, and only the store knows Redis.
//!
//! The files are read as text: strings and comments are taken out first, then every path that names something of this
//! crate is resolved, whether it stands in a `use`, in a group or in the middle of the code, from `crate`, `super` or `self`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The layers, the top one first; those of one line do not import each other.
const LAYERS: [&[&str]; 9] = [
    &["cli"],
    &["daemon"],
    &["http"],
    &["operate"],
    &["loops", "worker", "simulate"],
    &["explain", "system"],
    &["store"],
    &["config"],
    &["model"],
];

/// What the loops share; the other files of `loops` are loops.
const SHARED_BY_LOOPS: [&str; 3] = ["progress", "notes", "ranking"];

/// What a key of dripd's holds behind its prefix, and how its functions begin.
const KEY_NAMES: [&str; 22] = [
    ":queue:",
    ":ready",
    ":schedule",
    ":rejected",
    ":dead",
    ":policy",
    ":retries",
    ":retry:",
    ":routes",
    ":held:",
    ":stats",
    ":level",
    ":reached",
    ":daemons",
    ":wake",
    ":rest",
    ":gate:",
    ":events",
    ":paused",
    ":settings",
    ":globs",
    ":ends",
];

/// Where a key or a function is named outside the store, and why.
const NAMED_ELSEWHERE: [(&str, &str); 6] = [
    ("src/config/server.rs", ":queue:"), // a prefix that holds it is refused: the first one in a key ends the prefix
    ("src/config/server.rs", ":ready"),  // likewise one that ends in it
    ("src/config/keys/of_redis.rs", ":queue:"), // the hint of that refusal
    ("src/config/keys/of_redis.rs", ":ready"),
    ("src/model/bucket.rs", ":queue:"), // a test: a bucket may be called so
    ("src/cli/check.rs", "drip_push"),  // its output tells producers which door has a gate
];

pub fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let (dirs, found): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let below = dirs.iter().flat_map(|dir| files(dir, extension));
    found.into_iter().filter(|path| path.extension().is_some_and(|e| e == extension)).chain(below).collect()
}

/// A source without its comments: the code with every string emptied, and the strings.
#[derive(Debug, Default, PartialEq)]
struct Source {
    code: String,
    strings: Vec<String>,
}

impl Source {
    fn read(text: &str) -> Self {
        let (mut source, chars) = (Self::default(), text.chars().collect::<Vec<_>>());
        let mut at = 0;
        while at < chars.len() {
            let (c, next) = (chars[at], chars.get(at + 1).copied());
            let follows_word = at > 0 && is_word(chars[at - 1]);
            if c == '/' && next == Some('/') {
                while at < chars.len() && chars[at] != '\n' {
                    at += 1;
                }
            } else if c == '/' && next == Some('*') {
                at = end_of_block_comment(&chars, at);
            } else if c == 'r' && !follows_word && raw_hashes(&chars, at + 1).is_some() {
                at = source.take_raw(&chars, at + 1);
            } else if c == '"' {
                at = source.take_string(&chars, at + 1);
            } else if c == '\'' && next == Some('\\') {
                at += 3; // the escaped character is no end
                while at < chars.len() && chars[at] != '\'' {
                    at += 1;
                }
                at += 1;
            } else if c == '\'' && chars.get(at + 2) == Some(&'\'') {
                at += 3; // a character; what is left is a lifetime
            } else {
                source.code.push(c);
                at += 1;
            }
        }
        source
    }

    fn take_string(&mut self, chars: &[char], mut at: usize) -> usize {
        let mut text = String::new();
        while at < chars.len() && chars[at] != '"' {
            if chars[at] == '\\' {
                at += 1;
            }
            text.extend(chars.get(at));
            at += 1;
        }
        self.strings.push(text);
        self.code += "\"\"";
        at + 1
    }

    fn take_raw(&mut self, chars: &[char], at: usize) -> usize {
        let hashes = raw_hashes(chars, at).expect("it begins a raw string");
        let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
        let from = at + hashes + 1;
        let length = chars[from..].windows(end.len()).position(|part| part == end).unwrap_or(chars.len() - from);
        self.strings.push(chars[from..from + length].iter().collect());
        self.code += "\"\"";
        from + length + end.len()
    }

    /// Every path of the code, whole: `a::b::c`, from a `use` group too. A path from `crate`, `super` or `self` is resolved
    /// to one from the crate's root, `crate::…`, by the module that it stands in.
    fn paths(&self, module: &[&str]) -> Vec<String> {
        let tokens = tokens(&self.code);
        let mut reader =
            Reader { tokens: &tokens, at: 0, module: module.iter().map(|&name| name.to_owned()).collect() };
        reader.read()
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// How many `#` stand between an `r` and its string; none where it begins no raw string.
fn raw_hashes(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at..].iter().take_while(|c| **c == '#').count();
    (chars.get(at + hashes) == Some(&'"')).then_some(hashes)
}

fn end_of_block_comment(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Words, `::`, and every other character by itself.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut in_word = false;
    for c in code.chars() {
        match tokens.last_mut() {
            Some(last) if in_word && is_word(c) => last.push(c),
            Some(last) if c == ':' && last == ":" && !in_word => last.push(c),
            _ if c.is_whitespace() => {}
            _ => tokens.push(c.to_string()),
        }
        in_word = is_word(c);
    }
    tokens
}

struct Reader<'a> {
    tokens: &'a [String],
    at: usize,
    module: Vec<String>,
}

impl Reader<'_> {
    fn peek(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", String::as_str)
    }

    fn read(&mut self) -> Vec<String> {
        let (mut paths, mut depth, mut opened) = (Vec::new(), 0, Vec::new());
        while self.at < self.tokens.len() {
            match self.peek(0) {
                "use" => {
                    self.at += 1;
                    self.read_tree(&[], &mut paths);
                }
                "mod" if self.peek(2) == "{" => {
                    self.module.push(self.peek(1).to_owned());
                    opened.push(depth);
                    (self.at, depth) = (self.at + 3, depth + 1);
                }
                "{" => (self.at, depth) = (self.at + 1, depth + 1),
                "}" => {
                    (self.at, depth) = (self.at + 1, depth - 1);
                    if opened.last() == Some(&depth) {
                        opened.pop();
                        self.module.pop();
                    }
                }
                token if token.starts_with(is_word) && self.peek(1) == "::" => self.read_tree(&[], &mut paths),
                _ => self.at += 1,
            }
        }
        paths
    }

    /// A path, or a tree of them where it ends in a group.
    fn read_tree(&mut self, head: &[String], paths: &mut Vec<String>) {
        let mut path = head.to_vec();
        loop {
            match self.peek(0) {
                "::" => self.at += 1,
                "{" => {
                    self.at += 1;
                    while !matches!(self.peek(0), "}" | "") {
                        self.read_tree(&path, paths);
                        if self.peek(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                token if token == "*" || token.starts_with(is_word) => {
                    path.push(token.to_owned());
                    self.at += 1;
                    if self.peek(0) == "as" {
                        self.at += 2;
                    }
                    if self.peek(0) != "::" {
                        break;
                    }
                }
                _ => {
                    if path.len() == head.len() {
                        self.at += 1; // no path: never stand still
                    }
                    break;
                }
            }
        }
        paths.push(self.resolve(&path));
    }

    fn resolve(&self, path: &[String]) -> String {
        let mut module = self.module.clone();
        let relative = path.iter().take_while(|part| ["crate", "super", "self"].contains(&part.as_str())).count();
        for part in &path[..relative] {
            match part.as_str() {
                "crate" => module.clear(),
                "super" => drop(module.pop()),
                _ => {}
            }
        }
        let root = (relative > 0).then(|| "crate".to_owned());
        let above = if relative > 0 { module } else { Vec::new() };
        root.into_iter().chain(above).chain(path[relative..].iter().cloned()).collect::<Vec<_>>().join("::")
    }
}

/// The module of a file: `src/store/mod.rs` and `src/store.rs` are both `store`.
fn module_of(path: &Path) -> Vec<&str> {
    let mut parts: Vec<&str> =
        path.strip_prefix("src").expect("below src").iter().map(|part| part.to_str().expect("a name")).collect();
    let name = parts.pop().expect("a file").trim_end_matches(".rs");
    if !["mod", "lib", "main"].contains(&name) {
        parts.push(name);
    }
    parts
}

fn height(layer: &str) -> Option<usize> {
    LAYERS.iter().rev().position(|line| line.contains(&layer))
}

/// What is wrong with one file: each a sentence.
fn faults(path: &Path, text: &str) -> Vec<String> {
    let (source, module) = (Source::read(text), module_of(path));
    let mut faults = Vec::new();
    let from = module.first().copied().unwrap_or_default();
    for found in source.paths(&module) {
        let parts: Vec<&str> = found.split("::").collect();
        match parts[..] {
            ["redis", ..] if from != "store" => faults.push("names the redis crate".to_owned()),
            ["crate", to, ..] if from.is_empty() || to == from => {
                let other = parts.get(2).copied().unwrap_or_default();
                let itself = module.get(1) == Some(&other) || SHARED_BY_LOOPS.contains(&other);
                if from == "loops" && to == "loops" && !itself && module.len() > 1 {
                    faults.push(format!("imports the loop {other}"));
                }
            }
            ["crate", to, ..] => match (height(from), height(to)) {
                (Some(from), Some(to)) if to < from => {}
                (Some(_), Some(_)) => faults.push(format!("imports {to}, which is not below {from}")),
                _ => faults.push(format!("imports {to}: {from} and {to} must both be layers")),
            },
            ["crate"] => faults.push("imports everything".to_owned()),
            _ => {}
        }
    }
    if from != "store" {
        let allowed = |name: &str| NAMED_ELSEWHERE.iter().any(|(file, it)| path == Path::new(file) && *it == name);
        for text in &source.strings {
            let keys = KEY_NAMES.iter().filter(|name| text.contains(**name)).map(|&name| name.to_owned());
            let named: Vec<String> = keys.chain(functions_in(text)).filter(|name| !allowed(name)).collect();
            faults.extend(named.iter().map(|name| format!("names the key or function {name}")));
        }
    }
    faults
}

/// The names of functions in a text: `drip_` and what follows of the word.
fn functions_in(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !is_word(c));
    words.filter(|word| word.starts_with("drip_") && word.len() > 5).map(str::to_owned)
}

#[test]
fn imports_point_down_no_loop_knows_another_and_only_the_store_knows_redis() {
    let all: Vec<String> = files(Path::new("src"), "rs")
        .iter()
        .flat_map(|path| {
            let text = std::fs::read_to_string(path).expect("a file");
            faults(path, &text).into_iter().map(|fault| format!("{} {fault}", path.display())).collect::<Vec<_>>()
        })
        .collect();
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// The files that a file imports, by their modules, without its tests. A `mod.rs` speaks for its folder, and is no file of it.
fn imports(module: &[&str], text: &str, all: &BTreeSet<String>) -> BTreeSet<String> {
    let served = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let own = module.join("::");
    let file_of = |path: String| {
        let inside = path.strip_prefix("crate::").map_or_else(|| format!("{own}::{path}"), str::to_owned);
        let parts: Vec<&str> = inside.split("::").collect();
        (1..=parts.len()).rev().map(|n| parts[..n].join("::")).find(|module| all.contains(module))
    };
    Source::read(served).paths(module).into_iter().filter_map(file_of).filter(|other| *other != own).collect()
}

/// The files to which the imports of a file lead, directly or not.
fn reached<'a>(imports: &'a BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<&'a str> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(next) = open.pop() {
        for other in imports.get(&next).into_iter().flatten() {
            if reached.insert(other.as_str()) {
                open.push(other.clone());
            }
        }
    }
    reached
}

/// The groups of files each of which leads to all files of its group.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<&str>> {
    let mut circles = BTreeSet::new();
    for file in imports.keys() {
        let leads_back = |other: &&str| reached(imports, other).contains(file.as_str());
        let circle: Vec<&str> = reached(imports, file).into_iter().filter(leads_back).collect();
        if !circle.is_empty() {
            circles.insert(circle);
        }
    }
    circles
}

#[test]
fn no_files_of_a_folder_import_each_other_in_a_circle() {
    let texts: Vec<(PathBuf, String)> = files(Path::new("src"), "rs")
        .into_iter()
        .filter(|path| !path.ends_with("mod.rs") && module_of(path).len() > 1)
        .map(|path| (path.clone(), std::fs::read_to_string(path).expect("a file")))
        .collect();
    let all: BTreeSet<String> = texts.iter().map(|(path, _)| module_of(path).join("::")).collect();
    let of_file = |(path, text): &(PathBuf, String)| {
        let module = module_of(path);
        (module.join("::"), imports(&module, text, &all))
    };
    let imports = texts.iter().map(of_file).collect();
    assert_eq!(circles(&imports), BTreeSet::<Vec<&str>>::new(), "a file imports only files below it");
}

#[test]
fn a_circle_of_files_is_found_however_long_it_is() {
    let all: BTreeSet<String> = ["h::a", "h::b", "h::b::c", "h::d"].map(str::to_owned).into();
    let a = imports(&["h", "a"], "use super::b::X; mod tests { use super::*; }", &all);
    let b = imports(&["h", "b"], "mod c; use c::Y;\n#[cfg(test)]\nmod tests { use crate::h::d::Z; }", &all);
    let c = imports(&["h", "b", "c"], "fn f(x: crate::h::a::T) {}", &all);
    let d = imports(&["h", "d"], "use super::a;", &all);
    let imports = [("h::a", a), ("h::b", b), ("h::b::c", c), ("h::d", d)].map(|(name, all)| (name.to_owned(), all));
    assert_eq!(circles(&imports.into()), BTreeSet::from([vec!["h::a", "h::b", "h::b::c"]]));
}

#[test]
fn no_file_is_longer_than_450_lines() {
    for path in files(Path::new("src"), "rs").into_iter().chain(files(Path::new("src"), "lua")) {
        let lines = std::fs::read_to_string(&path).expect("a file").lines().count();
        assert!(lines <= 450, "{} has {lines} lines", path.display());
    }
}

#[test]
fn no_test_of_the_tools_is_marked_as_the_other_harness_wants_it() {
    for path in files(Path::new("tests/tools"), "rs") {
        let text = std::fs::read_to_string(&path).expect("source");
        let marked = text.lines().any(|line| line.trim() == "#[test]");
        assert!(!marked, "{}: list it in tests! instead: there #[test] is left out in silence", path.display());
    }
}

#[test]
fn the_reader_finds_every_path_however_it_is_written() {
    let paths = |module: &[&str], text: &str| Source::read(text).paths(module);
    assert_eq!(
        paths(&["a", "b"], "use crate::{store::X, model::{self, Y as Z}};"),
        ["crate::store::X", "crate::model::self", "crate::model::Y"]
    );
    assert_eq!(paths(&["a", "b"], "use super::{c, super::d::*};"), ["crate::a::c", "crate::d::*"]);
    assert_eq!(paths(&["a"], "mod tests { use super::*; } use super::b;"), ["crate::a::*", "crate::b"]);
    assert_eq!(paths(&["a"], "fn f(x: crate::b::T) { redis::cmd(\"x\"); }"), ["crate::b::T", "redis::cmd"]);
    assert_eq!(
        paths(&["a"], "// use crate::b;\n/* crate::c::D /* */ */ let x: &'a str = r#\"crate::e::F\"#;"),
        [""; 0]
    );
    assert_eq!(Source::read(r#"f('"', "a\"b", b"c"); // "d""#).strings, ["a\"b", "c"]);
    assert_eq!(paths(&["a"], "use built_in_redis::X;"), ["built_in_redis::X"]);
}

#[test]
fn the_layers_are_guarded_in_every_direction() {
    let faults = |path: &str, text: &str| faults(Path::new(path), text);
    for (path, text) in [
        ("src/store/jobs/push.rs", "use crate::{config::A, loops::B};"),
        ("src/config/server.rs", "use crate::store::A;"),
        ("src/model/policy.rs", "fn f(x: crate::config::A) {}"),
        ("src/daemon/mod.rs", "use super::cli::A;"),
        ("src/worker/mod.rs", "use crate::loops::progress::A;"),
        ("src/loops/pacer.rs", "use super::{progress::A, reaper::B};"),
        ("src/loops/pacer.rs", "use crate::loops::reaper::B;"),
        ("src/system/timer.rs", "fn f() { crate::daemon::g() }"),
        ("src/cli/push.rs", "use redis::Value;"),
        ("src/cli/push.rs", "use {redis as r, std::io};"),
        ("src/cli/push.rs", "let key = format!(\"{prefix}:queue:{bucket}\");"),
        ("src/loops/pacer.rs", "call(\"drip__drain\")"),
        ("src/cli/push.rs", "use crate::new_layer::A;"),
        ("src/cli/push.rs", "use crate::*;"),
    ] {
        assert_eq!(faults(path, text).len(), 1, "{path}: {text}: {:?}", faults(path, text));
    }
    for (path, text) in [
        ("src/cli/push.rs", "use crate::{config::A, daemon::B, store::{C, ops::D}};"),
        ("src/cli/push.rs", "use super::{Exit, connect}; use crate::cli::Failure;"),
        ("src/loops/pacer.rs", "use crate::loops::{notes::Notes, progress::Progress}; mod tests { use super::*; }"),
        ("src/store/mod.rs", "use redis::Value; mod tests { use super::*; }"),
        ("src/store/jobs/push.rs", "call(\"drip_push\", \":queue:\")"),
        ("src/daemon/mod.rs", "/// calls `drip_push`: \"drip:queue:\"\nuse crate::system::built_in_redis::X;"),
    ] {
        assert_eq!(faults(path, text), [""; 0], "{path}: {text}");
    }
}

#[test]
fn no_part_of_the_http_door_ends_the_daemon_whatever_is_asked() {
    // A release build aborts where anything panics, and the pacer with it.
    let breaks = [".expect(", ".unwrap()", "unreachable!", "panic!", "todo!", "assert!"];
    for path in files(Path::new("src/http"), "rs") {
        let source = std::fs::read_to_string(&path).expect("a file");
        let served = source.split("#[cfg(test)]").next().unwrap_or_default();
        for line in served.lines().filter(|line| !line.trim_start().starts_with("//")) {
            assert!(!breaks.iter().any(|word| line.contains(word)), "{}: {}", path.display(), line.trim());
        }
    }
    let door = std::fs::read_to_string("src/http/mod.rs").expect("a file");
    for lint in ["clippy::indexing_slicing", "clippy::expect_used", "clippy::unwrap_used", "clippy::panic"] {
        assert!(door.contains(lint), "clippy looks for {lint} in all of it");
    }
}
