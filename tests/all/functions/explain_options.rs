//! What `explain` and the rows say of delayed jobs, of costs that are paid, and of the policy keys of jobs with options.

use dripd::store::snapshots::{BucketSnapshot, Cause, Now, Why};
use redis::Value;
use serde_json::json;

use super::explain::{T0, beat, json_of, says};
use crate::rig::{Case, S};

fn why(case: &mut Case, now: u64, bucket: &str) -> (Why, u64) {
    let reply: Value = case.fcall("drip__rows", &["policy"], &[now.to_string(), bucket.to_owned()]);
    let row = Now::<BucketSnapshot>::read(reply).expect("rows").rows.remove(0);
    (row.why, row.row.due_in_us)
}

#[test]
fn delayed_jobs_are_told_apart_from_failed_ones() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\nbackoff = { initial = '30s', max = '30s' }\n");
    beat(&mut case, T0);
    case.settle_at(T0);
    case.submit_at(T0, "b", "later", &["DELAY", "20000"]);
    case.submit_at(T0, "b", "much later", &["DELAY", "90000"]);
    assert_eq!(
        says(&mut case, T0, "b").last().expect("it binds"),
        "the next job leaves in 20.0 s: 2 delayed jobs wait for their time in b"
    );
    let said = json_of(&mut case, T0, "b");
    assert_eq!((&said["binds"], &said["retries"]["waiting"]), (&json!("delayed"), &json!(0)));
    assert_eq!(said["delayed"], json!({ "waiting": 2, "ended": 0, "next_in_us": 20 * S }));
    assert_eq!(why(&mut case, T0, "b"), (Why::new(Cause::Delayed, ""), 20 * S));
    case.submit_at(T0, "b", "fails", &[]);
    case.settle_at(T0);
    let entry = case.take("ready", 1).remove(0).id;
    let failed: i64 = case.fcall("drip__fail", &["ready"], &[T0.to_string(), entry, "RETRY_IN".into(), "10000".into()]);
    assert_eq!(failed, 1);
    let said = json_of(&mut case, T0 + 2 * S, "b");
    assert_eq!(
        (&said["binds"], &said["retries"]["waiting"], &said["delayed"]["waiting"]),
        (&json!("backing-off"), &json!(1), &json!(2))
    );
    assert_eq!(said["retries"]["next_in_us"], 8 * S, "that of the failed job alone");
    assert_eq!(why(&mut case, T0 + 2 * S, "b"), (Why::new(Cause::BackingOff, ""), 8 * S));
}

#[test]
fn a_cost_that_is_paid_and_a_job_rate_are_named() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/s'\n[[bucket]]\nmatch = 'both'\nrate = '100/s'\njob_rate = '1/m'\nttl = '5m'\ndedup = '1h'\n",
    );
    beat(&mut case, T0);
    case.settle_at(T0);
    for bucket in ["b", "both", "plain"] {
        let cost = if bucket == "plain" { "1" } else { "40" };
        case.submit_at(T0, bucket, "1", &["COST", cost]);
        case.submit_at(T0, bucket, "2", &["TTL", "300000"]);
    }
    case.settle_at(T0);
    let mut last = |bucket: &str| says(&mut case, T0, bucket).last().expect("it binds").clone();
    assert_eq!(last("b"), "the next job leaves in 40.0 s: b is at its rate: its last job was charged 40");
    assert_eq!(last("both"), "the next job leaves in 60.0 s: both is at its job_rate");
    assert_eq!(last("plain"), "the next job leaves in 1.0 s: plain is at its rate");
    let said = json_of(&mut case, T0, "both");
    let limits = said["chain"][0]["policy"].as_array().expect("a list");
    let value = |key: &str| limits.iter().find(|row| row["key"] == key).map(|row| row["value"].as_str().expect("text"));
    assert_eq!((value("job_rate"), value("dedup"), value("ttl")), (Some("1/m"), Some("1h"), Some("5m")));
    let said = json_of(&mut case, T0, "b");
    let limits = said["chain"][0]["policy"].as_array().expect("a list");
    assert!(!limits.iter().any(|row| ["job_rate", "dedup", "ttl"].contains(&row["key"].as_str().expect("a word"))));
}
