//! What `promtool` finds wrong with what is measured, and with the rules for it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::door::Door;
use crate::needs;
use crate::rig::{Server, eventually};
use crate::shell::said;

const BUSY: &str = "[defaults]\nrate = '20/s'\n[[budget]]\nmatch = 'all'\nrate = '20/s'\n\
                    [[bucket]]\nmatch = 'mail:*'\nroute = 'mail'\nwithin = 'all'\n";

fn promtool(args: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut command = Command::new("promtool");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool runs");
    child.stdin.take().expect("a pipe").write_all(input).expect("taken");
    said(&child.wait_with_output().expect("it ends"))
}

fn promtool_finds_nothing_wrong_with_the_metrics_and_the_rules_alert_as_they_should() {
    needs::one_of(&["promtool"], "apt-get install prometheus");
    let server = Server::start(&[]);
    let mut door = Door::on(&server, BUSY);
    door.shell.case.lpush("mail:a", &["x"; 50]);
    eventually("budgets are told of", || {
        let answer = door.get("/metrics");
        String::from_utf8_lossy(&answer.body).contains("dripd_budget_utilization_ratio{")
    });
    for path in ["/metrics", "/metrics/buckets?top=5"] {
        let answer = door.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(promtool(&["check", "metrics"], &answer.body), (0, String::new(), String::new()), "{path}");
    }
    let (code, out, err) = promtool(&["test", "rules", "examples/monitoring/alerts_test.yml"], b"");
    assert_eq!(code, 0, "{out}{err}");
}

tests! {
    promtool_finds_nothing_wrong_with_the_metrics_and_the_rules_alert_as_they_should,
}
