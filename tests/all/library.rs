//! The form of the function library: each Lua file names what it needs, and uses nothing else. `functions/join.rs` joins them in that order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::layers::files;

/// What a Lua file reads or writes outside of itself, as Lua's compiler has it: Lua 5.1, which Redis runs, keeps such names as globals.
fn free_names(lua: &mlua::Lua, source: &str) -> BTreeSet<String> {
    let chunk = lua.load(source).into_function().expect("it compiles").dump(true);
    let mut reader = Bytes { bytes: &chunk, at: 12 };
    let mut names = BTreeSet::new();
    reader.function(&mut names);
    names
}

/// A reader of what Lua 5.1 compiles to, on a machine of 64 bits: after a head of twelve bytes a function, and in it those that it contains.
struct Bytes<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        self.at += n;
        &self.bytes[self.at - n..self.at]
    }

    fn int(&mut self) -> usize {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes")) as usize
    }

    fn text(&mut self) -> String {
        let length = u64::from_le_bytes(self.take(8).try_into().expect("eight bytes")) as usize;
        String::from_utf8_lossy(self.take(length)).trim_end_matches('\0').to_owned()
    }

    /// The globals of a function and of those in it.
    fn function(&mut self, names: &mut BTreeSet<String>) {
        const GET_GLOBAL: u32 = 5;
        const SET_GLOBAL: u32 = 7;
        self.text();
        self.take(2 * 4 + 4);
        let n = self.int();
        let code: Vec<u32> =
            self.take(4 * n).chunks(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect();
        let constants: Vec<String> = (0..self.int())
            .map(|_| match self.take(1)[0] {
                1 => String::from_utf8_lossy(self.take(1)).into_owned(),
                3 => String::from_utf8_lossy(self.take(8)).into_owned(),
                4 => self.text(),
                _ => String::new(),
            })
            .collect();
        let globals = code.iter().filter(|word| [GET_GLOBAL, SET_GLOBAL].contains(&(*word & 0x3f)));
        names.extend(globals.map(|word| constants[(word >> 14) as usize].clone()));
        for _ in 0..self.int() {
            self.function(names);
        }
        let lines = self.int();
        self.take(4 * lines);
        for _ in 0..self.int() {
            self.text();
            self.take(8);
        }
        for _ in 0..self.int() {
            self.text();
        }
    }
}

/// The local names that a Lua text declares outside of all blocks.
fn locals_of(source: &str) -> Vec<&str> {
    let lines = source.lines().filter_map(|line| line.strip_prefix("local "));
    let names = lines.flat_map(|line| line.split(['=', '(']).next().unwrap_or_default().split(','));
    names.map(|name| name.trim().trim_start_matches("function ")).collect()
}

/// The Lua files: each by its name in needs, as `functions/join.rs` has it, with its source.
fn sources() -> BTreeMap<String, String> {
    let folder = Path::new("src/store/functions");
    let all = files(folder, "lua").into_iter().map(|path| {
        let source = std::fs::read_to_string(&path).expect("a file");
        let inside = path.strip_prefix(folder).expect("it is in there").with_extension("");
        let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        let name = if parts.len() == 2 && parts[0] == parts[1] { parts[0].clone() } else { parts.join(".") };
        (name, source)
    });
    all.collect()
}

/// What the head of a file says that it needs.
fn needs_of(source: &str) -> BTreeSet<&str> {
    let mut lines = source.lines();
    let first = lines.next().and_then(|line| line.strip_prefix("-- needs: ")).unwrap_or_default();
    let names = std::iter::once(first).chain(lines.map_while(|line| line.strip_prefix("--   ")));
    names.flat_map(|line| line.split(',')).map(str::trim).filter(|name| !["", "nothing"].contains(name)).collect()
}

#[test]
fn free_names_are_those_that_are_no_locals() {
    let lua = mlua::Lua::new();
    let found =
        free_names(&lua, "local a = 1\ndo local b = function(c) return a + c + d.e(f, 'g', 2, true) end h = b end");
    assert_eq!(found, ["d", "f", "h"].map(str::to_owned).into());
}

/// The folders of the library, the lowest first: a file needs files of its own folder and of those before it.
const FOLDERS: [&str; 15] = [
    "base", "pace", "limiter", "policy", "context", "route", "limits", "state", "tree", "queue", "control", "dispatch",
    "jobs", "view", "register",
];

#[test]
fn each_folder_of_the_library_needs_those_before_it_and_no_other() {
    let folder = |name: &str| {
        let first = name.split('.').next().unwrap_or_default().to_owned();
        let at = FOLDERS.iter().position(|folder| *folder == first);
        at.unwrap_or_else(|| panic!("{first}: say in FOLDERS where it belongs"))
    };
    for (file, source) in &sources() {
        for need in needs_of(source) {
            assert!(folder(need) <= folder(file), "{file} needs {need}, which is in a folder above it");
        }
    }
}

#[test]
fn each_file_of_the_library_names_what_it_uses_and_nothing_else() {
    let (lua, sources) = (mlua::Lua::new(), sources());
    let owner: BTreeMap<&str, &str> = sources
        .iter()
        .flat_map(|(file, source)| locals_of(source).into_iter().map(move |name| (name, file.as_str())))
        .collect();
    let given = ["bit", "cjson", "math", "redis", "string", "struct", "table"];
    let functions = [
        "error",
        "ipairs",
        "next",
        "pairs",
        "pcall",
        "select",
        "setmetatable",
        "tonumber",
        "tostring",
        "type",
        "unpack",
    ];
    for (file, source) in &sources {
        let free = free_names(&lua, source);
        let strange: Vec<_> = free.iter().filter(|name| !owner.contains_key(name.as_str())).collect();
        let strange: Vec<_> =
            strange.into_iter().filter(|name| !given.iter().chain(&functions).any(|known| known == name)).collect();
        assert!(strange.is_empty(), "{file} uses {strange:?}, which nothing declares");
        let used: BTreeSet<&str> = free.iter().filter_map(|name| owner.get(name.as_str()).copied()).collect();
        assert_eq!(needs_of(source), used, "{file}: its first lines say what it needs, and that is what it uses");
    }
}

#[test]
fn no_line_of_lua_is_wider_than_120_columns_but_a_text() {
    for (file, source) in sources() {
        let wide = source.lines().find(|line| line.len() > 120 && !line.trim_start().starts_with('\''));
        assert_eq!(wide, None, "{file}");
    }
}

#[test]
fn every_lua_file_is_part_of_the_library() {
    for (file, source) in sources() {
        assert!(dripd::store::library::source().contains(&source), "{file} is not joined in");
    }
}

#[test]
fn each_lua_file_is_a_block_with_one_table_and_the_chunk_keeps_few_names() {
    assert_eq!(locals_of("local a, b = 1, 2\nlocal function c(x, y)\n  local d\nlocal e\n"), ["a", "b", "c", "e"]);
    let mut all = 0;
    for (file, source) in sources() {
        let locals = locals_of(&source).len();
        assert!(locals <= 1 || file == "base", "{file} adds {locals} names");
        assert!(source.contains("\ndo\n"), "{file} is no block");
        all += locals;
    }
    assert!((20..120).contains(&all), "{all} names; Lua allows 200");
}

/// A function of another file that is not there would be found only when it is called.
#[test]
fn whatever_a_lua_file_calls_of_another_is_there() {
    let source = dripd::store::library::source();
    let lines: Vec<&str> = source.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    let code = lines.join("\n");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let modules: BTreeSet<&str> = code
        .lines()
        .filter_map(|line| line.strip_prefix("local ")?.strip_suffix(" = {}"))
        .filter(|name| name.chars().all(is_word))
        .collect();
    assert!(modules.len() > 50, "{modules:?}");
    let mut calls = 0;
    for (at, _) in code.match_indices('(') {
        let path = code[..at].rsplit(|c: char| !is_word(c) && c != '.').next().unwrap_or_default();
        let Some((module, name)) = path.split_once('.') else { continue };
        let file = code[..at].rsplit("\nlocal ").next().unwrap_or_default();
        let is_other =
            [format!("local {module} ="), format!("local {module},")].iter().any(|local| file.contains(local));
        if !modules.contains(module) || name.contains('.') || is_other {
            continue;
        }
        calls += 1;
        let is_made = ["(", " =", ","].iter().any(|end| {
            code.match_indices(&format!("{module}.{name}{end}")).any(|(at, _)| {
                let line = code[..at].rsplit('\n').next().unwrap_or_default();
                line.ends_with("function ")
                    || *end != "(" && line.trim().chars().all(|c| is_word(c) || "., ".contains(c))
            })
        });
        assert!(is_made, "{path} is called, and no file makes it");
    }
    assert!(calls > 500, "{calls} calls");
}

/// The functions of a Lua file that are declared in its block, each with its lines of code. What they contain is part of them.
fn functions_of(source: &str) -> Vec<(String, Vec<&str>)> {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    for line in source.lines() {
        let head = line.strip_prefix("  local function ").or(line.strip_prefix("  function "));
        if let Some(head) = head {
            found.push((head.split('(').next().unwrap_or_default().to_owned(), Vec::new()));
        } else if line.starts_with("    ")
            && !line.trim_start().starts_with("--")
            && let Some((_, lines)) = found.last_mut()
        {
            lines.push(line.trim());
        }
    }
    found
}

/// Whether a line of Lua changes the state of a node: that of a budget, a set of states, or what is to be written there.
fn changes_a_state(line: &str) -> bool {
    let is_assigned = |line: &str| {
        let at = line.match_indices('=').map(|(at, _)| at).find(|at| {
            let (before, after) = (line[..*at].chars().last(), line[*at + 1..].chars().next());
            after != Some('=') && !matches!(before, Some('=' | '~' | '<' | '>'))
        });
        at.is_some_and(|at| line[..at].split([' ', ',']).any(|word| word == "b.state"))
    };
    let sets =
        ["k.schedule", "k.rest", "k.paused", "k.full", "k.refused", "rest,", "schedule,", "set.key", "key,", "old,"];
    let writes = ["'ZADD'", "'ZREM'", "'ZREMRANGEBYRANK'"].iter().any(|command| line.contains(command));
    let passed_on = [
        "state.move(",
        "state.cooling(",
        "waiting.join(",
        "waiting.leave(",
        "put(ctx, set",
        "list_of(",
        "ctx.moves = {",
    ];
    let then = line.rsplit(" then ").next().unwrap_or_default();
    is_assigned(then)
        || passed_on.iter().any(|call| line.contains(call))
        || writes && sets.iter().any(|set| line.contains(set))
}

/// Functions that read a state from Redis, or write or note what another one has decided.
const PASS_ON: [&str; 9] = [
    "decode",
    "state.move",
    "state.cooling",
    "list_of",
    "put",
    "waiting.join",
    "waiting.leave",
    "write_all",
    "budget.flush",
];

/// Sets of other things than states are written there.
const OTHERS: [&str; 8] =
    ["base.", "context.", "jobs.adjust", "jobs.heal", "limiter.", "limits.", "queue.", "register"];

#[test]
fn whatever_changes_a_state_asks_the_table_or_is_listed_in_the_page_of_the_engine() {
    let page = std::fs::read_to_string("docs/engine.md").expect("the page");
    let rows = page.lines().filter(|line| {
        line.starts_with("| where it is changed without")
            || line.starts_with("| the same,")
            || line.starts_with("| where a held bucket")
    });
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let listed: BTreeSet<String> =
        rows.flat_map(|row| row.split('`').skip(1).step_by(2)).filter(|name| !name.contains('/')).map(last).collect();
    assert!(listed.len() >= 13, "{listed:?}");
    let (mut unchecked, mut checked) = (BTreeSet::new(), BTreeSet::new());
    for (file, source) in sources() {
        if file.starts_with("view.") {
            continue; // it only reads
        }
        for (name, lines) in functions_of(&source) {
            let of_states = |line: &&str| {
                let is_other = OTHERS.iter().any(|other| file.starts_with(other));
                changes_a_state(line) && !(is_other && line.contains("'Z"))
            };
            if !lines.iter().any(of_states) || PASS_ON.contains(&name.as_str()) {
                continue;
            }
            let asks = lines.iter().any(|line| line.contains("transitions.check("));
            if asks {
                checked.insert(last(&name))
            } else {
                unchecked.insert(last(&name))
            };
        }
    }
    assert_eq!(checked, ["enter", "move"].map(str::to_owned).into());
    assert_eq!(unchecked, listed, "those that do not ask, and those that the page lists");
}
