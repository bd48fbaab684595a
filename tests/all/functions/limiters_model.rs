//! The limiters against a model that keeps every admitted call and knows nothing but what a limiter means; and `throttle`
//! against redis-cell's own arithmetic.

use proptest::prelude::*;

use crate::functions::limiters::{Limiter, Verdict};
use crate::rig::{MS, T0};

#[derive(Debug, Clone)]
pub(super) struct Model {
    name: &'static str,
    limit: u64,
    count: u64,
    period: u64,
    aligned: bool,
    log: Vec<(u64, u64)>,
}

impl Model {
    /// One under the name that `admit` has for it.
    pub(super) fn new(name: &str, limit: u64, count: u64, period: u64, aligned: bool) -> Self {
        let known = ["fixed_window", "sliding_window", "sliding_counter", "token_bucket", "leaky_meter"];
        let name = known.into_iter().find(|known| *known == name.replace('-', "_")).expect("a limiter");
        Self { name, limit, count, period, aligned, log: Vec::new() }
    }

    fn args(&self, quantity: u64) -> String {
        let (limit, count, ms) = (self.limit, self.count, self.period / MS);
        match self.name {
            "token_bucket" | "leaky_meter" => format!("{limit} {count} {ms} {quantity}"),
            _ if self.aligned => format!("{limit} {ms} {quantity} ALIGNED"),
            _ => format!("{limit} {ms} {quantity}"),
        }
    }

    /// What counts against the limit at a time, as a fraction.
    fn used(&self, now: u128) -> (u128, u128) {
        let period = u128::from(self.period);
        let log: Vec<_> = self.log.iter().map(|(t, quantity)| (u128::from(*t), u128::from(*quantity))).collect();
        let sum = |counts: &dyn Fn(u128) -> bool| {
            log.iter().filter(|(t, _)| counts(*t)).map(|(_, quantity)| quantity).sum::<u128>()
        };
        match self.name {
            "fixed_window" if self.aligned => (sum(&|t| t / period == now / period), 1),
            "fixed_window" => {
                let mut begin = None;
                for (t, _) in &log {
                    if begin.is_none_or(|begin| *t >= begin + period) {
                        begin = Some(*t);
                    }
                }
                let begin = begin.filter(|begin| now < begin + period);
                (begin.map_or(0, |begin| sum(&|t| t >= begin)), 1)
            }
            "sliding_window" => (sum(&|t| now < t + period), 1),
            "sliding_counter" => {
                let (current, previous) =
                    (sum(&|t| t / period == now / period), sum(&|t| t / period + 1 == now / period));
                (previous * (period - now % period) + current * period, period)
            }
            _ => {
                let (mut level, mut last) = (0_u128, 0);
                for (t, quantity) in log.iter().chain([&(now, 0)]) {
                    level = level.saturating_sub((t - last) * u128::from(self.count)) + quantity * period;
                    last = *t;
                }
                (level, period)
            }
        }
    }

    fn passes(&self, now: u128, quantity: u128) -> bool {
        let (used, of) = self.used(now);
        used + quantity * of <= u128::from(self.limit) * of
    }

    /// The first time from `now` on at which something is so that stays so.
    fn first(now: u128, is_so: impl Fn(u128) -> bool) -> u128 {
        let (mut low, mut high) = (0, 1);
        while !is_so(now + high) {
            high *= 2;
        }
        if is_so(now) {
            return 0;
        }
        while high - low > 1 {
            let middle = low.midpoint(high);
            if is_so(now + middle) { high = middle } else { low = middle }
        }
        high
    }

    /// How many more pass.
    pub(super) fn remaining(&self, now: u64) -> u128 {
        Self::first(0, |quantity| !self.passes(now.into(), quantity)).saturating_sub(1)
    }

    /// How long until a quantity passes.
    pub(super) fn wait_us(&self, now: u64, quantity: u128) -> u128 {
        Self::first(now.into(), |t| self.passes(t, quantity))
    }

    pub(super) fn pass(&mut self, now: u64, quantity: u64) {
        self.log.push((now, quantity));
    }

    fn call(&mut self, now: u64, quantity: u64) -> Verdict {
        let passes = self.passes(now.into(), quantity.into());
        if passes && quantity > 0 {
            self.pass(now, quantity);
        }
        let remaining = self.remaining(now);
        let retry = if passes || quantity > self.limit {
            -1
        } else {
            self.wait_us(now, quantity.into()).div_ceil(MS.into()) as i64
        };
        let (now, ms) = (u128::from(now), u128::from(MS));
        // A fixed window that was not aligned has nothing to tell once it is over; the others once nothing is used.
        let reset = Self::first(now, |t| self.used(t).0 == 0).div_ceil(ms);
        [i64::from(!passes), self.limit as i64, remaining as i64, retry, reset as i64]
    }
}

/// A call: how much later than the one before, its quantity, and perhaps another limit from now on.
type Step = (u64, u64, Option<u64>);

fn steps(longest: u64, most: u64) -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![
        3 => Just(0),
        2 => 0..2_000_u64,
        4 => 0..=longest / 4,
        2 => 0..=longest,
        1 => prop_oneof![Just(longest / 2), Just(longest), Just(longest + 1), Just(2 * longest)],
    ];
    let quantity = prop_oneof![1 => Just(0), 4 => 1..=most.min(3), 2 => 1..=most];
    let limit = prop_oneof![12 => Just(None), 1 => (1..=most).prop_map(Some)];
    prop::collection::vec((wait, quantity, limit), 1..40)
}

fn sequence() -> impl Strategy<Value = (&'static str, bool, u64, u64, u64, Vec<Step>)> {
    let name = prop_oneof![
        Just(("fixed_window", false)),
        Just(("fixed_window", true)),
        Just(("sliding_window", false)),
        Just(("sliding_counter", false)),
        Just(("token_bucket", false)),
        Just(("leaky_meter", false)),
    ];
    let limit = prop_oneof![4 => 1..12_u64, 1 => Just(10_000), 1 => Just(1_000_000)];
    let period = prop_oneof![4 => 1..5_000_u64, 2 => Just(60_000), 1 => Just(86_400_000), 1 => Just(31_622_400_000), 1 => 1..31_622_400_000_u64];
    let count = prop_oneof![4 => 1..20_u64, 1 => 1..1_000_000_u64, 1 => Just(1_000_000)];
    (name, limit, count, period).prop_flat_map(|((name, aligned), limit, count, period_ms)| {
        let most = if name == "sliding_window" { 10_000 } else { 1_000_000 };
        let limit = limit.min(most);
        let steps = steps(period_ms * MS, (2 * limit).min(most));
        (Just(name), Just(aligned), Just(limit), Just(count), Just(period_ms * MS), steps)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_limiter_does_what_the_log_of_its_calls_says((name, aligned, limit, count, period, steps) in sequence()) {
        let mut it = Limiter::new(name);
        let mut model = Model { name, limit, count, period, aligned, log: Vec::new() };
        let mut now = T0;
        for (n, (wait, quantity, limit)) in steps.into_iter().enumerate() {
            now += wait;
            model.limit = limit.unwrap_or(model.limit);
            let before = it.dump();
            let args = model.args(quantity);
            let (reply, ttl) = it.call_with_ttl(now, &args);
            let expected = model.call(now, quantity);
            // A wait of over 2^53 ms, some 285,000 years, does not fit the functions' numbers to the last digit.
            let close = reply.iter().zip(&expected).all(|(a, b)| a == b || (*b > 1 << 53 && a.abs_diff(*b) < 16));
            prop_assert!(close, "call {n} at {now}: {name} {args}: {reply:?}, and {expected:?} is right");
            if reply[0] == 1 || quantity == 0 {
                prop_assert_eq!(it.dump(), before, "a call that charges nothing writes nothing");
            } else {
                prop_assert!(ttl <= reply[4] && ttl + 1_000 > reply[4], "it expires after {} ms, not {}", reply[4], ttl);
            }
        }
        if name == "sliding_window" {
            let key = it.key.clone();
            let entries: usize = it.case.cmd(&["ZCARD", &key]);
            prop_assert!(entries <= model.log.len().min(10_000));
        }
    }

    /// redis-cell in its own arithmetic: 64 bits of nanoseconds, and doubles where it uses them.
    #[test]
    fn throttle_is_redis_cell(
        (burst, count, period) in (
            prop_oneof![4 => 0..20_i64, 1 => 0..1_000_000_i64],
            prop_oneof![4 => 1..50_i64, 1 => 1..=1_000_000_i64],
            prop_oneof![4 => 1..100_i64, 1 => 1..=31_622_400_i64],
        ),
        calls in prop::collection::vec(
            (prop_oneof![Just(0), 0..3_000_u64, 0..3_000_000_u64, 0..40_000_000_u64, 0..31_622_400_000_000_u64], 0..30_i64),
            1..40,
        ),
    ) {
        let t = (period as f64 * 1e9 / count as f64) as i64;
        prop_assume!(t.checked_mul(burst + 1).is_some_and(|all| all < 7_000_000_000_000_000_000));
        let mut it = Limiter::new("throttle");
        let (tolerance, mut tat, mut now) = (t * (burst + 1), None::<i64>, T0);
        for (wait, quantity) in calls {
            now += wait;
            prop_assume!(now < 1_900_000_000_000_000);
            let reply = it.at(now, &format!("{burst} {count} {period} {quantity}"));
            let now_ns = now as i64 * 1_000;
            let from = tat.unwrap_or(now_ns).max(now_ns);
            let Some(new_tat) = t.checked_mul(quantity).and_then(|more| from.checked_add(more)) else { return Ok(()) };
            let late = new_tat - tolerance - now_ns;
            let (limited, retry, ttl) = if late > 0 {
                (1, if t * quantity <= tolerance { late } else { -1_000_000_000 }, from - now_ns)
            } else {
                tat = Some(new_tat);
                (0, -1_000_000_000, new_tat - now_ns)
            };
            let next = tolerance - ttl;
            let remaining = if next > -t { ((next / 1_000) as f64 / (t / 1_000) as f64) as i64 } else { 0 };
            let seconds = |ns: i64| ns / 1_000_000_000 + i64::from(ns % 1_000_000_000 / 1_000_000 > 0);
            prop_assert_eq!(reply, [limited, burst + 1, remaining.max(0), seconds(retry), seconds(ttl)]);
        }
    }
}
