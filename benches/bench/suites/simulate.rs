//! simulate: how much traffic `dripd simulate` runs through the functions in a second.

use std::io;
use std::process::Command;
use std::time::Instant;

use super::lab::DRIPD;
use super::measure::Spread;
use super::report::{Bound, Report, Row};

/// What is simulated: in words, the configuration, the traffic, who takes it, and for how long.
const WORLDS: [(&str, &str, &str, &str, &str); 5] = [
    ("an hour of bursts, most refused by full buckets", "", "sms:*: 200 buckets, 2/s, bursts of 50", "20x150ms", "1h"),
    ("steady jobs", "", "b*: 200 buckets, 10/s, poisson", "400x150ms", "2m"),
    ("bursts of 50", "", "b*: 200 buckets, 2/s, bursts of 50", "100x150ms", "10m"),
    ("20,000/s", "rate = '200/s'\n", "b*: 200 buckets, 100/s", "4000x150ms", "15s"),
    (
        "bursts below a budget",
        "within = 'all'\n[[budget]]\nmatch = 'all'\nrate = '450/s'\n",
        "b*: 200 buckets, 2/s, bursts of 50",
        "100x150ms",
        "10m",
    ),
];

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let home = tempfile::tempdir()?;
    for (words, policy, load, workers, lasts) in WORLDS {
        let config = home.path().join("config.toml");
        std::fs::write(&config, format!("[defaults]\n{policy}"))?;
        let mut speeds = Vec::new();
        for _ in 0..3 {
            let mut command = Command::new(DRIPD);
            command.arg("--config").arg(&config).args(["simulate", "--json", "--load", load]);
            command.args(["--workers", workers, "--for", lasts]);
            let since = Instant::now();
            let output = command.output()?;
            let took = since.elapsed().as_secs_f64();
            if !output.status.success() {
                return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
            }
            let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
            speeds.push(said["report"]["pushed"].as_f64().unwrap_or(0.0) / took);
        }
        let row = Row::of("simulate", format!("jobs simulated, {words}"), Spread::of(&speeds), "/s");
        report.add(row.value_goal(Bound::AtLeast(30_000.0)));
    }
    Ok(())
}
