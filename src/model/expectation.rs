//! Expectations of a simulation: `sms:* wait.p99 < 30s`. A figure of a group of buckets, or of a budget, is compared with
//! a value.

use std::str::FromStr;
use std::time::Duration;

use super::duration;
use super::rate::Rate;

/// The valid form in words, for error messages.
pub const HINT: &str = "write PATTERN FIGURE < VALUE, with <, <=, > or >=, as in 'sms:* wait.p99 < 30s', 'budget twilio use > 90%', \
                    'sms:* rejected <= 0' or '* rate >= 40/s'; the figures are wait.p50, wait.p95, wait.p99, wait.max, \
                    pushed, accepted, rejected, late, dead, waiting, rate, use and fairness";

/// What a figure is compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// A time.
    Time(Duration),
    /// A number: of jobs, of jobs a second, or of 0 to 1.
    Number(f64),
    /// So many of a hundred jobs that were pushed.
    Percent(f64),
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    More,
    /// `>=`
    AtLeast,
}

/// A figure by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // docs/simulate.md says what each is
pub enum Figure {
    WaitP50,
    WaitP95,
    WaitP99,
    WaitMax,
    Pushed,
    Accepted,
    Rejected,
    Late,
    Dead,
    Waiting,
    Rate,
    Use,
    Fairness,
}

impl Figure {
    /// Each with its name.
    pub const ALL: [(&'static str, Self); 13] = [
        ("wait.p50", Self::WaitP50),
        ("wait.p95", Self::WaitP95),
        ("wait.p99", Self::WaitP99),
        ("wait.max", Self::WaitMax),
        ("pushed", Self::Pushed),
        ("accepted", Self::Accepted),
        ("rejected", Self::Rejected),
        ("late", Self::Late),
        ("dead", Self::Dead),
        ("waiting", Self::Waiting),
        ("rate", Self::Rate),
        ("use", Self::Use),
        ("fairness", Self::Fairness),
    ];
}

/// An expectation about a group.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// As it was written.
    pub text: String,
    /// The pattern of buckets, or the name of the budget.
    pub name: String,
    /// Whether that is a budget.
    pub is_budget: bool,
    /// What is compared.
    pub figure: Figure,
    /// How.
    pub compare: Compare,
    /// With what.
    pub value: Value,
}

/// Read what a figure is compared with: `30s`, `40/s`, `90%`, `0`.
fn value(figure: Figure, text: &str) -> Option<Value> {
    let number = |text: &str| text.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0);
    let percent = || number(text.strip_suffix('%')?);
    match figure {
        Figure::WaitP50 | Figure::WaitP95 | Figure::WaitP99 | Figure::WaitMax => duration::parse(text).map(Value::Time),
        Figure::Rate => Rate::parse(text).ok().map(|rate| Value::Number(rate.per_second())),
        // 50 would be 5,000 %, and mean 50 %.
        Figure::Use | Figure::Fairness => {
            let share = || number(text).filter(|share| *share <= 1.0);
            percent().map(|percent| percent / 100.0).or_else(share).map(Value::Number)
        }
        _ => percent().map(Value::Percent).or_else(|| number(text).map(Value::Number)),
    }
}

impl FromStr for Expectation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [name @ .., figure_name, compare, wanted] = &words[..] else { return Err(HINT.to_owned()) };
        let (is_budget, name) = match name {
            ["budget", name] => (true, *name),
            [name] => (false, *name),
            _ => return Err(HINT.to_owned()),
        };
        let compare = match *compare {
            "<" => Compare::Less,
            "<=" => Compare::AtMost,
            ">" => Compare::More,
            ">=" => Compare::AtLeast,
            _ => return Err(format!("{compare:?} compares nothing: {HINT}")),
        };
        let figure = Figure::ALL.into_iter().find(|(name, _)| name == figure_name).map(|(_, figure)| figure);
        let figure = figure.ok_or_else(|| format!("{figure_name:?} is no figure: {HINT}"))?;
        let value = value(figure, wanted).ok_or_else(|| format!("{wanted:?} is no value of {figure_name}: {HINT}"))?;
        Ok(Self { text: text.trim().to_owned(), name: name.to_owned(), is_budget, figure, compare, value })
    }
}
