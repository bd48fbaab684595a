//! `docs/engine.md` draws the state machine of the function library, and has the words of the audit. After a change write it anew:
//! `DRIPD_BLESS=1 cargo test engine_page`. And the machine itself: every pair of a state and an event.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

use crate::rig::{Server, load_source};

const PAGE: &str = "docs/engine.md";

/// What a test asks the library for: functions that stand behind its end, where its tables can be seen.
const ASKS: &str = r"
redis.register_function('machine', function()
  if not call then for i = 1, #at_first_call do at_first_call[i]() end at_first_call = nil end
  local next_of = {}
  for _, one in ipairs(transitions.decisions) do next_of[one[1]] = {} end
  for from, of in pairs(next_of) do
    for event in string.gmatch('arrive turn change free forget', '%a+') do of[event] = transitions.successors(from, event) or {} end
  end
  return cjson.encode({ events = transitions.events, decisions = transitions.decisions, next_of = next_of, invariants = audit.invariants })
end)
redis.register_function('check', function(_, args) return transitions.check(args[1], args[2], args[3], args[4]) end)
";

#[derive(Deserialize)]
struct Machine {
    events: BTreeMap<String, Vec<String>>,
    decisions: Vec<(String, String)>,
    next_of: BTreeMap<String, BTreeMap<String, serde_json::Value>>,
    invariants: Vec<String>,
}

const STATES: [&str; 8] = ["idle", "cooling", "scheduled", "queued", "held", "blocked", "paused", "refused"];
const EVENTS: [(&str, &str); 5] = [
    (
        "arrive",
        "work comes: a push, a retry or a delayed job whose time has come; of a budget a child that waits for it",
    ),
    ("turn", "it is due and has its turn, is picked by the budget above, or its route takes its next job"),
    ("change", "a setting, the configuration, a slow-down or a cost changed; a purge"),
    ("free", "a slot is free"),
    ("forget", "its due has passed"),
];

fn library() -> (Server, redis::Connection, Machine) {
    let server = Server::start(&[]);
    let mut redis = server.connect();
    load_source(&mut redis, &format!("{}{ASKS}", dripd::store::library::source()));
    let text: String = redis::cmd("FCALL").arg("machine").arg(0).query(&mut redis).expect("the machine");
    let machine = serde_json::from_str(&text).expect("JSON");
    (server, redis, machine)
}

/// The states that may follow; none: that cannot happen.
fn successors(machine: &Machine, from: &str, event: &str) -> Vec<String> {
    let list = machine.next_of[from][event].as_array().cloned().unwrap_or_default(); // an empty table of Lua is an object
    list.iter().map(|one| one.as_str().expect("a state").to_owned()).collect()
}

#[test]
fn every_state_and_event_has_its_successors_or_is_refused() {
    let (_server, mut redis, machine) = library();
    let (mut possible, mut refused) = (0, 0);
    for from in STATES {
        for (event, _) in EVENTS {
            let listed = successors(&machine, from, event);
            assert_eq!(!listed.is_empty(), machine.events[from].contains(&event.to_owned()), "{from} {event}");
            for to in STATES {
                for (kind, id) in [("bucket", "a"), ("budget", "{a}")] {
                    let mut check = redis::cmd("FCALL");
                    check.arg("check").arg(0).arg(id).arg(from).arg(event).arg(to);
                    let told = check.query::<redis::Value>(&mut redis);
                    let may_be = listed.iter().any(|one| one == to);
                    assert_eq!(told.is_ok(), may_be, "a {kind}, {from}, {event}, {to}: {told:?}");
                    possible += usize::from(may_be);
                    refused += usize::from(!may_be);
                }
            }
        }
    }
    println!("{possible} transitions, {refused} refused");
    assert_eq!(machine.events.len(), STATES.len());
    assert!(machine.decisions.iter().all(|(state, _)| STATES.contains(&state.as_str())));
}

fn drawing(machine: &Machine) -> String {
    let mut text = "```mermaid\nstateDiagram-v2\n    state decide <<choice>>\n    [*] --> idle\n".to_owned();
    for from in STATES {
        let events: Vec<&str> =
            machine.events[from].iter().filter(|one| *one != "forget").map(String::as_str).collect();
        writeln!(text, "    {from} --> decide: {}", events.join(", ")).expect("a text");
    }
    text += "    cooling --> idle: forget\n";
    for to in STATES {
        let reasons: Vec<&str> =
            machine.decisions.iter().filter(|(state, _)| state == to).map(|(_, why)| why.as_str()).collect();
        writeln!(text, "    decide --> {to}: {}", reasons.join("; ").replace(':', ",")).expect("a text");
    }
    text += "```\n\nAfter an event the state is decided again: the first of these that is true.\n\n| state | when |\n|---|---|\n";
    for (state, why) in &machine.decisions {
        writeln!(text, "| {state} | {why} |").expect("a text");
    }
    text += "\n| event | what happens |\n|---|---|\n";
    for (event, what) in EVENTS {
        writeln!(text, "| {event} | {what} |").expect("a text");
    }
    text += "\nWhat is empty here cannot happen, and is refused (`transitions.check`); ✓: the state is decided again.\n\n| |";
    for (event, _) in EVENTS {
        write!(text, " {event} |").expect("a text");
    }
    text += "\n|---|---|---|---|---|---|\n";
    for from in STATES {
        write!(text, "| {from} |").expect("a text");
        for (event, _) in EVENTS {
            let listed = successors(machine, from, event);
            let cell = match &listed[..] {
                [] => "",
                [one] => one.as_str(),
                _ => "✓",
            };
            write!(text, " {cell} |").expect("a text");
        }
        text.push('\n');
    }
    text
}

fn invariants(machine: &Machine) -> String {
    let lines = machine.invariants.iter().enumerate();
    lines.fold(String::new(), |text, (n, rule)| text + &format!("{}. {rule}\n", n + 1))
}

#[test]
fn the_engine_page_draws_the_machine_of_the_library() {
    let (_server, _, machine) = library();
    let written = std::fs::read_to_string(PAGE).expect("a page");
    let mut page = written.clone();
    for (name, part) in [("states", drawing(&machine)), ("invariants", invariants(&machine))] {
        let (begin, end) = (format!("<!-- {name} -->\n"), "<!-- end -->");
        let from = page.find(&begin).expect("its marker") + begin.len();
        let to = from + page[from..].find(end).expect("its end");
        page.replace_range(from..to, &format!("\n{part}\n"));
    }
    if std::env::var_os("DRIPD_BLESS").is_some() {
        std::fs::write(PAGE, &page).expect("written");
    } else {
        assert!(page == written, "{PAGE} is out of date: DRIPD_BLESS=1 cargo test engine_page writes it anew");
    }
}
