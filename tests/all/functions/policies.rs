//! Which policy a bucket has, however many entries there are.

use dripd::model::glob::Glob;
use proptest::prelude::*;

use crate::rig::{Case, Server};

fn capacity(case: &mut Case, bucket: &str) -> i64 {
    case.fcall::<Vec<i64>>("drip_peek", &[&format!("queue:{bucket}")], &[] as &[&str])[2]
}

/// A configuration with these globs; the n-th has a capacity of n.
fn with_globs(globs: &[String]) -> String {
    let entries = globs.iter().zip(1..).map(|(glob, n)| {
        format!("[[bucket]]\nmatch = {}\ncapacity = {n}\n", serde_json::to_string(glob).expect("a text"))
    });
    entries.fold("[defaults]\ncapacity = 9999\n".to_owned(), |text, entry| text + &entry)
}

fn glob() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        3 => Just("a".to_owned()), 3 => Just("b".to_owned()), 2 => Just(":".to_owned()), 3 => Just("*".to_owned()),
        1 => Just("?".to_owned()), 1 => Just("[ab]".to_owned()), 1 => Just("[^a]".to_owned()), 1 => Just("\\*".to_owned()),
        1 => Just("%".to_owned()), 1 => Just(".".to_owned()), 1 => Just("[b-z]".to_owned()), 1 => Just("é".to_owned()),
        1 => Just("[]".to_owned()), 1 => Just("-".to_owned()),
    ];
    prop::collection::vec(piece, 1..7).prop_map(|pieces| pieces.concat())
}

fn name() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec!["a", "b", ":", "c", "*", "%", ".", "é", "-"]);
    prop::collection::vec(piece, 1..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// What is found by name, by prefix and by glob is what the first match in the order of the file is, as Redis matches.
    #[test]
    fn the_first_entry_that_matches_as_in_keys_applies(
        globs in prop::collection::vec(glob(), 1..12), names in prop::collection::vec(name(), 1..8)
    ) {
        let mut case = Case::with(&with_globs(&globs));
        for name in names {
            let place = globs.iter().position(|glob| Glob::parse(glob).matches(name.as_bytes()));
            let expect = place.map_or(9999, |place| place as i64 + 1);
            prop_assert_eq!(capacity(&mut case, &name), expect, "{} under {:?}", name, globs);
        }
    }
}

/// What the stars of a glob stand for in a name that it matches, leftmost shortest, the last star the rest: by trying, byte by byte.
fn stars(tokens: &[&str], name: &str) -> Option<Vec<String>> {
    let Some((token, rest)) = tokens.split_first() else { return name.is_empty().then(Vec::new) };
    if *token != "*" {
        let head = name.chars().next()?;
        return Glob::parse(token)
            .matches(head.to_string().as_bytes())
            .then(|| stars(rest, &name[head.len_utf8()..]))?;
    }
    (0..=name.len()).filter(|at| name.is_char_boundary(*at)).find_map(|at| {
        let mut found = stars(rest, &name[at..])?;
        found.insert(0, name[..at].to_owned());
        Some(found)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// A template is filled in with what the stars stand for, however many there are and in whatever order it names them.
    #[test]
    fn a_template_names_the_budget_that_the_stars_make(
        mut tokens in prop::collection::vec(
            prop::sample::select(vec!["*", "*", "a", "b", ":", "%", ".", "-", "?", "[ab]"]), 0..8
        ),
        star_at in 0..8usize,
        order in prop::collection::vec(1..6usize, 1..4),
        names in prop::collection::vec(name().prop_filter("a ? is one byte", |name| name.is_ascii()), 1..6),
        tail in prop::sample::select(vec!["", ":z"]),
    ) {
        tokens.insert(star_at.min(tokens.len()), "*");
        let count = tokens.iter().filter(|token| **token == "*").count();
        let order: Vec<usize> = order.into_iter().map(|n| (n - 1) % count + 1).collect();
        let filled = |with: &dyn Fn(usize) -> String| order.iter().fold("x".to_owned(), |id, n| id + "-" + &with(*n)) + tail;
        let within = filled(&|n| format!("{{{n}}}"));
        // There might be such a budget, but none of these names makes one: the refusal says which one was looked for.
        let mut case = Case::with(&format!(
            "[[budget]]\nmatch = 'x*never{tail}'\nrate = '1/s'\n[[bucket]]\nmatch = '{}'\nwithin = '{within}'\n", tokens.concat()
        ));
        for name in names {
            let pushed = case.try_fcall::<redis::Value>("drip_push", &[&format!("queue:{name}")], &["job"]);
            let found = stars(&tokens, &name);
            let refused = pushed.err().map(|err| err.detail().unwrap_or_default().to_owned());
            let expect = found.map(|found| {
                let budget = filled(&|n| found[n - 1].clone());
                format!("{name} has no budget to leave through: no [[budget]] matches {budget}")
            });
            prop_assert_eq!(refused, expect, "{} by {:?}, within {}", name, tokens, within);
        }
    }
}

/// The microseconds that Redis needs for a call of `drip_peek`, of 300 buckets that nobody has asked for.
fn cost(case: &mut Case, round: usize) -> f64 {
    cost_of(case, (0..300).map(|n| format!("new-{round}-{n}")))
}

/// The same of any buckets.
fn cost_of(case: &mut Case, names: impl ExactSizeIterator<Item = String>) -> f64 {
    let calls = names.len() as f64;
    let _: String = case.cmd(&["CONFIG", "RESETSTAT"]);
    for name in names {
        capacity(case, &name);
    }
    let info: String = case.cmd(&["INFO", "commandstats"]);
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:")).expect("a line");
    let usec = line.split(',').find_map(|part| part.strip_prefix("usec=")).expect("a number");
    usec.parse::<f64>().expect("a number") / calls
}

#[test]
fn what_a_name_begins_and_ends_with_is_found_in_the_order_of_the_file() {
    let (server, other) = (Server::start(&[]), Server::start(&[]));
    let globs = ["sms:*", "*:urgent", "*t", "*:?", "*"].map(str::to_owned);
    let mut case = Case::on(&server, &with_globs(&globs[..4]));
    for (name, place) in
        [("sms:urgent", 1), ("a:urgent", 2), (":urgent", 2), ("urgent", 3), ("t", 3), ("a:b", 4), ("a", 9_999)]
    {
        assert_eq!(capacity(&mut case, name), place, "{name}");
    }
    let mut case = Case::on(&other, &with_globs(&[&globs[4..], &globs[..4]].concat()));
    assert_eq!(capacity(&mut case, "a:urgent"), 1);
}

#[test]
fn ten_thousand_names_and_prefixes_and_a_hundred_globs_make_a_lookup_little_dearer() {
    let mut globs: Vec<String> = (0..5_000).map(|n| format!("tenant-{n}")).collect();
    globs.extend((0..4_900).map(|n| format!("group-{n}:*")));
    globs.extend((0..100).map(|n| format!("*:{n}:?x*y[a-c]*")));
    let (many, none) = (Server::start(&[]), Server::start(&[]));
    let (mut many, mut none) = (Case::on(&many, &with_globs(&globs)), Case::on(&none, ""));
    assert_eq!((capacity(&mut many, "tenant-77"), capacity(&mut many, "group-4000:x")), (78, 9_001));
    assert_eq!(capacity(&mut many, "a:7:zxqqyb"), 9_908);
    capacity(&mut none, "first");
    // A ratio in the same second, with room; beside other load the best of some rounds.
    let rounds = (0..10).map(|round| (cost(&mut many, round), cost(&mut none, round)));
    let best = rounds.map(|(many, none)| (many / none, many)).min_by(|a, b| a.0.total_cmp(&b.0)).expect("some");
    println!("{:.1} times as long, {:.0} us a call", best.0, best.1);
    assert!(best.0 < 12.0, "{best:?}");
}

#[test]
fn a_hundred_globs_that_end_in_a_text_are_not_compared_with_each_name() {
    let globs: Vec<String> = (0..100).map(|n| format!("*:tenant-{n}")).collect();
    let (many, none) = (Server::start(&[]), Server::start(&[]));
    let (mut many, mut none) = (Case::on(&many, &with_globs(&globs)), Case::on(&none, ""));
    assert_eq!((capacity(&mut many, "a:tenant-9"), capacity(&mut many, "a:tenant-99")), (10, 100));
    capacity(&mut none, "first");
    // A ratio in the same second; beside other load the best of some rounds.
    let rounds = (0..10).map(|round| cost(&mut many, round) / cost(&mut none, round));
    let best = rounds.min_by(f64::total_cmp).expect("some");
    println!("{best:.2} times as long");
    assert!(best < 1.5, "{best:.2} times as long");
}

#[test]
fn what_is_remembered_is_never_forgotten_all_at_once() {
    let server = Server::start(&[]);
    // So many classes are compared with each name that its policy is remembered.
    let globs = ["*[v]", "*[w]", "*[x]", "*[y]", "*[z]", "*[7]"]
        .map(|glob| format!("[[bucket]]\nmatch = '{glob}'\ncapacity = 7\n"));
    let mut case = Case::on(&server, &("[defaults]\ncapacity = 1\n".to_owned() + &globs.concat()));
    let mut pipe = redis::pipe();
    for n in 0..230_000 {
        pipe.cmd("FCALL_RO").arg("drip_peek").arg(1).arg(case.queue(&n.to_string())).ignore();
    }
    pipe.exec(&mut case.redis).expect("asked");
    for n in [7, 100_007, 229_997, 229_998] {
        assert_eq!(capacity(&mut case, &n.to_string()), if n % 10 == 7 { 7 } else { 1 });
    }
    let info: String = case.cmd(&["INFO", "memory"]);
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory_vm_functions:"));
    let bytes: u64 = line.and_then(|text| text.trim().parse().ok()).expect("Redis says it");
    assert!(bytes < 64 << 20, "{bytes} bytes of Lua");
}

#[test]
fn who_was_asked_for_lately_is_remembered_though_the_memory_has_just_become_full() {
    let globs: Vec<String> = (0..100).map(|n| format!("*:{n}:?x*y[a-c]*")).collect();
    let server = Server::start(&[]);
    let mut case = Case::on(&server, &with_globs(&globs));
    let mut pipe = redis::pipe();
    for n in 0..100_001 {
        pipe.cmd("FCALL_RO").arg("drip_peek").arg(1).arg(case.queue(&n.to_string())).ignore();
    }
    pipe.exec(&mut case.redis).expect("asked");
    // A ratio in the same second; beside other load the best of some rounds.
    let known = |round: usize| (50_000 + 300 * round..50_300 + 300 * round).map(|n| n.to_string());
    let rounds = (0..10).map(|round| cost_of(&mut case, known(round)) / cost(&mut case, round));
    let best = rounds.min_by(f64::total_cmp).expect("some");
    assert!(best < 0.6, "{best:.2} times as long as for one that nobody has asked for");
}
