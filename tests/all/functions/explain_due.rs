//! What `dripd explain` says beside `due`: a bucket that waits by order is not late.

use super::explain::{T0, beat, explain_with, stop};
use crate::rig::{Case, S};

/// What stands beside `due`.
fn due(case: &mut Case, now: u64, bucket: &str) -> Option<String> {
    beat(case, now);
    let text = explain_with(case, now, bucket, Some(true)).text();
    text.lines().find_map(|line| line.strip_prefix("due")).map(|due| due.trim().to_owned())
}

#[test]
fn a_bucket_that_waits_by_order_is_not_late_and_one_that_nothing_stops_is() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/s'\n[limits]\nmax_ready = 3\n[[budget]]\nmatch = 'p'\nrate = '1/h'\n\
         [[bucket]]\nmatch = 'below'\nwithin = 'p'\n[[bucket]]\nmatch = 'slots'\nconcurrency = 1\n\
         [[bucket]]\nmatch = 'order'\nconcurrency = 1\nordered = true\nbackoff = { initial = '1h', max = '1h' }\n",
    );
    for bucket in ["acme", "slots", "order", "below", "mail"] {
        case.push_at(T0, bucket, &["1", "2"]);
    }
    stop(&mut case, T0, "pause", "acme", None, "");
    assert_eq!(
        due(&mut case, T0, "acme").as_deref(),
        Some("now, but it is paused since 08:00"),
        "nobody has looked at it yet"
    );
    let mut now = T0;
    for _ in 0..4 {
        case.settle_at(now);
        for entry in case.take("ready", 10) {
            if entry.text("bucket") == "order" {
                let _: i64 = case.fcall("drip__fail", &["ready"], &[now.to_string(), entry.id]);
            }
        }
        now += S / 10;
    }
    let now = T0 + 61 * S;
    case.lpush("mail", &["x"; 20]);
    case.wake_at(now, &["mail"]);
    for at in 0..8 {
        case.settle_at(now + at * S);
    }
    let now = now + 10 * S;
    for (bucket, said) in [
        ("acme", "now, but it is paused since 08:00"),
        ("slots", "now, but no slot is free"),
        ("order", "now, but a failed job goes first"),
        ("below", "now, but it waits for its share of budget p"),
        ("mail", "now, but it is held for the workers of its route"),
    ] {
        assert_eq!(due(&mut case, now, bucket).as_deref(), Some(said), "{bucket}");
    }
    case.push_at(now, "late", &["1"]);
    assert_eq!(due(&mut case, now, "late").as_deref(), Some("now"));
    assert_eq!(due(&mut case, now, "nothing"), None);
    case.take("ready", 10);
    case.settle_at(now);
    case.push_at(now, "late", &["2"]);
    assert_eq!(due(&mut case, now, "late").as_deref(), Some("in 1.0 s"));
    assert_eq!(due(&mut case, now + 3 * S, "late").as_deref(), Some("2.0 s ago"));
}
