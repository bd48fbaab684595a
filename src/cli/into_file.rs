//! What is set at run time as entries for the configuration file: `dripd settings --toml`.

use std::collections::BTreeMap;

use super::moment::of_micros;
use crate::store::change::{Settings, Stands};
use crate::words::glob::{self, Glob};
use crate::words::subject::Subject;

const HEAD: &str = "\
# What is set at run time. Put these entries before the others of their kind: of all that match a bucket or a budget the first one counts.
# What an entry of the file sets for the same ones, and is to stay, must be repeated here.\n";

/// The entries, in an order in which the file means what the settings mean. There each key is decided by itself: an exact name wins, then
/// the glob that was set last. In the file the first entry that matches decides all keys. So an entry comes before those that mean all
/// of its buckets, and takes over from them what it does not decide itself.
///
/// What ends by itself, pauses and closures have no place in the file: they become comments.
///
/// Only what `is_asked` says yes to is written; the others count for what wider globs decide.
///
/// Budgets stand last, each without its braces; one of which nothing that limits is set would be no entry, so it is a comment.
pub(super) fn as_toml(all: &[Settings], is_asked: impl Fn(&Settings) -> bool) -> String {
    let (mut buckets, mut budgets) = (Vec::new(), Vec::new());
    for one in all {
        let subject = Subject::of_stored(&one.pattern);
        let pattern = subject.pattern.to_owned();
        let of_its_kind = if subject.is_budget { &mut budgets } else { &mut buckets };
        of_its_kind.push(Settings { pattern, ..one.clone() });
    }
    HEAD.to_owned() + &section(&buckets, "bucket", &is_asked) + &section(&budgets, "budget", &is_asked)
}

/// The entries of one kind.
fn section(all: &[Settings], kind: &str, is_asked: &impl Fn(&Settings) -> bool) -> String {
    let (globs, names): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.is_glob);
    let globs: Vec<(&Settings, Glob)> =
        in_order(globs).into_iter().map(|one| (one, Glob::parse(&one.pattern))).collect();
    let mut text = String::new();
    for name in names.into_iter().filter(|one| is_asked(one)) {
        let over = globs.iter().filter(|(_, glob)| glob.matches(name.pattern.as_bytes()));
        text += &entry(name, kind, over.map(|(one, _)| *one));
    }
    for (one, _) in globs.iter().filter(|(one, _)| is_asked(one)) {
        let over = globs.iter().filter(|(other, _)| is_over(other, one));
        text += &entry(one, kind, over.map(|(other, _)| *other));
    }
    text + &meetings(&globs.iter().map(|(one, _)| *one).filter(|one| is_asked(one)).collect::<Vec<_>>())
}

/// A comment for each two globs of which neither means all buckets of the other, and which no entry can stand for where they meet.
fn meetings(globs: &[&Settings]) -> String {
    let mut text = String::new();
    let in_file: Vec<_> = globs.iter().filter(|one| lasting(one).next().is_some()).collect();
    for (at, first) in in_file.iter().enumerate() {
        for second in &in_file[at + 1..] {
            let is_prefix = |one: &Settings| matches!(glob::Kind::of(&one.pattern), glob::Kind::Prefix(_));
            let are_apart = is_prefix(first) && is_prefix(second);
            if !are_apart && !is_over(first, second) && !is_over(second, first) {
                text += &format!(
                    "# {:?} and {:?} may meet in some buckets: in the file the one above decides all keys of those.\n",
                    first.pattern, second.pattern
                );
            }
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// Whether one glob surely means all buckets of another one.
fn is_over(outer: &Settings, inner: &Settings) -> bool {
    outer.pattern != inner.pattern && !glob::hidden(&[&outer.pattern, &inner.pattern]).is_empty()
}

/// Those that others are over first; else the one that was set last.
fn in_order(mut globs: Vec<&Settings>) -> Vec<&Settings> {
    globs.sort_by_key(|one| lasting(one).map(|(_, stands)| stands.seq).max());
    let mut ordered = Vec::with_capacity(globs.len());
    while !globs.is_empty() {
        let is_free = |one: &&Settings| !globs.iter().any(|other| is_over(one, other));
        // Two that mean the same in other words are over each other.
        let at = globs.iter().rposition(is_free).unwrap_or(globs.len() - 1);
        ordered.push(globs.remove(at));
    }
    ordered
}

/// The values of keys of the file that stay until they are taken back.
fn lasting(one: &Settings) -> impl Iterator<Item = (&str, &Stands)> {
    let keys = one.keys.iter().filter(|(key, _)| !is_order(key));
    keys.filter_map(|(key, lies)| lies.lasting.as_ref().map(|stands| (key.as_str(), stands)))
}

/// Whether a key is an order to stop, which the file does not know.
fn is_order(key: &str) -> bool {
    key == "pause" || key == "close"
}

/// One entry; what others that mean the same buckets decide is taken over.
fn entry<'a>(one: &'a Settings, kind: &str, over: impl Iterator<Item = &'a Settings>) -> String {
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
    let mut lines = Vec::new();
    let limits = ["rate", "quota", "concurrency"].iter().any(|key| decided.contains_key(key));
    let quoted = toml::Value::String(one.pattern.clone());
    let is_entry = kind != "budget" || limits;
    match (is_decided, is_entry) {
        (true, true) => lines.push(format!("[[{kind}]]\nmatch = {quoted}")),
        (true, false) => lines.push(format!("# for [[{kind}]] match = {quoted}:")),
        (false, _) => {}
    }
    for (key, (stands, pattern)) in decided {
        let from = if pattern == one.pattern { String::new() } else { format!(" # set for {pattern:?}") };
        let mark = if is_entry { "" } else { "# " };
        lines.push(format!("{mark}{key} = {}{from}", stands.text));
    }
    for (key, lies) in &one.keys {
        let stands = lies.timed.iter().chain(lies.lasting.as_ref().filter(|_| is_order(key)));
        for stands in stands {
            let value = if is_order(key) { String::new() } else { format!(" = {}", stands.text) };
            let until = stands
                .till
                .as_deref()
                .map_or("until it is taken back".to_owned(), |till| format!("until {}", of_micros(till)));
            lines.push(format!("# not for the file: {:?} has {key}{value} {until}", one.pattern));
        }
    }
    if lines.is_empty() { String::new() } else { format!("\n{}\n", lines.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::change::Lies;

    fn set(pattern: &str, is_glob: bool, keys: &[(&str, &str)]) -> Settings {
        let stands = |text: &str| Stands {
            text: text.to_owned(),
            seq: 0,
            since: "1000000".to_owned(),
            till: None,
            by: "ann@web1".to_owned(),
            user: String::new(),
            reason: None,
        };
        let lies = |(key, text): &(&str, &str)| ((*key).to_owned(), Lies { lasting: Some(stands(text)), timed: None });
        Settings { pattern: pattern.to_owned(), is_glob, keys: keys.iter().map(lies).collect() }
    }

    #[test]
    fn budgets_become_budgets_after_the_buckets_and_one_that_limits_nothing_a_comment() {
        let all = [
            set("{sms:*}", true, &[("rate", "\"5/s\""), ("weight", "3")]),
            set("acme", false, &[("within", "\"twilio\"")]),
            set("{twilio}", false, &[("pause", "yes"), ("weight", "2")]),
        ];
        let expected = "\n[[bucket]]\nmatch = \"acme\"\nwithin = \"twilio\"\n\n\
                        # for [[budget]] match = \"twilio\":\n# weight = 2\n\
                        # not for the file: \"twilio\" has pause until it is taken back\n\n\
                        [[budget]]\nmatch = \"sms:*\"\nrate = \"5/s\"\nweight = 3\n";
        assert_eq!(as_toml(&all, |_| true), HEAD.to_owned() + expected);
    }
}
