//! A table of the file, read key by key: each key is asked for by name, and keys that nobody asked for are unknown.

use std::fmt::Display;
use std::time::Duration;

use super::keys::{Allowed, Key};
use crate::model::duration;

/// The problems of a configuration, in the order found.
#[derive(Debug, Default)]
pub struct Problems(Vec<String>);

impl Problems {
    /// Add a problem.
    pub fn add(&mut self, problem: String) {
        self.0.push(problem);
    }

    /// Whether there is no problem.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of problems.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// All problems.
    pub fn into_list(self) -> Vec<String> {
        self.0
    }
}

/// A table with its name, the keys that it may have, and the keys that were asked for so far.
pub struct Section {
    name: String,
    table: toml::Table,
    keys: &'static [&'static [Key]],
    known: Vec<&'static str>,
}

impl Section {
    /// A table under a name, which is empty for the file itself. `keys` are the tables of [`super::keys`] that describe
    /// its keys. A key that depends on other keys of the same table, or is itself a section, is asked for with a hint
    /// instead.
    pub fn new(name: impl Into<String>, table: toml::Table, keys: &'static [&'static [Key]]) -> Self {
        Self { name: name.into(), table, keys, known: Vec::new() }
    }

    /// The name, as error messages show it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of a key, as error messages show it.
    pub fn full(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    /// Whether a key is there and not read yet.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Remove a key that is not allowed here. Returns whether it was there.
    pub fn take(&mut self, key: &str) -> bool {
        self.table.remove(key).is_some()
    }

    /// Accept that keys which are not written are never read, because they do not apply here.
    pub fn without(&mut self, keys: &'static [Key]) {
        let unread = keys.iter().map(|key| key.name).filter(|name| !self.table.contains_key(*name));
        self.known.extend(unread.collect::<Vec<_>>());
    }

    fn allowed(&self, name: &str) -> &'static Allowed {
        let found = self.keys.iter().copied().flatten().find(|key| key.name == name);
        &found.unwrap_or_else(|| panic!("{}.{name} is read and stands in no table of keys", self.name)).allowed
    }

    /// Read a value that may be absent. `read` returns `None` for a wrong one; the table of keys says what would be
    /// right.
    pub fn read<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&toml::Value) -> Option<T>,
        problems: &mut Problems,
    ) -> Option<T> {
        self.optional(key, self.allowed(key), read, problems)
    }

    /// Read a value that may be absent and stands in no table of keys: `hint` says what would be right.
    pub fn optional<T>(
        &mut self,
        key: &'static str,
        hint: impl Display,
        read: impl FnOnce(&toml::Value) -> Option<T>,
        problems: &mut Problems,
    ) -> Option<T> {
        self.known.push(key);
        let value = self.table.remove(key)?;
        let read = read(&value);
        if read.is_none() {
            let (name, shown) = (self.full(key), value.to_string());
            // Only an address has a password, and not every `@` is one: a quota has it before its time zone.
            let is_address = shown.contains("://") || name.starts_with("redis");
            let shown = if is_address { crate::config::hide_password(&shown) } else { shown };
            problems.add(format!("{name}: {shown} is not allowed; {hint}"));
        }
        read
    }

    /// Read a value that must be there; `hint` says what would be right.
    pub fn required<T>(
        &mut self,
        key: &'static str,
        hint: impl Display,
        read: impl FnOnce(&toml::Value) -> Option<T>,
        problems: &mut Problems,
    ) -> Option<T> {
        if !self.table.contains_key(key) {
            self.known.push(key);
            problems.add(format!("{}: missing; {hint}", self.full(key)));
            return None;
        }
        self.optional(key, hint, read, problems)
    }

    /// Read a value that must be there; the table of keys says what would be right.
    pub fn must_read<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&toml::Value) -> Option<T>,
        problems: &mut Problems,
    ) -> Option<T> {
        self.required(key, self.allowed(key), read, problems)
    }

    /// Read a whole number within the bounds of the table of keys.
    pub fn number<T: TryFrom<u64>>(&mut self, key: &'static str, problems: &mut Problems) -> Option<T> {
        let Allowed::Number(least, most) = *self.allowed(key) else { unreachable!("{key} is no number") };
        let read = |v: &toml::Value| u64::try_from(v.as_integer()?).ok().filter(|n| (least..=most).contains(n));
        self.read(key, |v| T::try_from(read(v)?).ok(), problems)
    }

    /// Read a whole number within bounds that must be there.
    pub fn whole(&mut self, key: &'static str, least: u32, most: u32, problems: &mut Problems) -> Option<u32> {
        let read = |v: &toml::Value| u32::try_from(v.as_integer()?).ok().filter(|n| (least..=most).contains(n));
        self.required(key, Allowed::Number(least.into(), most.into()), read, problems)
    }

    /// Read a duration within the bounds of the table of keys.
    pub fn duration(&mut self, key: &'static str, problems: &mut Problems) -> Option<Duration> {
        let Allowed::Duration(least, most) = *self.allowed(key) else { unreachable!("{key} is no duration") };
        let read = |v: &toml::Value| duration::parse(v.as_str()?).filter(|d| (least..=most).contains(d));
        self.read(key, read, problems)
    }

    /// Read a section below this one; an absent one is empty.
    pub fn section(&mut self, key: &'static str, keys: &'static [&'static [Key]], problems: &mut Problems) -> Section {
        let table = self.optional(key, Allowed::Table(&[]), |v| v.as_table().cloned(), problems);
        Section::new(self.full(key), table.unwrap_or_default(), keys)
    }

    /// Read an array of tables below this one, which are called `key[1]`, `key[2]` and so on; an absent one is empty.
    pub fn sections(
        &mut self,
        key: &'static str,
        keys: &'static [&'static [Key]],
        problems: &mut Problems,
    ) -> Vec<Section> {
        let hint = format!("write tables, each under [[{}]]", self.full(key));
        let read = |v: &toml::Value| v.as_array()?.iter().map(|v| v.as_table().cloned()).collect::<Option<Vec<_>>>();
        let tables = self.optional(key, &hint, read, problems).unwrap_or_default();
        let name = self.full(key);
        tables.into_iter().zip(1..).map(|(table, n)| Section::new(format!("{name}[{n}]"), table, keys)).collect()
    }

    /// Read a table, or an array of tables, below this one; `None` when it is absent. Keys of such a table depend on
    /// one another, so that no table of keys describes them.
    pub fn one_or_more(&mut self, key: &'static str, problems: &mut Problems) -> Option<Vec<Section>> {
        let read = |v: &toml::Value| match v {
            toml::Value::Table(table) => Some(vec![table.clone()]),
            toml::Value::Array(items) => items.iter().map(|v| v.as_table().cloned()).collect(),
            _ => None,
        };
        let name = self.full(key);
        let tables = self.read(key, read, problems)?;
        let many = tables.len() > 1;
        let named = |n: usize| if many { format!("{name}[{n}]") } else { name.clone() };
        Some(tables.into_iter().zip(1..).map(|(table, n)| Section::new(named(n), table, &[])).collect())
    }

    /// Report the keys that nobody asked for as unknown.
    pub fn finish(&mut self, problems: &mut Problems) {
        for key in self.keys.iter().copied().flatten() {
            debug_assert!(
                self.known.contains(&key.name),
                "{}.{} stands in a table and is not read",
                self.name,
                key.name
            );
        }
        for key in std::mem::take(&mut self.table).keys() {
            let distance = |known: &str| strsim::damerau_levenshtein(known, key);
            let near = self.known.iter().filter(|known| distance(known) <= 2).min_by_key(|known| distance(known));
            let hint = match near {
                Some(known) => format!("did you mean {known}?"),
                None if self.known.is_empty() => format!("{} is not in this version", self.name),
                None => format!("write one of {}", self.known.join(", ")),
            };
            problems.add(format!("{}: unknown key; {hint}", self.full(key)));
        }
    }
}
