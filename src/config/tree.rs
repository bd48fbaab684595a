//! The tree that `within` makes of buckets and budgets, and the errors in it that occur whatever the names turn out to
//! be. A `{n}` counts as `*` here, so an entry may lie below several budgets; it is wrong only if it would be wrong
//! below each of them. The functions find the remaining errors when they look for the budgets of a name.

use std::collections::{HashMap, VecDeque};

use super::section::Problems;
use crate::model::glob::{Glob, Table};
use crate::model::node::{Budget, Node};
use crate::model::parent::Parent;
use crate::model::partitioning::Partitioning;
use crate::model::policy::{Matched, Policy, Record};
use crate::model::rate::Rate;

/// The most levels of a tree, including the bucket.
const MAX_LEVELS: usize = 4;

/// The largest edit distance at which a budget is suggested for a name that no budget has.
const NEAR: usize = 2;

/// The most budgets among which such a suggestion is looked for.
const MAX_EXAMINED: usize = 1_000;

/// The entries of `[[budget]]`, and the entries that each `within` may mean.
struct Tree<'a> {
    budgets: &'a [Matched<Budget>],
    globs: Vec<Glob>,
    table: Table<'a>,
    known: HashMap<Parent, Vec<usize>>,
}

/// The budgets above an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Above {
    /// No budget: the entry is a root.
    Nothing,
    /// An invalid parent, which is reported already.
    Wrong,
    /// One of these entries of `[[budget]]`, by index.
    Budgets(Vec<usize>),
}

impl<'a> Tree<'a> {
    fn of(budgets: &'a [Matched<Budget>]) -> Self {
        let mut table = Table::default();
        for (at, entry) in budgets.iter().enumerate() {
            table.add(&entry.glob, at);
        }
        let globs = budgets.iter().map(|entry| Glob::parse(&entry.glob)).collect();
        Self { budgets, globs, table, known: HashMap::new() }
    }

    /// The entries that a parent may mean, by index: those that can match it, up to the first one that certainly
    /// matches it.
    fn meant_by(&mut self, parent: &Parent) -> Vec<usize> {
        let (globs, table) = (&self.globs, &self.table);
        let find = || {
            let text = parent.glob();
            let (glob, surely) = (Glob::parse(&text), table.covering(&text));
            if parent.highest() == 0 {
                return surely.into_iter().collect(); // of a name the first match is known
            }
            let most = surely.map_or(globs.len(), |at| at + 1);
            (0..most).filter(|at| glob.meets(&globs[*at])).collect::<Vec<_>>()
        };
        self.known.entry(parent.clone()).or_insert_with(find).clone()
    }

    /// The budgets above an entry; an invalid parent is reported. `glob` is the entry's `match`, none for `[defaults]`.
    fn above(&mut self, name: &str, glob: Option<&str>, node: &Node, problems: &mut Problems) -> Above {
        let Some(parent) = &node.within else { return Above::Nothing };
        if let Some(why) = stars_missing(parent, glob) {
            problems.add(format!("{name}.within: {why}"));
            return Above::Wrong;
        }
        let budgets = self.meant_by(parent);
        if budgets.is_empty() {
            problems.add(format!("{name}.within: {}", self.no_budget(parent)));
            return Above::Wrong;
        }
        Above::Budgets(budgets)
    }

    fn no_budget(&self, parent: &Parent) -> String {
        if parent.highest() > 0 {
            return format!(
                "{:?} names no budget: whatever stands for {{{}}}, no [[budget]] entry matches it; add one that does",
                parent.as_str(),
                parent.highest()
            );
        }
        let distance = |entry: &&Matched<Budget>| strsim::damerau_levenshtein(&entry.glob, parent.as_str());
        let near = self.budgets.iter().take(MAX_EXAMINED).min_by_key(distance).filter(|entry| distance(entry) <= NEAR);
        let way = near.map_or_else(|| "add one for it".to_owned(), |entry| format!("did you mean {:?}?", entry.glob));
        format!("{:?} names no budget: no [[budget]] entry matches it; {way}", parent.as_str())
    }

    /// The globs of some entries as a path upwards: `"c" in "b" in "a"`.
    fn way(&self, entries: &[usize]) -> String {
        let globs = entries.iter().map(|at| format!("{:?}", self.budgets[*at].glob));
        globs.collect::<Vec<_>>().join(" in ")
    }

    /// The `within` of a budget, for a sentence about it.
    fn within(&self, at: usize) -> String {
        let parent = self.budgets[at].policy.node.within.as_ref();
        format!("budget[{}].within: {:?}", at + 1, parent.map_or("", Parent::as_str))
    }
}

/// The problem of a parent with a `{n}` that stands for nothing; `None` if it has none. `glob` is the `match` of its
/// entry, or the pattern of a change.
pub(super) fn stars_missing(parent: &Parent, glob: Option<&str>) -> Option<String> {
    let (needed, text) = (parent.highest(), parent.as_str());
    let stars = glob.map_or(0, Glob::stars);
    if needed <= stars {
        return None;
    }
    Some(match (glob, stars) {
        (None, _) => format!(
            "{text:?} has {{{needed}}}, which stands for a * of match, and there is no match here; write a name"
        ),
        (Some(glob), 0) => format!("{text:?} has {{{needed}}}, but {glob:?} has no *; write a name"),
        (Some(glob), 1) => format!("{text:?} has {{{needed}}}, but {glob:?} has only one *; write {{1}}"),
        (Some(glob), n) => format!("{text:?} has {{{needed}}}, but {glob:?} has only {n} *; write {{1}} to {{{n}}}"),
    })
}

/// The number of budgets on the shortest path up from each entry, itself included; `None`: no path of it ends.
fn depths(above: &[Above]) -> Vec<Option<usize>> {
    let mut below = vec![Vec::new(); above.len()];
    for (at, budgets) in above.iter().enumerate() {
        let Above::Budgets(budgets) = budgets else { continue };
        for up in budgets {
            below[*up].push(at);
        }
    }
    let mut depths: Vec<_> = above.iter().map(|above| (*above == Above::Nothing).then_some(1)).collect();
    let mut open: VecDeque<_> = (0..above.len()).filter(|at| depths[*at].is_some()).collect();
    while let Some(at) = open.pop_front() {
        for child in &below[at] {
            if depths[*child].is_none() {
                depths[*child] = depths[at].map(|depth| depth + 1);
                open.push_back(*child);
            }
        }
    }
    depths
}

/// Report everything that is wrong with the tree, each at the entry that causes it.
pub(super) fn check(record: &Record, problems: &mut Problems) {
    let mut tree = Tree::of(&record.budgets);
    let name = |kind: &str, at: usize| format!("{kind}[{}]", at + 1);
    let entries = record.budgets.iter().enumerate();
    let above: Vec<_> = entries
        .map(|(at, entry)| tree.above(&name("budget", at), Some(&entry.glob), &entry.policy.node, problems))
        .collect();
    let depths = depths(&above);
    for circle in circles(&above, &depths) {
        let first = circle[0];
        let way = tree.way(&[&circle[..], &[first]].concat());
        problems.add(format!("{} closes a circle: {way}; one of them must be within nothing", tree.within(first)));
    }
    // A bucket takes one level. Entries that are deeper still are so because of one of these, and are not reported.
    for at in (0..above.len()).filter(|at| depths[*at] == Some(MAX_LEVELS)) {
        let way = tree.way(&chain(at, &above, &depths));
        problems.add(format!(
            "{} is too deep: {way} leaves no level for a bucket; a tree has at most {MAX_LEVELS} levels with the bucket",
            tree.within(at)
        ));
    }
    // Circles and depth concern budgets alone. For a bucket only its parent is checked.
    let defaults = &record.defaults.node;
    tree.above("defaults", None, defaults, problems);
    for (at, entry) in
        record.buckets.iter().enumerate().filter(|(_, entry)| entry.policy.node.within != defaults.within)
    {
        tree.above(&name("bucket", at), Some(&entry.glob), &entry.policy.node, problems);
    }
}

/// Report entries that certainly live in another partition than their budget: a bucket and all budgets above it live in
/// one.
pub(super) fn check_partitions(record: &Record, problems: &mut Problems) {
    let partitioning = record.partitioning;
    if partitioning.is_single() {
        return;
    }
    let mut look = |name: String, glob: &str, node: &Node| {
        let Some(parent) = &node.within else { return };
        if partitioning.by == 0 {
            problems.add(format!(
                "{name}.within: with redis.partitions it needs redis.partition_by, for a bucket and its budgets live in one partition: \
                 write how many parts of their names, split at :, they share"
            ));
        } else if lives_elsewhere(partitioning, glob, parent.as_str()) {
            problems.add(format!(
                "{name}.within: {:?} lives in another partition than what {glob:?} matches: with redis.partition_by = {} the first {} of \
                 both names must be the same",
                parent.as_str(),
                partitioning.by,
                if partitioning.by == 1 { "part".to_owned() } else { format!("{} parts", partitioning.by) }
            ));
        }
    };
    for (at, entry) in record.budgets.iter().enumerate() {
        look(format!("budget[{}]", at + 1), &entry.glob, &entry.policy.node);
    }
    let defaults = &record.defaults.node;
    look("defaults".to_owned(), "*", defaults);
    let others = record.buckets.iter().enumerate().filter(|(_, entry)| entry.policy.node.within != defaults.within);
    for (at, entry) in others {
        look(format!("bucket[{}]", at + 1), &entry.glob, &entry.policy.node);
    }
}

/// Whether no name that a glob matches can have the tag of a parent, as far as the literal beginnings of both tell.
fn lives_elsewhere(partitioning: Partitioning, glob: &str, parent: &str) -> bool {
    // The tag, and whether it is whole: where an unknown part follows, only its beginning is known.
    let tag = |text: &str, opens: &[char]| {
        let known = &text[..text.find(opens).unwrap_or(text.len())];
        let is_whole = known.len() == text.len() || known.matches(':').count() >= usize::from(partitioning.by);
        (if is_whole { partitioning.tag(known).to_owned() } else { known.to_owned() }, is_whole)
    };
    match (tag(glob, &['*', '?', '[', '\\']), tag(parent, &['{'])) {
        ((a, true), (b, true)) => a != b,
        ((whole, true), (begins, false)) | ((begins, false), (whole, true)) => !whole.starts_with(&begins),
        ((a, false), (b, false)) => !a.starts_with(&b) && !b.starts_with(&a),
    }
}

/// The circles of entries that no path leads out of, except those that end at something that is reported anyway.
fn circles(above: &[Above], depths: &[Option<usize>]) -> Vec<Vec<usize>> {
    let up = |at: usize| match &above[at] {
        Above::Budgets(budgets) if depths[at].is_none() => budgets.first().copied(),
        _ => None,
    };
    let (mut seen, mut circles) = (vec![false; above.len()], Vec::new());
    for start in 0..above.len() {
        let (mut way, mut at) = (Vec::new(), Some(start));
        while let Some(here) = at.filter(|here| !seen[*here]) {
            seen[here] = true;
            way.push(here);
            at = up(here);
        }
        let begins = at.and_then(|at| way.iter().position(|one| *one == at));
        if let Some(begins) = begins {
            let mut circle = way.split_off(begins);
            let first = circle.iter().enumerate().min_by_key(|(_, at)| **at).map_or(0, |(place, _)| place);
            circle.rotate_left(first);
            circles.push(circle);
        }
    }
    circles
}

/// A shortest path from an entry up to its root.
fn chain(at: usize, above: &[Above], depths: &[Option<usize>]) -> Vec<usize> {
    let mut way = vec![at];
    while let Above::Budgets(budgets) = &above[*way.last().expect("it begins with one")] {
        let nearest = budgets.iter().filter(|up| depths[**up].is_some()).min_by_key(|up| depths[**up]);
        let Some(nearest) = nearest else { break };
        way.push(*nearest);
    }
    way
}

/// The warnings about buckets whose jobs may cost less than a budget that counts their cost lets out in a minute, where nobody wrote that.
pub(super) fn cost_warnings(record: &Record) -> Vec<String> {
    let mut tree = Tree::of(&record.budgets);
    let named =
        record.buckets.iter().zip(1..).map(|(entry, n)| (format!("bucket[{n}] {:?}", entry.glob), &entry.policy));
    let warned = [("defaults".to_owned(), &record.defaults)].into_iter().chain(named).filter_map(|(name, policy)| {
        let parent = policy.node.within.as_ref().filter(|_| policy.cost_max.is_none())?;
        let budget = &record.budgets[*tree.meant_by(parent).first()?];
        let (rate, _) = budget.policy.rate.zip(budget.policy.node.job_rate)?;
        let limit = policy.cost_limit();
        (limit < Policy::COST_MOST && rate.per_second() > policy.rate.per_second()).then(|| {
            format!(
                "{name}: a job may cost {limit} at most, what its rate, {}, lets out in a minute; budget {:?} counts {rate} beside its \
                 job_rate: set cost_max where jobs cost more",
                policy.rate, budget.glob
            )
        })
    });
    warned.collect()
}

/// The warnings about rates that can never be reached, because each budget that may be above has a lower one.
pub(super) fn warnings(record: &Record) -> Vec<String> {
    let (mut tree, mut found) = (Tree::of(&record.budgets), Vec::new());
    let mut look = |name: String, node: &Node, rate: Rate| {
        let Some(parent) = &node.within else { return };
        let above = tree.meant_by(parent);
        let slower =
            |at: &usize| record.budgets[*at].policy.rate.filter(|above| above.per_second() < rate.per_second());
        let (Some(first), true) = (above.first(), above.iter().all(|at| slower(at).is_some())) else { return };
        let (Some(limit), glob) = (slower(first), &record.budgets[*first].glob) else { return };
        found.push(format!(
            "{name}: its rate, {rate}, is above that of budget[{}] {glob:?}, {limit}: it never gets more than that",
            first + 1
        ));
    };
    for (at, entry) in record.budgets.iter().enumerate() {
        if let Some(rate) = entry.policy.rate {
            look(format!("budget[{}] {:?}", at + 1, entry.glob), &entry.policy.node, rate);
        }
    }
    let defaults = &record.defaults;
    look("defaults".to_owned(), &defaults.node, defaults.rate);
    for (at, entry) in record.buckets.iter().enumerate() {
        let policy = &entry.policy;
        if (policy.rate, &policy.node.within) != (defaults.rate, &defaults.node.within) {
            look(format!("bucket[{}] {:?}", at + 1, entry.glob), &policy.node, policy.rate);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Environment};

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Some("config.toml".into()), &Environment::default()).map_err(|why| why.to_string())
    }

    /// The text of a configuration with budgets and buckets, each a match and a within, all with the same rate.
    fn text(budgets: &[(&str, &str)], buckets: &[(&str, &str)]) -> String {
        let entry = |kind: &str, (glob, within): &(&str, &str)| {
            format!("[[{kind}]]\nmatch = {glob:?}\nwithin = {within:?}\nrate = '10/s'\n")
        };
        let budgets = budgets.iter().map(|one| entry("budget", one));
        budgets.chain(buckets.iter().map(|one| entry("bucket", one))).collect()
    }

    fn problems(budgets: &[(&str, &str)], buckets: &[(&str, &str)]) -> Vec<String> {
        let Err(shown) = parse(&text(budgets, buckets)) else { return Vec::new() };
        shown.lines().skip(1).map(|line| line.trim_start().to_owned()).collect()
    }

    #[test]
    fn a_tree_of_four_levels_with_names_and_templates_is_good() {
        let budgets = [("twilio", ""), ("twilio:*", "twilio"), ("twilio:*:*", "twilio:{1}")];
        // With `{1}` of the third entry read as `*`, which may hold a colon, the entry could lie below itself; the
        // second one shows that it need not.
        assert_eq!(problems(&budgets, &[("twilio:*:*:*", "twilio:{1}:{2}"), ("plain", "")]), [""; 0]);
        assert_eq!(problems(&[("*", "root"), ("root", "")], &[]).len(), 1, "the first that matches counts");
        assert_eq!(problems(&[("root", ""), ("*", "root")], &[("x", "anything")]), [""; 0]);
        assert_eq!(problems(&[("[ab]x", "")], &[("*:*", "{2}x"), ("*", "?x")]).len(), 1, "a ? of a name is itself");
    }

    #[test]
    fn a_parent_that_no_budget_can_be_is_named() {
        let budgets = [("twilio", ""), ("twilio:*", "twilo"), ("[x-z]?", "")];
        let buckets = [("a:*", "{1}:acme"), ("b", "mail"), ("c:*", "q{1}"), ("d:*", "x{1}"), ("e", "xx"), ("f", "xxx")];
        assert_eq!(
            problems(&budgets, &buckets),
            [
                "budget[2].within: \"twilo\" names no budget: no [[budget]] entry matches it; did you mean \"twilio\"?",
                "bucket[2].within: \"mail\" names no budget: no [[budget]] entry matches it; add one for it",
                "bucket[3].within: \"q{1}\" names no budget: whatever stands for {1}, no [[budget]] entry matches it; add one that does",
                "bucket[6].within: \"xxx\" names no budget: no [[budget]] entry matches it; add one for it",
            ]
        );
    }

    #[test]
    fn an_n_that_match_does_not_have_is_named() {
        let budgets = [("a", ""), ("b:*", "{2}")];
        let buckets = [("c", "a{1}"), ("d:**", "{2}a"), ("e:*[*]*", "a{3}"), (r"f\*", "a{1}")];
        assert_eq!(
            problems(&budgets, &buckets),
            [
                "budget[2].within: \"{2}\" has {2}, but \"b:*\" has only one *; write {1}",
                "bucket[1].within: \"a{1}\" has {1}, but \"c\" has no *; write a name",
                "bucket[3].within: \"a{3}\" has {3}, but \"e:*[*]*\" has only 2 *; write {1} to {2}",
                "bucket[4].within: \"a{1}\" has {1}, but \"f\\\\*\" has no *; write a name",
            ]
        );
        let shown =
            parse("[[budget]]\nmatch = 'a'\nrate = '1/s'\n[defaults]\nwithin = '{1}'\n[[bucket]]\nmatch = 'x:*'\n");
        let expected = "config.toml: 1 problem\n  defaults.within: \"{1}\" has {1}, which stands for a * of match, and there is no match \
                        here; write a name";
        assert_eq!(shown.err().as_deref(), Some(expected));
    }

    #[test]
    fn a_circle_is_named_once_with_its_way() {
        let budgets =
            [("x", "c"), ("a", "b"), ("b", "c"), ("c", "a"), ("self", "self"), ("p:*", "q:{1}"), ("q:*", "p:{1}")];
        assert_eq!(
            problems(&budgets, &[("y", "x"), ("z", "a"), ("w:*", "p:{1}")]),
            [
                "budget[2].within: \"b\" closes a circle: \"a\" in \"b\" in \"c\" in \"a\"; one of them must be within nothing",
                "budget[5].within: \"self\" closes a circle: \"self\" in \"self\"; one of them must be within nothing",
                "budget[6].within: \"q:{1}\" closes a circle: \"p:*\" in \"q:*\" in \"p:*\"; one of them must be within nothing",
            ]
        );
        // A circle that may lead out is no error: that depends on the name.
        assert_eq!(problems(&[("o:*:*", "o:{1}"), ("o:*", "")], &[]), [""; 0]);
        assert_eq!(problems(&[("o:*:*", "o:{1}"), ("p", "")], &[]).len(), 1);
        // An entry that leads to something wrong is reported for that reason alone.
        assert_eq!(problems(&[("a", "b"), ("b", "nothing")], &[("c", "a")]).len(), 1);
    }

    #[test]
    fn a_tree_of_more_than_four_levels_is_named_where_it_gets_too_deep() {
        let budgets = [("a", ""), ("b", "a"), ("c", "b"), ("d", "c"), ("e", "d")];
        assert_eq!(problems(&budgets[..3], &[("x", "c")]), [""; 0]);
        let expected = "budget[4].within: \"c\" is too deep: \"d\" in \"c\" in \"b\" in \"a\" leaves no level for a bucket; a tree has at most \
                        4 levels with the bucket";
        assert_eq!(problems(&budgets, &[("x", "e")]), [expected]);
    }

    #[test]
    fn a_within_of_the_defaults_is_named_once() {
        let bad = "[defaults]\nwithin = 'a'\n[[bucket]]\nmatch = 'x'\n[[bucket]]\nmatch = 'y'\nrate = '1/s'\n";
        let expected = "config.toml: 1 problem\n  defaults.within: \"a\" names no budget: no [[budget]] entry matches it; add one for it";
        assert_eq!(parse(bad).err().as_deref(), Some(expected));
    }

    #[test]
    fn a_rate_that_the_budget_above_does_not_allow_is_warned_of() {
        let text = "[[budget]]\nmatch = 'top'\nrate = '50/s'\n[[budget]]\nmatch = 'a:*'\nrate = '60/s'\nwithin = 'top'\n[[budget]]\nmatch = 'b:*'\n\
                    quota = '5/d'\nwithin = 'top'\n[defaults]\nrate = '51/s'\nwithin = 'top'\n[[bucket]]\nmatch = 'c'\ncapacity = 5\n\
                    [[bucket]]\nmatch = 'd'\nrate = '50/s'\n[[bucket]]\nmatch = 'e:*'\nrate = '61/s'\nwithin = 'a:{1}'\n[[bucket]]\nmatch = 'f:*'\n\
                    rate = '100/s'\nwithin = '{1}:x'\n[[bucket]]\nmatch = 'g'\nrate = '100/s'\nwithin = ''\n[limits]\nready_window = 'off'\n";
        assert_eq!(
            parse(text).expect("good").warnings(),
            [
                "budget[2] \"a:*\": its rate, 60/s, is above that of budget[1] \"top\", 50/s: it never gets more than that",
                "defaults: its rate, 51/s, is above that of budget[1] \"top\", 50/s: it never gets more than that",
                "bucket[3] \"e:*\": its rate, 61/s, is above that of budget[2] \"a:*\", 60/s: it never gets more than that",
            ]
        );
    }

    #[test]
    fn ten_thousand_budgets_and_buckets_are_no_problem() {
        let names: Vec<String> = (0..10_000).map(|n| format!("tenant-{n}")).collect();
        let budgets: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        let buckets: Vec<_> = names.iter().map(|name| (format!("{name}:*"), name.as_str())).collect();
        let buckets: Vec<(&str, &str)> = buckets.iter().map(|(glob, name)| (glob.as_str(), *name)).collect();
        let text = text(&budgets, &buckets)
            + "[[bucket]]\nmatch = '*'\nwithin = '{1}'\n[[bucket]]\nmatch = '*?'\nwithin = '{1}-7'\n";
        assert_eq!(parse(&text).map(|config| config.record.buckets.len()), Ok(10_002));
    }
}
