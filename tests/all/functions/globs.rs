//! Globs in Rust, beside what a real Redis answers to KEYS.

use dripd::model::glob::Glob;

use crate::rig::{Server, rand_u64};

/// Random numbers from a seed that a failure names.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides
    }

    fn text(&mut self, of: &[char], longest: usize) -> String {
        (0..=self.roll(longest)).map(|_| of[self.roll(of.len())]).collect()
    }
}

#[test]
fn a_glob_means_what_redis_means_by_it_in_keys() {
    let server = Server::start(&[]);
    let mut redis = server.connect();
    let seed = rand_u64() | 1;
    let mut dice = Dice(seed);
    // Few letters, so that much matches; é for bytes that are no ASCII.
    let names: Vec<String> =
        (0..400).map(|_| dice.text(&['a', 'b', 'c', ':', 'é', '*', ']', '-', '\\', '^'], 6)).collect();
    for name in &names {
        redis::cmd("SET").arg(name).arg("").exec(&mut redis).expect("SET");
    }
    let mut names = names;
    names.sort();
    names.dedup();
    let special = ['a', 'b', 'c', ':', 'é', '*', '*', '?', '[', ']', '-', '\\', '^'];
    let written = [
        "[", "[^", "[^]", "[]a]", "[a", "[a-", "[a-]", "[a-]x", "[c-a]", "[\\]]", "[\\", "[\\-a]", "\\", "a\\", "\\*",
        "**", "*?*", "[é]?",
    ];
    let random = (0..3_000).map(|_| dice.text(&special, 7)).filter(|glob| !crosses(glob)).collect::<Vec<_>>();
    let mut hits = 0;
    for glob in written.into_iter().map(str::to_owned).chain(random) {
        let mut theirs: Vec<String> = redis::cmd("KEYS").arg(&glob).query(&mut redis).expect("KEYS");
        theirs.sort();
        let parsed = Glob::parse(&glob);
        let ours: Vec<String> = names.iter().filter(|name| parsed.matches(name.as_bytes())).cloned().collect();
        assert_eq!(ours, theirs, "{glob:?}, seed {seed}: {parsed:?}");
        hits += ours.len();
    }
    assert!(hits > 1_000, "the globs mean something: {hits} hits, seed {seed}");
}

/// Whether a class may hold a range from an ASCII byte to a higher one, which Redis compares as signed numbers.
fn crosses(glob: &str) -> bool {
    glob.as_bytes().windows(3).any(|three| three[1] == b'-' && three[0].is_ascii() != three[2].is_ascii())
}

#[test]
fn a_glob_that_goes_back_often_is_still_quick() {
    let glob = Glob::parse(&"a*".repeat(60));
    let name = "a".repeat(198) + "b";
    assert!(glob.matches(name.as_bytes()));
    let never = Glob::parse(&("a*".repeat(60) + "c"));
    assert!(!never.matches(name.as_bytes()), "and it ends");
}
