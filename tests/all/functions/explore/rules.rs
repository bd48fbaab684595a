//! Rules that are broken one by one, a line of the library each: the search finds every one, with a shortest sequence of events.

use std::time::Duration;

use super::search::Search;
use super::world::WORLDS;

/// A rule: what it says, in which world it is broken, and the line that does so.
struct Rule {
    says: &'static str,
    world: usize,
    line: &'static str,
    broken: &'static str,
}

const TWO: usize = 0;
const SLOTS: usize = 1;
const BUDGET: usize = 2;
const NARROW: usize = 3;
const LEVELS: usize = 4;

static RULES: [Rule; 19] = [
    Rule {
        says: "an interval lies between two jobs of a bucket",
        world: TWO,
        line: "if p.part == 0 then return t + p.step end\n    local base_us, k, beyond",
        broken: "if p.part == 0 then return t + p.step - 1 end\n    local base_us, k, beyond",
    },
    Rule {
        says: "a bucket without work is known until its next job may leave",
        world: TWO,
        line: "if due > now then return k.rest end",
        broken: "",
    },
    Rule {
        says: "a paused bucket lets nothing out",
        world: TWO,
        line: "    if p.paused then return ctx.k.paused end\n",
        broken: "",
    },
    Rule {
        says: "what was waited by order is no lateness",
        world: TWO,
        line: "if due and due < now and bucket.is_freed(ctx, from, p, name) then due = now end",
        broken: "",
    },
    Rule {
        says: "after a change of the rate the next job leaves at the new one",
        world: TWO,
        line: "if due and constraints.changes_pace(old, p) then due = constraints.re_anchor(ctx, constraint, old, p, due) end",
        broken: "",
    },
    Rule {
        says: "a slow-down that is ended is over",
        world: TWO,
        line: "d.till, d.length = min(d.till, now), 0",
        broken: "d.length = 0",
    },
    Rule {
        says: "jobs leave in the order in which they came",
        world: TWO,
        line: "call('LINDEX', queue, from_right[out + 1])\n      local bytes, o",
        broken: "call('LINDEX', queue, out)\n      local bytes, o",
    },
    Rule {
        says: "a failed job waits out its back-off",
        world: TWO,
        line: "pcall_redis('ZADD', ctx.k.retry .. name, digits(ends), pack(job))",
        broken: "pcall_redis('ZADD', ctx.k.retry .. name, digits(ctx.now), pack(job))",
    },
    Rule {
        says: "no more jobs are in flight than there are slots",
        world: SLOTS,
        line: "slots.count(ctx, id) >= p.concurrency or",
        broken: "slots.count(ctx, id) > p.concurrency or",
    },
    Rule {
        says: "a job that is finished frees its slot",
        world: SLOTS,
        line: "base.write(pcall_redis, 'ZREM', k.inflight, members)",
        broken: "",
    },
    Rule {
        says: "the jobs of an ordered bucket finish in their order",
        world: SLOTS,
        line: "if not first or first + 0 > ctx.now then return first ~= nil end",
        broken: "if not first or first + 0 > ctx.now then return false end",
    },
    Rule {
        says: "a job is charged to the budget above",
        world: BUDGET,
        line: "if step then d = d + step else d = after(b.p, d) end\n      b.due = d",
        broken: "if step then d = d + step else d = after(b.p, d) end",
    },
    Rule {
        says: "no more is made up for than the catch-up",
        world: BUDGET,
        line: "if d < at - makes_up then d = at - makes_up end",
        broken: "",
    },
    Rule {
        says: "turns are shared by weight",
        world: BUDGET,
        line: "return max(tag, now - (largest or 1)) + step",
        broken: "return max(tag, now - (largest or 1)) + 1",
    },
    Rule {
        says: "the wait for a slot is no lateness of a budget",
        world: NARROW,
        line: "b.resumed_at, b.is_open = max(b.resumed_at, ctx.now), nil\n    budget.enter(ctx, b, 'free')",
        broken: "b.is_open = nil\n    budget.enter(ctx, b, 'free')",
    },
    Rule {
        says: "the children of a paused budget wait",
        world: BUDGET,
        line: "if stopped then return move(ctx, b, event, stopped,",
        broken: "if stopped and stopped ~= ctx.k.paused then return move(ctx, b, event, stopped,",
    },
    Rule {
        says: "a child of a budget waits for its slots",
        world: NARROW,
        line: "if p.concurrency and slots.is_full(ctx, b.id, p) then return nil end",
        broken: "",
    },
    Rule {
        says: "what is used of a quota counts until the window ends",
        world: NARROW,
        line: "window.used = window.used + units",
        broken: "",
    },
    Rule {
        says: "a budget that goes on wakes the one above",
        world: LEVELS,
        line: "if due <= ctx.now and b.p.parent and path.is_blocked(ctx, b.p.parent) then",
        broken: "if false then",
    },
];

#[test]
fn a_broken_rule_of_each_world_is_found_with_a_shortest_sequence() {
    let first_of = |world| RULES.iter().find(|rule| rule.world == world).expect("each world has a rule");
    assert_eq!(missed((0..WORLDS.len()).map(first_of)), Vec::<&str>::new(), "not found");
}

#[test]
#[ignore = "it takes a minute or two: make mutants"]
fn every_broken_rule_is_found_with_a_shortest_sequence() {
    assert_eq!(missed(RULES.iter()), Vec::<&str>::new(), "not found");
}

/// The rules that the search does not find when they are broken.
fn missed(rules: impl Iterator<Item = &'static Rule>) -> Vec<&'static str> {
    let mut missed = Vec::new();
    for rule in rules {
        let source = dripd::store::library::source();
        assert_eq!(source.matches(rule.line).count(), 1, "{}: the line is there once", rule.says);
        let mut search = Search::new(WORLDS[rule.world], &source.replace(rule.line, rule.broken));
        let found = search.run(Duration::from_secs(240)); // it ends as soon as the rule is found
        let sequence = found.as_deref().and_then(|why| why.lines().next());
        println!("{}: {}; {}", rule.says, sequence.unwrap_or("NOT FOUND"), search.figures());
        if sequence.is_none() {
            missed.push(rule.says);
        }
    }
    missed
}
