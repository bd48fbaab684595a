//! When two states are the same: everything that is stored below a prefix, with times as they lie from now, and what was counted up (jobs, ids of
//! entries, ids of configurations) by the order in which it comes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use redis::Value;

use super::super::tree_model::Pair;
use crate::twin;

/// What only tells of the past, and nothing depends on.
const OF_THE_PAST: [&str; 4] = ["stats", "wake", "events", "drips"];

/// Times lie so near to now, in microseconds.
const NEAR: u64 = 400 * 86_400 * 1_000_000;

/// A state as it is compared, and all of it is deleted.
pub(super) fn take(pair: &mut Pair) -> u64 {
    let mut hasher = DefaultHasher::new();
    text(pair).hash(&mut hasher);
    hasher.finish()
}

pub(super) fn text(pair: &mut Pair) -> String {
    let stored = twin::everything(&mut pair.case.redis, &pair.case.prefix);
    let mut text = Normal { now: pair.now, names: HashMap::new(), out: String::new() };
    for (key, kind, held) in &stored {
        let name = &key[pair.case.prefix.len() + 1..];
        if OF_THE_PAST.contains(&name.split(':').next().unwrap_or(name)) {
            continue;
        }
        text.out += &format!("\n{kind} {name} ");
        match (kind.as_str(), held) {
            ("stream", Value::Array(held)) => text.stream(held),
            ("hash", Value::Array(lines)) if name == "policy" => {
                // How often something was set is a number that only grows.
                for line in lines.iter().filter(|line| !is_of(line, b"settings")) {
                    text.value(line);
                }
            }
            ("hash", Value::Array(lines)) if name == "settings" => lines.iter().for_each(|line| text.setting(line)),
            _ => text.value(held),
        }
    }
    text.out
}

fn text_of(value: &Value) -> String {
    redis::from_redis_value_ref(value).unwrap_or_default()
}

/// Whether an id of an entry is later than another.
fn after(id: &str, last: &str) -> bool {
    let numbers = |id: &str| id.split('-').map(|part| part.parse::<u64>().unwrap_or(0)).collect::<Vec<_>>();
    numbers(id) > numbers(last)
}

struct Normal {
    now: u64,
    /// What was counted up, by kind and text, and which one it is.
    names: HashMap<(char, String), usize>,
    out: String,
}

fn is_of(line: &Value, field: &[u8]) -> bool {
    matches!(line, Value::Array(pair) if matches!(&pair[..], [Value::BulkString(name), _] if name == field))
}

impl Normal {
    /// Its entries, and of each group how many of them nobody has read, and what is pending.
    fn stream(&mut self, held: &[Value]) {
        let (Some(Value::Array(entries)), groups) = (held.first(), &held[1..]) else { return };
        for entry in entries {
            self.value(entry);
        }
        for group in groups {
            let Value::Array(group) = group else { continue };
            let (last, pending) = (text_of(&group[1]), &group[2]);
            let is_unread = |entry: &&Value| matches!(entry, Value::Array(pair) if after(&text_of(&pair[0]), &last));
            self.out += &format!("{} unread ", entries.iter().filter(is_unread).count());
            self.value(pending);
        }
    }

    /// What is set for a name, but not since when, and as the how-manieth.
    fn setting(&mut self, line: &Value) {
        let Value::Array(pair) = line else { return };
        let mut entry: serde_json::Value = serde_json::from_str(&text_of(&pair[1])).expect("JSON");
        for key in entry["keys"].as_object_mut().into_iter().flat_map(|keys| keys.values_mut()) {
            for set in key.as_object_mut().into_iter().flat_map(|kinds| kinds.values_mut()) {
                if let Some(fields) = set.as_object_mut() {
                    fields.retain(|field, _| !["since", "seq"].contains(&field.as_str()));
                }
            }
        }
        self.words(&format!("{} {entry} ", text_of(&pair[0])));
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Array(all) => {
                self.out.push('(');
                for one in all {
                    self.value(one);
                }
                self.out.push(')');
            }
            Value::BulkString(bytes) => self.words(&String::from_utf8_lossy(bytes)),
            Value::SimpleString(text) => self.words(text),
            other => self.out += &format!("{other:?}"),
        }
        self.out.push(' ');
    }

    fn words(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let hex = bytes[at..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
            let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if hex == 0 {
                let more = text[at..].chars().next().map_or(1, char::len_utf8);
                self.out += &text[at..at + more];
                at += more;
                continue;
            }
            let word = &text[at..at + hex];
            let number = text[at..at + digits].parse::<u64>().ok();
            let is_id = [13, 20].contains(&digits) && bytes.get(at + digits) == Some(&b'-');
            if is_id {
                let more = bytes[at + digits + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                let end = at + digits + 1 + more;
                self.named('#', text[at..end].trim_start_matches('0'));
                at = end;
            } else if hex == 16 && digits < 16 {
                self.named('c', word);
                at += hex;
            } else if digits == 16 && number.is_some_and(|time| time.abs_diff(self.now) < NEAR) {
                self.out += &format!("{:+}", number.unwrap_or(0) as i64 - self.now as i64);
                at += digits;
            } else if digits == 7 && word.starts_with("70") {
                self.named('j', word);
                at += digits;
            } else {
                let plain = digits.max(1);
                self.out += &text[at..at + plain];
                at += plain;
            }
        }
    }

    fn named(&mut self, kind: char, word: &str) {
        let next = self.names.len();
        let n = *self.names.entry((kind, word.to_owned())).or_insert(next);
        self.out += &format!("{kind}{n}");
    }
}
