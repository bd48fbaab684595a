//! Settings of run time as entries for the configuration file: `dripd settings --toml`.

use std::collections::BTreeMap;

use crate::config::keys::BUDGET_LIMITS;
use crate::model::escape::{is_visible, line};
use crate::model::glob::{self, Glob};
use crate::model::subject::Subject;
use crate::operate::moment::of_micros;
use crate::store::settings::{Settings, Stands};

const HEAD: &str = "\
# What is set at run time. Put these entries before the others of their kind: of all that match a name the first one counts.
# What an entry of the file sets for the same names, and is to stay, must be repeated here.\n";

/// The entries, in an order in which the file means what the settings mean. Among settings each key is decided
/// separately: an exact name wins, then the glob that was set last. In the file the first entry that matches decides
/// all keys. So an entry comes before every entry that matches all of its buckets, and takes over from those the keys
/// that it does not decide itself.
///
/// Values that end by themselves, pauses and closures have no place in the file: they become comments.
///
/// Only settings for which `is_asked` is true are written; the others count for the keys that wider globs decide.
pub(super) fn as_toml(all: &[Settings], is_asked: impl Fn(&Settings) -> bool) -> String {
    let (budgets, buckets): (Vec<_>, Vec<_>) = all.iter().partition(|one| subject(one).is_budget);
    HEAD.to_owned() + &entries(&buckets, &is_asked) + &entries(&budgets, &is_asked)
}

fn subject(one: &Settings) -> Subject<'_> {
    Subject::of_stored(&one.pattern)
}

/// The entries of buckets, or of budgets.
fn entries(all: &[&Settings], is_asked: &impl Fn(&Settings) -> bool) -> String {
    let (globs, names): (Vec<_>, Vec<_>) = all.iter().copied().partition(|one| one.is_glob);
    let globs: Vec<(&Settings, Glob)> =
        in_order(globs).into_iter().map(|one| (one, Glob::parse(subject(one).pattern))).collect();
    let mut text = String::new();
    for name in names.into_iter().filter(|one| is_asked(one)) {
        let over = globs.iter().filter(|(_, glob)| glob.matches(subject(name).pattern.as_bytes()));
        text += &entry(name, over.map(|(one, _)| *one));
    }
    for (one, _) in globs.iter().filter(|(one, _)| is_asked(one)) {
        let over = globs.iter().filter(|(other, _)| is_over(other, one));
        text += &entry(one, over.map(|(other, _)| *other));
    }
    text + &meetings(&globs.iter().map(|(one, _)| *one).filter(|one| is_asked(one)).collect::<Vec<_>>())
}

/// A comment for each pair of globs of which neither matches all that the other one matches: no entry can say what
/// holds where they overlap.
fn meetings(globs: &[&Settings]) -> String {
    let mut text = String::new();
    let in_file: Vec<_> = globs.iter().filter(|one| lasting(one).next().is_some()).collect();
    for (at, first) in in_file.iter().enumerate() {
        for second in &in_file[at + 1..] {
            let is_prefix = |one: &Settings| matches!(glob::Kind::of(subject(one).pattern), glob::Kind::Prefix(_));
            let are_apart = is_prefix(first) && is_prefix(second);
            if !are_apart && !is_over(first, second) && !is_over(second, first) {
                text += &format!(
                    "# {:?} and {:?} may meet in some {}s: in the file the one above decides all keys of those.\n",
                    subject(first).pattern,
                    subject(second).pattern,
                    subject(first).kind()
                );
            }
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// Whether the first glob certainly matches all that the second one matches.
fn is_over(outer: &Settings, inner: &Settings) -> bool {
    outer.pattern != inner.pattern && !glob::hidden(&[subject(outer).pattern, subject(inner).pattern]).is_empty()
}

/// The globs in the order of the file: a glob comes before every wider one; otherwise the one that was set last comes
/// first.
fn in_order(mut globs: Vec<&Settings>) -> Vec<&Settings> {
    globs.sort_by_key(|one| lasting(one).map(|(_, stands)| stands.seq).max());
    let mut ordered = Vec::with_capacity(globs.len());
    while !globs.is_empty() {
        let is_free = |one: &&Settings| !globs.iter().any(|other| is_over(one, other));
        // Two equivalent globs are each wider than the other: then the one that was set last comes first.
        let at = globs.iter().rposition(is_free).unwrap_or(globs.len() - 1);
        ordered.push(globs.remove(at));
    }
    ordered
}

/// The values of a setting that do not end by themselves, without pauses and closures.
fn lasting(one: &Settings) -> impl Iterator<Item = (&str, &Stands)> {
    let keys = one.keys.iter().filter(|(key, _)| !is_order(key));
    keys.filter_map(|(key, lies)| lies.lasting.as_ref().map(|stands| (key.as_str(), stands)))
}

/// Whether a key is a pause or a closure, which the file does not know.
fn is_order(key: &str) -> bool {
    key == "pause" || key == "close"
}

/// The entry of a setting. `over` are the wider settings, whose keys it takes over where they decide them.
fn entry<'a>(one: &'a Settings, over: impl Iterator<Item = &'a Settings>) -> String {
    let mut decided: BTreeMap<&str, (&Stands, &str)> = BTreeMap::new();
    let is_decided = lasting(one).next().is_some();
    for other in over.filter(|_| is_decided).chain([one]) {
        for (key, stands) in lasting(other) {
            let wins = |(before, _): &(&Stands, &str)| stands.seq > before.seq;
            if std::ptr::eq(other, one) && !one.is_glob || decided.get(key).is_none_or(wins) {
                decided.insert(key, (stands, &other.pattern));
            }
        }
    }
    let this = subject(one);
    // A budget that limits nothing is no valid entry: its keys become comments.
    let is_entry = is_decided && (!this.is_budget || decided.keys().any(|key| BUDGET_LIMITS.contains(key)));
    let mut lines = Vec::new();
    if is_entry {
        // The `match` of an entry is a glob, so special characters of a name are escaped.
        let pattern = if one.is_glob { this.pattern.to_owned() } else { glob::of_name(this.pattern) };
        lines.push(format!("[[{}]]\nmatch = {}", this.kind(), as_text(&toml::Value::String(pattern))));
    }
    for (key, (stands, pattern)) in decided {
        let from = if pattern == one.pattern {
            String::new()
        } else {
            format!(" # set for {:?}", Subject::of_stored(pattern).pattern)
        };
        let line = line(&format!("{key} = {}{from}", seen(&stands.text))).into_owned();
        lines.push(if is_entry { line } else { format!("# for a [[budget]] {:?}: {line}", this.pattern) });
    }
    for (key, lies) in &one.keys {
        let stands = lies.timed.iter().chain(lies.lasting.as_ref().filter(|_| is_order(key)));
        for stands in stands {
            let has = match key.as_str() {
                "slow-down" => format!("is slowed down ({})", stands.text),
                "told-limit" => format!("is told: {}", stands.text),
                key if is_order(key) => format!("has {key}"),
                key => format!("has {key} = {}", stands.text),
            };
            let until = stands
                .till
                .as_deref()
                .map_or("until it is taken back".to_owned(), |till| format!("until {}", of_micros(till)));
            lines.push(line(&format!("# not for the file: {} {has} {until}", this.quoted())).into_owned());
        }
    }
    if lines.is_empty() { String::new() } else { format!("\n{}\n", lines.join("\n")) }
}

/// The same value of TOML in visible characters. A text that is no TOML is returned unchanged; the caller makes a safe
/// line of it.
fn seen(text: &str) -> String {
    if text.chars().all(is_visible) {
        return text.to_owned();
    }
    let value = format!("value = {text}").parse::<toml::Table>().ok().and_then(|mut table| table.remove("value"));
    value.map_or_else(|| text.to_owned(), |value| as_text(&value))
}

/// A value as TOML. Invisible characters become escapes, which only basic strings can hold.
fn as_text(value: &toml::Value) -> String {
    let usual = value.to_string();
    match value {
        _ if usual.chars().all(is_visible) => usual,
        toml::Value::String(text) => basic(text),
        toml::Value::Array(list) => format!("[{}]", list.iter().map(as_text).collect::<Vec<_>>().join(", ")),
        toml::Value::Table(table) => {
            let member = |(key, value): (&String, &toml::Value)| format!("{} = {}", basic(key), as_text(value));
            format!("{{ {} }}", table.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        _ => usual,
    }
}

fn basic(text: &str) -> String {
    let piece = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if is_visible(c) => c.to_string(),
        c => format!("\\U{:08X}", u32::from(c)),
    };
    format!("\"{}\"", text.chars().map(piece).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_with_characters_that_nobody_sees_means_the_same_and_shows_them() {
        for (text, shown) in [
            ("'5/s'", "'5/s'"),
            ("\"it's \\\"\u{202e}\\\\\"", r#""it's \"\U0000202E\\""#),
            ("'\\\u{202e}'", r#""\\\U0000202E""#),
            ("[{ 'a\u{200b}' = 1 }, \"b\u{ad}\"]", r#"[{ "a\U0000200B" = 1 }, "b\U000000AD"]"#),
        ] {
            assert_eq!(seen(text), shown);
            let table = |text: &str| format!("x = {text}").parse::<toml::Table>().expect(text);
            assert_eq!(table(text), table(shown));
        }
    }
}
