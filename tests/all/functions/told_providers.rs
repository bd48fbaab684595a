//! Providers that nobody configured for: their limit is a tenth of the configured rate, and they say with each answer how much more they let
//! through. The clock is passed in: it is a simulation of the providers and of the workers, on the real functions.

use std::collections::{BTreeMap, VecDeque};

use crate::rig::{Case, Entry, MS, S, T0};

use super::flow::audit;

#[path = "../../../benches/bench/plots/paper.rs"]
#[allow(dead_code, clippy::duplicate_mod)] // what the plots of the bench use, where it is a module too
mod paper;

use paper::{Paper, Scale, Side, WIDTH};

const SECONDS: u64 = 180;

/// How a provider counts. All of them let through `limit` in `period`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Windows that begin at multiples of the period; the reset is the end of the window.
    Fixed,
    /// Whatever window one looks at; the reset is when the oldest leaves it.
    Sliding,
    /// A bucket of tokens; the reset is when it is full.
    Tokens,
}

#[derive(Debug, Clone, Copy)]
struct Provider {
    kind: Kind,
    limit: u64,
    period: u64,
}

/// What a provider keeps.
#[derive(Debug, Default)]
struct State {
    /// When those came that were let through, as far as they matter.
    taken: VecDeque<u64>,
    /// Its tokens, and when they were counted.
    tokens: Option<(f64, u64)>,
    accepted: u64,
    refused: u64,
    /// The calls of each second that were let through, and those that were refused.
    calls: Vec<[u64; 2]>,
}

/// An answer: whether it was let through, how many more are, and when that resets.
#[derive(Debug, Clone, Copy)]
struct Answer {
    is_ok: bool,
    remaining: u64,
    reset: u64,
    /// When it was counted.
    at: u64,
}

impl Provider {
    /// What it lets through in so long, in the long run: a full bucket of tokens at the beginning does not count.
    fn allowed(self, time: u64) -> f64 {
        self.limit as f64 * time as f64 / self.period as f64
    }

    fn ask(self, state: &mut State, now: u64) -> Answer {
        let Self { kind, limit, period } = self;
        let (is_ok, remaining, reset) = match kind {
            Kind::Fixed | Kind::Sliding => {
                let begins =
                    if kind == Kind::Fixed { now - (now - T0) % period } else { now.saturating_sub(period) + 1 };
                while state.taken.front().is_some_and(|at| *at < begins) {
                    state.taken.pop_front();
                }
                let is_ok = (state.taken.len() as u64) < limit;
                if is_ok {
                    state.taken.push_back(now);
                }
                let reset = if kind == Kind::Fixed { begins + period } else { state.taken[0] + period };
                (is_ok, limit - state.taken.len() as u64, reset - now)
            }
            Kind::Tokens => {
                let rate = limit as f64 / period as f64;
                let (tokens, at) = state.tokens.unwrap_or((limit as f64, now));
                let tokens = (tokens + (now - at) as f64 * rate).min(limit as f64);
                let is_ok = tokens >= 1.0;
                let tokens = if is_ok { tokens - 1.0 } else { tokens };
                state.tokens = Some((tokens, now));
                (is_ok, tokens as u64, ((limit as f64 - tokens) / rate) as u64)
            }
        };
        *(if is_ok { &mut state.accepted } else { &mut state.refused }) += 1;
        let second = ((now - T0) / S) as usize;
        state.calls.resize(state.calls.len().max(second + 1), [0, 0]);
        state.calls[second][usize::from(!is_ok)] += 1;
        Answer { is_ok, remaining, reset, at: now }
    }
}

/// Who works, and how well the provider says what it knows.
#[derive(Debug, Clone, Copy)]
struct World {
    workers: usize,
    /// How long a job takes to its answer.
    latency: u64,
    /// Up to how much it takes longer or shorter, of it.
    spread: f64,
    /// By how much the reset that is told is wrong, at most.
    jitter: u64,
    /// By how much what remains is told too low.
    low: u64,
    /// Which part of the latency passes before the provider counts the call.
    there: f64,
    /// Whether the time of the reset is told, and not how long it is until then.
    is_time: bool,
    /// Of so many calls one takes that long and tells; the others are answered after 100 ms without a word, where they are not refused.
    tells: usize,
    /// Whether the limit is named.
    names: bool,
    /// For so long only a job each 300 ms comes: what they used comes back one by one.
    trickle: u64,
}

const PLAIN: World = World {
    workers: 20,
    latency: 200 * MS,
    spread: 0.0,
    jitter: 0,
    low: 0,
    there: 0.5,
    is_time: false,
    tells: 1,
    names: true,
    trickle: 0,
};

/// What became of the jobs: how much of what is allowed was used, and how many of those sent were refused.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    used: f64,
    refused: f64,
}

/// Workers without dripd: each calls as fast as it can, and after a refusal waits for a second, twice as long after each further one, up to a
/// minute, with jitter.
fn simulate_naive(provider: Provider, world: World) -> State {
    let mut random = fastrand::Rng::with_seed(7);
    let mut state = State::default();
    let mut calls: BTreeMap<(u64, usize), u32> = (0..world.workers).map(|n| ((T0, n), 0)).collect();
    while let Some(((now, n), refused)) = calls.pop_first().filter(|((now, _), _)| *now < T0 + SECONDS * S) {
        let answer = provider.ask(&mut state, now + world.latency / 2);
        let wait = (S << refused.min(6)).min(60 * S);
        let (wait, refused) = if answer.is_ok { (0, 0) } else { (wait / 2 + random.u64(0..=wait / 2), refused + 1) };
        calls.insert((now + world.latency + wait, n), refused);
    }
    state
}

fn outcome(provider: Provider, state: &State) -> Outcome {
    let (accepted, refused) = (state.accepted as f64, state.refused as f64);
    Outcome { used: accepted / provider.allowed(SECONDS * S), refused: refused / (accepted + refused) }
}

/// Let workers empty a bucket that is always full and has ten times the rate of the provider.
fn simulate(told: &str, provider: Provider, world: World) -> State {
    let rate = provider.limit * 10 * S / provider.period;
    let mut case = Case::with(&format!(
        "[defaults]\nrate = '{rate}/s'\ncapacity = 100000\ntold = '{told}'\n[limits]\nready_window = '250ms'\n"
    ));
    let mut random = fastrand::Rng::with_seed(7);
    let (mut state, mut now, end) = (State::default(), T0, T0 + SECONDS * S);
    let (mut free, mut filled, mut next_look) = (world.workers, 0, T0);
    let (mut at_provider, mut answers) =
        (BTreeMap::<(u64, usize), (Entry, u64)>::new(), BTreeMap::<(u64, usize), (Entry, Answer)>::new());
    let (mut n, mut next_push) = (0, T0);
    while now < end {
        let trickles = now < T0 + world.trickle;
        if trickles && now >= next_push {
            case.push_at(now, "a", &["x"]);
            (filled, next_push, next_look) = (filled + 1, now + 300 * MS, now);
        } else if !trickles && filled < 2_000 {
            case.push_at(now, "a", &["x"; 1_000]);
            (filled, next_look) = (filled + 1_000, now);
        }
        if now >= next_look {
            let drained = case.settle_at(now);
            next_look = if drained.wait_us < 0 { end } else { now + (drained.wait_us as u64).max(1) };
            filled -= drained.dispatched;
        }
        if free > 0 {
            for entry in case.take("ready", free) {
                free -= 1;
                n += 1;
                let off = 1.0 + world.spread * (2.0 * random.f64() - 1.0);
                let latency = if n % world.tells == 0 { world.latency as f64 * off } else { 100.0 * MS as f64 };
                let way = (latency * world.there) as u64;
                at_provider.insert((now + way, n), (entry, latency as u64 - way));
                next_look = next_look.min(now + MS); // a worker has taken it: a held bucket may go on
            }
        }
        while let Some(first) = at_provider.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, n), (entry, back)) = first.remove_entry();
            let mut answer = provider.ask(&mut state, at);
            answer.remaining = answer.remaining.saturating_sub(world.low);
            answer.reset = (answer.reset + random.u64(0..=2 * world.jitter)).saturating_sub(world.jitter);
            let back = if answer.is_ok { back } else { back / 2 }; // a refusal costs the provider no work
            answers.insert((at + back, n), (entry, answer));
        }
        while let Some(first) = answers.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, n), (entry, answer)) = first.remove_entry();
            free += 1;
            let (remaining, reset) = (answer.remaining.to_string(), (answer.reset / MS).to_string());
            let told = if world.is_time { ((answer.at + answer.reset) / MS).to_string() } else { reset.clone() };
            let limit = provider.limit.to_string();
            let mut args = vec![at.to_string(), entry.id];
            if !answer.is_ok {
                args.extend(["THROTTLED", "RETRY_AFTER", &reset].map(str::to_owned));
                filled += 1;
            }
            if n % world.tells == 0 || !answer.is_ok {
                args.extend(["REMAINING", &remaining, "RESET", &told].map(str::to_owned));
                if world.names {
                    args.extend(["LIMIT", &limit].map(str::to_owned));
                }
            }
            let function = if answer.is_ok { "drip__ack" } else { "drip__fail" };
            assert_eq!(case.fcall::<i64>(function, &["ready"], &args), 1);
            next_look = now; // the wake key was written
        }
        let events = [
            at_provider.keys().next().map(|key| key.0),
            answers.keys().next().map(|key| key.0),
            Some(next_look),
            trickles.then_some(next_push),
        ];
        now = events.into_iter().flatten().min().expect("the end is one").max(now);
    }
    audit(&mut case);
    let Outcome { used, refused } = outcome(provider, &state);
    println!("{told} {provider:?} {world:?}: {:.1} % used, {:.2} % refused", used * 100.0, refused * 100.0);
    state
}

fn worlds() -> Vec<(Provider, World)> {
    let mut list = Vec::new();
    let of = |limit, period| Provider { kind: Kind::Fixed, limit, period };
    list.push((of(50, 5 * S), World { latency: S, there: 0.0, is_time: true, ..PLAIN }));
    list.push((of(50, 5 * S), World { latency: 3 * S, there: 0.0, is_time: true, workers: 40, ..PLAIN }));
    list.push((of(600, 60 * S), World { latency: S, is_time: true, ..PLAIN }));
    list.push((of(50, 5 * S), World { latency: 3 * S, there: 0.0, is_time: true, workers: 60, tells: 5, ..PLAIN }));
    list.push((of(50, 5 * S), World { latency: S, is_time: true, workers: 40, there: 0.0, names: false, ..PLAIN }));
    let sliding = Provider { kind: Kind::Sliding, limit: 40, period: 10 * S };
    for (latency, there) in [(20 * MS, 0.5), (60 * MS, 0.5), (100 * MS, 0.0)] {
        list.push((sliding, World { latency, there, trickle: 11 * S, ..PLAIN }));
    }
    let tokens = Provider { kind: Kind::Tokens, limit: 60, period: 10 * S };
    list.push((tokens, World { latency: 300 * MS, there: 0.0, ..PLAIN }));
    for kind in [Kind::Fixed, Kind::Sliding, Kind::Tokens] {
        let per_10_s = Provider { kind, limit: 100, period: 10 * S };
        let per_minute = Provider { kind, limit: 600, period: 60 * S };
        let world = |workers, latency| World { workers, latency, ..PLAIN };
        list.extend([
            (per_10_s, world(1, 20 * MS)),
            (per_minute, world(50, 4 * S)),
            (per_minute, World { spread: 0.5, ..world(50, S) }),
            (per_minute, World { jitter: 500 * MS, low: 1, ..PLAIN }),
        ]);
    }
    list
}

#[test]
fn what_is_spread_uses_what_is_allowed_and_is_hardly_refused() {
    // Where calls take as long as those lie apart that come back, "stop" may be refused: the page says so.
    let sliding = Provider { kind: Kind::Sliding, limit: 40, period: 10 * S };
    let slow = [300 * MS, S].map(|latency| (sliding, World { latency, trickle: 11 * S, ..PLAIN }));
    for (provider, world) in worlds().into_iter().chain(slow) {
        let outcome = outcome(provider, &simulate("spread", provider, world));
        assert!(outcome.used >= 0.95 && outcome.refused < 0.01, "{provider:?} {world:?}: {outcome:?}");
    }
}

#[test]
fn what_stops_at_nothing_left_uses_what_is_allowed_and_is_seldom_refused() {
    for (provider, world) in worlds() {
        let outcome = outcome(provider, &simulate("stop", provider, world));
        assert!(outcome.used >= 0.95 && outcome.refused < 0.05, "{provider:?} {world:?}: {outcome:?}");
    }
}

const PAGE: &str = "docs/told-limits.md";
const PICTURE: &str = "docs/told-limits.svg";

const SPREAD: &str = "`\"spread\"`";
const STOP: &str = "`\"stop\"`";
const NAIVE: &str = "20 workers that back off";

/// A page or a picture that this test makes: it must be so, or is written where `DRIPD_BLESS` is set.
fn is_made(path: &str, wanted: &str) {
    if std::env::var_os("DRIPD_BLESS").is_some() {
        std::fs::write(path, wanted).expect("written");
    } else {
        let there = std::fs::read_to_string(path).unwrap_or_default();
        assert!(there == wanted, "{path} is not what was found: run this test with DRIPD_BLESS=1");
    }
}

/// The table and the picture of the page: dripd and workers without it at the same providers.
#[test]
fn the_page_says_how_much_is_used_and_refused_beside_workers_that_back_off() {
    let percent = |part: f64| if part < 0.0005 { "0 %".to_owned() } else { format!("{:.1} %", part * 100.0) };
    let mut table = String::from("| an API with | | used | refused |\n|---|---|---|---|\n");
    let (mut rows, mut seconds) = (Vec::new(), Vec::new());
    for (kind, says) in
        [(Kind::Fixed, "fixed windows"), (Kind::Sliding, "sliding windows"), (Kind::Tokens, "a bucket of tokens")]
    {
        let (provider, world) = (Provider { kind, limit: 600, period: 60 * S }, PLAIN);
        for (who, state) in [
            (SPREAD, simulate("spread", provider, world)),
            (STOP, simulate("stop", provider, world)),
            (NAIVE, simulate_naive(provider, world)),
        ] {
            let outcome = outcome(provider, &state);
            let (used, refused) = (percent(outcome.used.min(1.0)), percent(outcome.refused));
            table += &format!("| {says} | {who} | {used} | {refused} |\n");
            rows.push((who, outcome));
            if kind == Kind::Fixed {
                let mut calls = state.calls;
                calls.resize(SECONDS as usize, [0, 0]); // and no call that came later
                seconds.push((who, calls));
            }
        }
    }
    let page = std::fs::read_to_string(PAGE).expect("the page");
    let (before, rest) = page.split_once("<!-- told -->\n").expect("the mark");
    let (_, after) = rest.split_once("<!-- end -->").expect("its end");
    let picture = "![Calls a second at an API with fixed windows](told-limits.svg)\n\n";
    is_made(PAGE, &format!("{before}<!-- told -->\n{picture}{table}<!-- end -->{after}"));
    is_made(PICTURE, &drawn(&seconds));
    let refused = |wanted: &'static str| rows.iter().filter(move |(who, _)| *who == wanted).map(|(_, one)| one.refused);
    assert!(refused(SPREAD).all(|part| part < 0.01) && refused(NAIVE).all(|part| part > 0.01), "{rows:?}");
}

/// The calls of each second, a row for each who called.
fn drawn(rows: &[(&str, Vec<[u64; 2]>)]) -> String {
    const ROW: f64 = 96.0;
    let title = "Calls a second at an API that lets 600 a minute through";
    let subtitle = "Its windows begin at each full minute; the bucket has a rate of 100/s and is never empty. Solid: let through; \
                    dotted: refused; dashed: what is allowed on average.";
    let (mut paper, top) = Paper::new(title, subtitle, 98.0 + (ROW + 30.0) * rows.len() as f64);
    let time = Scale { values: (0.0, SECONDS as f64), places: (64.0, WIDTH - 24.0), log: false };
    let mut y = top;
    for (who, calls) in rows {
        let rate = Scale { values: (0.0, 120.0), places: (y + 20.0 + ROW, y + 20.0), log: false };
        let (is_mine, left, right) = (*who != NAIVE, time.places.0, time.places.1);
        paper.text(
            (left, y + 14.0),
            Side::Left,
            if is_mine { "mine-name" } else { "name" },
            &who.replace("`\"", "told = \"").replace('`', ""),
        );
        for n in [0.0, 50.0, 100.0] {
            paper.line((left, rate.at(n)), (right, rate.at(n)), if n == 0.0 { "axis" } else { "grid" });
            paper.text((left - 6.0, rate.at(n) + 4.0), Side::Right, "", &format!("{n}/s"));
        }
        paper.line((left, rate.at(10.0)), (right, rate.at(10.0)), "axis p99");
        let class = if is_mine { "mine" } else { "beside" };
        paper.path(&steps(calls.iter().map(|[ok, _]| *ok), &time, &rate), class);
        if calls.iter().any(|[_, refused]| *refused > 0) {
            paper.path(&steps(calls.iter().map(|[_, refused]| *refused), &time, &rate), "beside p999");
        }
        y += ROW + 30.0;
    }
    for second in (0..=SECONDS).step_by(60) {
        paper.text((time.at(second as f64), y + 10.0), Side::Middle, "", &format!("{second} s"));
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    paper.save(file.path()).expect("written");
    std::fs::read_to_string(file.path()).expect("a picture")
}

/// A line that goes on level for a second each.
fn steps(values: impl Iterator<Item = u64>, time: &Scale, rate: &Scale) -> Vec<(f64, f64)> {
    let mut places: Vec<(f64, f64)> = Vec::new();
    for (second, value) in values.enumerate() {
        let (from, to, y) = (time.at(second as f64), time.at(second as f64 + 1.0), rate.at(value as f64));
        match places.last_mut() {
            Some(last) if (last.1 - y).abs() < f64::EPSILON => last.0 = to,
            _ => places.extend([(from, y), (to, y)]),
        }
    }
    places
}
