//! What `dripd explain` says of a bucket that a slow-down or a quota holds.

use super::explain::{T0, beat, json_of, says};
use crate::rig::{Case, S};

#[test]
fn slowed_down_or_out_of_quota() {
    let mut case = Case::with("[[bucket]]\nmatch = 'a*'\nquota = '2/d'\n[defaults]\nrate = '1/s'\n");
    beat(&mut case, T0);
    for bucket in ["acme", "other"] {
        case.push_at(T0, bucket, &["1", "2", "3"]);
    }
    case.drain_at(T0);
    let pause = |case: &mut Case, bucket: &str, ms: &str| {
        let args = [T0.to_string(), "PAUSE".to_owned(), ms.to_owned(), "REASON".to_owned(), "HTTP 429".to_owned()];
        let _: (u64, u64) = case.fcall("drip__slow", &[&format!("queue:{bucket}")], &args);
    };
    assert_eq!(says(&mut case, T0, "acme"), ["the next job leaves in 1.0 s: acme is at its rate"]);
    pause(&mut case, "other", "30000");
    let words = "the next job leaves in 30.0 s: other is slowed down by somebody 08:00 \"HTTP 429\"";
    assert_eq!(says(&mut case, T0, "other"), [words]);
    assert_eq!(json_of(&mut case, T0, "other")["binds"], "slow");
    beat(&mut case, T0 + 30 * S);
    assert_eq!(says(&mut case, T0 + 30 * S, "other"), ["the next job leaves now: nothing holds other back"]);
    case.drain_at(T0 + S);
    beat(&mut case, T0 + 59 * S);
    let words = "the next job leaves in 15 h 59 m: acme has used up its quota of 2/d";
    assert_eq!(says(&mut case, T0 + 59 * S, "acme"), [words]);
    assert_eq!(json_of(&mut case, T0 + 59 * S, "acme")["binds"], "quota");
    pause(&mut case, "acme", "30000");
    assert_eq!(says(&mut case, T0 + 59 * S, "acme"), [words], "what ends last");
}

#[test]
fn a_job_that_costs_more_than_its_quota_has_left() {
    let quota = "quota = '30/h'\n";
    let mut case = Case::with(&format!(
        "[defaults]\nrate = '100/s'\n[[budget]]\nmatch = 'p'\n{quota}[[bucket]]\nmatch = 'own'\n{quota}\
         [[bucket]]\nmatch = 'below'\nwithin = 'p'\n"
    ));
    for bucket in ["own", "below"] {
        for n in 0..6 {
            case.submit_at(T0, bucket, &n.to_string(), &["COST", "7"]);
        }
    }
    for n in 0..20 {
        case.drain_at(T0 + n * S);
    }
    let now = T0 + 20 * S;
    beat(&mut case, now);
    for (bucket, node) in [("own", ": own "), ("below", "of budget p leaves")] {
        let said = says(&mut case, now, bucket).pop().expect("a reason");
        let quota = "has 2 left of its quota of 30/h, and its next job costs 7";
        assert!(said.contains(node) && said.contains(quota), "{said}");
        assert_eq!(json_of(&mut case, now, bucket)["binds"], "quota", "{said}");
    }
}
