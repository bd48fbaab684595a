//! Globs: which bucket names an entry applies to. They are read as Redis reads a pattern of `KEYS`, on bytes: `*` any
//! bytes, `?` any one byte, `[a-z]` one of a class, `[^a]` one that is not in it, and `\` takes the next byte
//! literally.
//!
//! Only this module tells names and plain prefixes from other globs. Names and prefixes are looked up in a table,
//! however many there are; other globs are tried one after the other.
//!
//! One difference from Redis: a class such as `[a-\xff]` compares unsigned bytes here, as in the functions. Redis
//! 7.0.15 compares C's `char`, which is signed on x86-64, so a range from an ASCII byte to a higher one has another
//! meaning on each machine.

use std::collections::HashMap;
use std::fmt;

/// The kind of a glob, which decides how the entry of a name is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// An exact name: looked up in a map.
    Name(&'a str),
    /// Every name with this beginning, as in `sms:*`: looked up by prefix. `*` alone has the empty beginning.
    Prefix(&'a str),
    /// Any other glob: tried one after the other.
    Pattern,
}

impl<'a> Kind<'a> {
    /// Tell the kind of a glob.
    pub fn of(glob: &'a str) -> Self {
        let (plain, is_open) = glob.strip_suffix('*').map_or((glob, false), |plain| (plain, true));
        match (plain.contains(['*', '?', '[', '\\']), is_open) {
            (true, _) => Self::Pattern,
            (false, true) => Self::Prefix(plain),
            (false, false) => Self::Name(plain),
        }
    }
}

/// Whether a text is a glob, where a plain name is allowed as well: it has a special character.
pub fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

/// Whether a glob contains a literal byte. A glob without one, such as `*`, `??` or `[a-z]*`, may match every bucket,
/// or a large part of them.
pub fn has_plain_byte(glob: &str) -> bool {
    Glob::parse(glob).tokens.iter().any(|token| matches!(token, Token::Byte(_)))
}

/// The entries of a list that are never used, because the first match wins: each as its index and the index of the
/// first entry that hides it. An entry is hidden if an earlier one certainly matches every name that it matches: the
/// same text, a plain prefix of it, or, for an exact name, a glob that matches it. Two globs that mean the same in
/// different words are not detected.
pub fn hidden(globs: &[&str]) -> Vec<(usize, usize)> {
    let mut earlier = Table::default();
    let mut hidden = Vec::new();
    for (at, glob) in globs.iter().enumerate() {
        hidden.extend(earlier.covering(glob).map(|by| (at, by)));
        earlier.add(glob, at);
    }
    hidden
}

/// Globs with their positions, indexed so that comparing ten thousand entries stays fast.
#[derive(Default)]
pub struct Table<'a> {
    texts: HashMap<&'a str, usize>,
    prefixes: HashMap<&'a [u8], usize>,
    patterns: Vec<(Glob, usize)>,
}

impl<'a> Table<'a> {
    /// Add a glob with its position. Of equal globs the first position stays.
    pub fn add(&mut self, glob: &'a str, at: usize) {
        self.texts.entry(glob).or_insert(at);
        match Kind::of(glob) {
            Kind::Name(_) => {}
            Kind::Prefix(beginning) => _ = self.prefixes.entry(beginning.as_bytes()).or_insert(at),
            Kind::Pattern => self.patterns.push((Glob::parse(glob), at)),
        }
    }

    /// The lowest position whose glob certainly matches every name that `glob` matches. For an exact name it is the
    /// first position that matches the name; two globs that mean the same in different words are not detected.
    pub fn covering(&self, glob: &str) -> Option<usize> {
        let parsed = Glob::parse(glob);
        let beginning = parsed.plain_beginning();
        let is_name = beginning.len() == parsed.tokens.len();
        let same = self.texts.get(glob).copied();
        let name = if is_name { std::str::from_utf8(&beginning).ok().and_then(|name| self.name(name)) } else { None };
        let prefix = (0..=beginning.len()).filter_map(|n| self.prefixes.get(&beginning[..n]).copied()).min();
        let pattern = self.patterns.iter().find(|(pattern, _)| is_name && pattern.matches(&beginning));
        [same, name, prefix, pattern.map(|(_, at)| *at)].into_iter().flatten().min()
    }

    /// The position of an exact name that was added as itself.
    fn name(&self, name: &str) -> Option<usize> {
        let is_itself = Kind::of(name) == Kind::Name(name);
        if is_itself { self.texts.get(name).copied() } else { None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// Exactly this byte.
    Byte(u8),
    /// Any one byte.
    Any,
    /// Any number of bytes, also none.
    Many,
    /// One byte of a set, a bit each.
    Class([u64; 4]),
}

impl Token {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Self::Byte(own) => *own == byte,
            Self::Any => true,
            Self::Many => false,
            Self::Class(set) => set[usize::from(byte / 64)] >> (byte % 64) & 1 == 1,
        }
    }

    /// Whether the token matches any byte as one byte: `*` and an empty class do not.
    fn takes_some(&self) -> bool {
        matches!(self, Self::Byte(_) | Self::Any) || (0..=u8::MAX).any(|byte| self.takes(byte))
    }

    /// Whether some byte matches both tokens.
    fn shares_a_byte(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Byte(byte), other) | (other, Self::Byte(byte)) => other.takes(*byte),
            _ => (0..=u8::MAX).any(|byte| self.takes(byte) && other.takes(byte)),
        }
    }
}

/// A parsed glob, ready to be compared with names.
#[derive(Clone, PartialEq, Eq)]
pub struct Glob {
    tokens: Vec<Token>,
    /// How many bytes a name must have at least: one for each token but `*`.
    needs: usize,
}

impl Glob {
    /// Parse a glob. Every text is valid: a class that is not closed ends with the glob, and a `\` at the very end
    /// means itself.
    pub fn parse(glob: &str) -> Self {
        let mut rest = glob.as_bytes();
        let mut tokens = Vec::new();
        while let Some((&byte, behind)) = rest.split_first() {
            rest = behind;
            let token = match byte {
                b'*' if tokens.last() == Some(&Token::Many) => continue,
                b'*' => Token::Many,
                b'?' => Token::Any,
                b'[' => class(&mut rest),
                b'\\' => Token::Byte(rest.split_off_first().copied().unwrap_or(b'\\')),
                plain => Token::Byte(plain),
            };
            tokens.push(token);
        }
        let needs = tokens.iter().filter(|token| **token != Token::Many).count();
        Self { tokens, needs }
    }

    /// The only name that the glob matches, where no byte of it is special: `\` makes bytes plain.
    pub(super) fn only_name(&self) -> Option<String> {
        let name = self.plain_beginning();
        if name.len() == self.tokens.len() { String::from_utf8(name).ok() } else { None }
    }

    /// The literal bytes with which every match begins.
    fn plain_beginning(&self) -> Vec<u8> {
        let byte = |token: &Token| if let Token::Byte(byte) = token { Some(*byte) } else { None };
        self.tokens.iter().map_while(byte).collect()
    }

    /// Whether `name` matches. The search goes back only to the last `*`, and a glob that needs more bytes than the name
    /// has is not compared: so the steps are at most a quarter of the square of the length of the name, whatever the
    /// glob is.
    pub fn matches(&self, name: &[u8]) -> bool {
        let tokens = &self.tokens;
        if self.needs > name.len() {
            return false;
        }
        let (mut token, mut at, mut back) = (0, 0, None);
        while at < name.len() {
            match tokens.get(token) {
                Some(Token::Many) => {
                    back = Some((token, at));
                    token += 1;
                }
                Some(one) if one.takes(name[at]) => (token, at) = (token + 1, at + 1),
                _ => {
                    let Some((star, from)) = back else { return false };
                    back = Some((star, from + 1));
                    (token, at) = (star + 1, from + 1);
                }
            }
        }
        tokens[token..].iter().all(|token| *token == Token::Many)
    }
}

/// A state of the search in `meets`: how many tokens of each glob are matched already.
type Step = (usize, usize);

impl Glob {
    /// The number of `*` that are wildcards. Both of `**` count.
    pub fn stars(glob: &str) -> usize {
        let (mut rest, mut stars) = (glob.as_bytes(), 0);
        while let Some((&byte, behind)) = rest.split_first() {
            rest = behind;
            match byte {
                b'*' => stars += 1,
                b'[' => _ = class(&mut rest),
                b'\\' => _ = rest.split_off_first(),
                _ => {}
            }
        }
        stars
    }

    /// Whether some name matches both globs. The answer is exact: both are walked at once, and each pair of positions
    /// is visited at most once.
    pub fn meets(&self, other: &Self) -> bool {
        let (a, b) = (&self.tokens, &other.tokens);
        let width = b.len() + 1;
        let (mut seen, mut open) = (vec![false; (a.len() + 1) * width], vec![(0, 0)]);
        while let Some((i, j)) = open.pop() {
            if i == a.len() && j == b.len() {
                return true;
            }
            let mut go = |(i, j): Step| {
                if !std::mem::replace(&mut seen[i * width + j], true) {
                    open.push((i, j));
                }
            };
            let (one, two) = (a.get(i), b.get(j));
            if one == Some(&Token::Many) {
                go((i + 1, j)); // the `*` matches no further byte
            }
            if two == Some(&Token::Many) {
                go((i, j + 1));
            }
            match (one, two) {
                (Some(Token::Many), Some(two)) if two.takes_some() => go((i, j + 1)), // the `*` takes this byte
                (Some(one), Some(Token::Many)) if one.takes_some() => go((i + 1, j)),
                (Some(one), Some(two)) if one.shares_a_byte(two) => go((i + 1, j + 1)),
                _ => {}
            }
        }
        false
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.tokens).finish()
    }
}

/// Parse a class after its `[`, up to its `]` or the end of the glob. `rest` then begins behind it.
fn class(rest: &mut &[u8]) -> Token {
    let negated = rest.first() == Some(&b'^');
    if negated {
        rest.split_off_first();
    }
    let mut set = [0_u64; 4];
    loop {
        let (range, taken) = match **rest {
            [b'\\', next, ..] => ((next, next), 2),
            [b']', ..] => break *rest = &rest[1..],
            [] => break,
            [from, b'-', to, ..] => ((from.min(to), from.max(to)), 3),
            [one, ..] => ((one, one), 1),
        };
        for byte in range.0..=range.1 {
            set[usize::from(byte / 64)] |= 1 << (byte % 64);
        }
        *rest = &rest[taken..];
    }
    Token::Class(if negated { set.map(|bits| !bits) } else { set })
}

/// The glob that matches a name and nothing else.
pub fn of_name(name: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '[' | '\\');
    name.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_plain_prefixes_are_told_apart_from_other_globs() {
        for (glob, kind) in [
            ("acme", Kind::Name("acme")),
            ("sms:*", Kind::Prefix("sms:")),
            ("*", Kind::Prefix("")),
            ("", Kind::Name("")),
            ("a]b", Kind::Name("a]b")),
            ("a-^b*", Kind::Prefix("a-^b")),
            ("sms:**", Kind::Pattern),
            ("*:urgent", Kind::Pattern),
            ("a?", Kind::Pattern),
            ("[ab]", Kind::Pattern),
            ("a\\*", Kind::Pattern),
            ("a\\", Kind::Pattern),
        ] {
            assert_eq!(Kind::of(glob), kind, "{glob}");
        }
    }

    #[test]
    fn the_glob_of_a_name_matches_it_and_nothing_else() {
        for name in ["acme", "a*b", "a?[x]", r"a\*", "*", "Zürich"] {
            let glob = Glob::parse(&of_name(name));
            assert!(glob.matches(name.as_bytes()), "{name}");
            assert!(!glob.matches(b"abx") && !glob.matches(b"axb") && !glob.matches(b"x"), "{name}");
        }
        assert_eq!(of_name(r"a*[\"), r"a\*\[\\");
    }

    #[test]
    fn the_worst_glob_is_compared_in_bounded_steps() {
        let name = "a".repeat(200);
        let worst = [
            format!("*{}b*", "[a-z]".repeat(99)),
            format!("*{}b*", "?".repeat(99)),
            format!("{}b", "a*".repeat(99)),
            format!("*[{}]*", "b-c".repeat(300)),
            "[a-z]".repeat(200),
        ];
        // A floor from the same second: the bytes of the name, compared one by one as often as a square allows.
        let square = || {
            let name = std::hint::black_box(name.as_bytes());
            (0..100).map(|at| name[at..at + 100].iter().filter(|byte| byte.is_ascii_lowercase()).count()).sum::<usize>()
        };
        for glob in worst {
            let parsed = Glob::parse(&glob);
            let best = |run: &dyn Fn() -> usize| {
                let time = |_| {
                    let since = std::time::Instant::now();
                    (0..20).for_each(|_| _ = std::hint::black_box(run()));
                    since.elapsed()
                };
                (0..20).map(time).min().expect("some")
            };
            let (floor, took) = (best(&square), best(&|| usize::from(parsed.matches(name.as_bytes()))));
            assert!(took < 40 * floor, "{glob}: {took:?}, and the floor is {floor:?}");
        }
    }

    /// All texts made of at most `most` of the pieces.
    fn texts(pieces: &[&str], most: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut from = 0;
        for _ in 0..most {
            let longer: Vec<_> =
                all[from..].iter().flat_map(|text| pieces.iter().map(move |piece| format!("{text}{piece}"))).collect();
            from = all.len();
            all.extend(longer);
        }
        all
    }

    #[test]
    fn two_globs_meet_where_there_is_a_name_that_both_mean() {
        // With three pieces each, the shortest name that both match has at most six bytes; `c` stands for every byte
        // that no glob names.
        let (globs, names) = (texts(&["a", "b", "?", "*", "[ab]", "[^a]", "[]"], 3), texts(&["a", "b", "c"], 6));
        let read: Vec<_> = globs.iter().map(|glob| Glob::parse(glob)).collect();
        let meant = |glob: &Glob| -> Vec<u64> {
            let bits = |names: &[String]| {
                names.iter().rev().fold(0, |bits, name| bits << 1 | u64::from(glob.matches(name.as_bytes())))
            };
            names.chunks(64).map(bits).collect()
        };
        let meant: Vec<_> = read.iter().map(meant).collect();
        let mut met = 0;
        for (i, one) in read.iter().enumerate() {
            for (j, two) in read.iter().enumerate() {
                let is_shared = meant[i].iter().zip(&meant[j]).any(|(a, b)| a & b != 0);
                assert_eq!(one.meets(two), is_shared, "{:?} {:?}", globs[i], globs[j]);
                met += usize::from(is_shared);
            }
        }
        assert!(met > 10_000 && met < globs.len().pow(2) - 10_000, "{met} of {}", globs.len().pow(2));
    }

    #[test]
    fn stars_are_counted_where_they_are_special() {
        for (glob, stars) in
            [("", 0), ("a*", 1), ("*:*", 2), ("**", 2), (r"\**", 1), ("[*]*", 1), (r"[\]*]*", 1), ("[*", 0), ("a\\", 0)]
        {
            assert_eq!(Glob::stars(glob), stars, "{glob}");
        }
    }

    #[test]
    fn an_entry_is_hidden_by_an_earlier_one_that_means_all_of_it() {
        for (earlier, later) in [
            ("a", "a"),
            ("a?c", "a?c"),
            ("*", "a"),
            ("*", "a*"),
            ("*", "[ab]?"),
            ("sms:*", "sms:ch:*"),
            ("sms:*", "sms:ch"),
            ("sms:*", "sms:"),
            ("sms:*", "sms:*"),
            ("sms:*", "sms:?:x"),
            ("*:urgent", "mail:urgent"),
            ("[a-c]x", "bx"),
            ("s\\:x", "s:x"),
            ("s:x", "s\\:x"),
            ("[*]x", "\\*x"),
        ] {
            assert_eq!(hidden(&[earlier, later]), [(1, 0)], "{earlier} {later}");
        }
        for (earlier, later) in [
            ("sms:ch:*", "sms:*"),
            ("sms:ch", "sms:*"),
            ("sms:*", "sms"),
            ("sms:*", "?ms:x"),
            ("*:urgent", "mail:*"),
            ("a", "a?"),
            ("s\\*", "s*"),
            ("[ab]*", "a*"), // `a*` is hidden, but that is not detected
        ] {
            assert_eq!(hidden(&[earlier, later]), [], "{earlier} {later}");
        }
        assert_eq!(hidden(&["b", "?", "a", "*", "*c"]), [(2, 1), (4, 3)], "the first that hides it is named");
    }
}
