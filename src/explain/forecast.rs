//! Forecasts in words: what a change or a push would do.

use std::time::Duration;

use serde::Serialize;

use crate::model::counted::counted;
use crate::model::duration::say;
use crate::store::what_if::{Forecast, Verdict, WhatIf};

/// What a change or a push would do. Its JSON is what `dripd what-if --json` prints; `docs/explain.md` says what each field means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = WhatIfAnswer)]
pub struct WhatIfSaid {
    bucket: String,
    push: Option<Push>,
    now: Forecast,
    then: Forecast,
    exact: bool,
    because: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = PushForecast)]
struct Push {
    jobs: u64,
    #[serde(flatten)]
    verdict: Verdict,
    rejected: u64,
}

/// The reason, in words, why a forecast is only a lower bound.
fn reason(word: &str) -> &str {
    match word {
        "retries" => "failed jobs wait for another try, and may fail again",
        "delayed" => "delayed jobs wait, and take turns with the queue when their time has come",
        "costs" => {
            "jobs with options may cost more than 1: reckoned with the costs of the oldest 1,000, and a worker may put them right"
        }
        "job-rate" => "its `job_rate` may be slower: reckoned with `rate` alone",
        "paused" => "it is paused: reckoned as if that ended now",
        "quota" => "a quota may be used up before then",
        "slots" => {
            "jobs in flight are limited by `concurrency`: reckoned as if each slot were free when a job's turn comes"
        }
        "slow" => "its rate is lowered since a slow-down: reckoned as if it were back",
        "budget" => "a budget above it may keep it from going: reckoned as if none did",
        "held" => {
            "buckets are held for the workers of its route: reckoned from its turn there, at the pace at which they take"
        }
        "room" => "its route takes fewer jobs than that unless workers take some",
        "no-daemon" => "no daemon runs: reckoned as if one did",
        "wrong-type" => "a key of its route is of another type than it must be",
        other => other, // a word of a newer library
    }
}

impl WhatIfSaid {
    /// The answer to a forecast for a push of `jobs` jobs.
    pub fn of(bucket: &str, jobs: u64, what_if: WhatIf) -> Self {
        let push = |verdict: Verdict| Push { jobs, rejected: jobs.saturating_sub(verdict.accepted), verdict };
        Self {
            bucket: bucket.to_owned(),
            push: what_if.verdict.map(push),
            now: what_if.now,
            then: what_if.then,
            exact: what_if.because.is_empty(),
            because: what_if.because,
        }
    }

    /// The forecast as text for a terminal. `change` lists the settings that would change, as they were written.
    pub fn text(&self, change: &[String]) -> String {
        let mut out = format!("as it is    {}\n", forecast(&self.now));
        let mut with: Vec<String> = change.to_vec();
        with.extend(self.push.map(|push| format!("a push of {}", push.jobs)));
        if with.is_empty() {
            return out + &self.bound();
        }
        if let Some(push) = &self.push {
            out += &format!("the push    {}\n", verdict(push));
        }
        out + &format!("then        {}\n            with {}\n", forecast(&self.then), with.join(", ")) + &self.bound()
    }

    fn bound(&self) -> String {
        if self.exact {
            return "exact       to one interval, if nothing else is changed or pushed\n".to_owned();
        }
        let reasons: Vec<&str> = self.because.iter().map(|word| reason(word)).collect();
        format!("at least    {}\n", reasons.join(";\n            "))
    }
}

fn us(us: u64) -> String {
    if us == 0 { "now".to_owned() } else { format!("in {}", say(Duration::from_micros(us))) }
}

/// A forecast in words: `3 jobs wait, the last leaves in 1.2 s, with retries and delayed jobs empty in 3.2 s`.
fn forecast(forecast: &Forecast) -> String {
    let jobs = match forecast.jobs {
        0 => "no job waits".to_owned(),
        n => counted(n, "job waits", "jobs wait"),
    };
    let last = forecast.last_leaves_in_us.map_or_else(String::new, |last| format!(", the last leaves {}", us(last)));
    let empty = match forecast.empty_in_us {
        Some(empty) if forecast.last_leaves_in_us != Some(empty) => {
            format!(", with retries and delayed jobs empty {}", us(empty))
        }
        Some(_) => ", and it is empty then".to_owned(),
        None => String::new(),
    };
    jobs + &last + &empty
}

fn verdict(push: &Push) -> String {
    let verdict = &push.verdict;
    let ms = |ms: u64| say(Duration::from_millis(ms));
    let mut text = match (verdict.accepted, push.rejected) {
        (accepted, 0) => format!("all {accepted} go in"),
        (0, rejected) => counted(rejected, "job is rejected", "jobs are rejected"),
        (accepted, rejected) => {
            format!(
                "the first {} in, {} rejected",
                counted(accepted, "job goes", "jobs go"),
                counted(rejected, "is", "are")
            )
        }
    };
    if verdict.dropped > 0 {
        text += &format!(", and {} dropped for them", counted(verdict.dropped, "waiting job is", "waiting jobs are"));
    }
    if verdict.capacity == 0 {
        text += "; it is closed";
    } else if let Some(wait) = verdict.retry_after_ms {
        text += &format!("; one more may go in after {}", ms(wait));
    }
    text
}
