//! Told limits, and jobs that are out when a node is told of for the first time: on whatever route they are, and however many routes there are.

use crate::rig::{Case, T0};

use super::flow::{at, jobs, run};

/// What is left of `n` that the other side lets through, by what leaves until long after.
fn leaves(case: &mut Case, bucket: &str, streams: &[&str], n: usize) -> usize {
    let before: usize = streams.iter().map(|stream| case.stream(stream).len()).sum();
    let (now, text) = (at(10, 0), n.to_string());
    assert_eq!(
        case.fcall::<i64>("drip__told", &[&format!("queue:{bucket}")], &[now.to_string().as_str(), &text, "3600000"]),
        1
    );
    run(case, now, at(30, 0));
    streams.iter().map(|stream| case.stream(stream).len()).sum::<usize>() - before
}

#[test]
fn jobs_that_are_out_on_a_route_that_is_no_longer_the_bucket_s_are_counted() {
    let toml = |route: &str| {
        format!(
            "[defaults]\nrate = '10/s'\n[limits]\nready_window = 'off'\n[[bucket]]\nmatch = 'a'\nroute = '{route}'\n"
        )
    };
    let mut case = Case::with(&toml("old"));
    case.push_at(T0, "a", &jobs(3));
    run(&mut case, T0, at(1, 0));
    assert_eq!(case.take("ready:old", 2).len(), 2, "two in hand, and one that is undelivered");
    case.configure(&toml("new"));
    case.push_at(at(2, 0), "a", &jobs(100));
    run(&mut case, at(2, 0), at(2, 1)); // one leaves at once
    assert_eq!((case.stream("ready:old").len(), case.stream("ready:new").len()), (3, 1));
    assert_eq!(leaves(&mut case, "a", &["ready:new"], 6), 2, "four of the six are out");
}

#[test]
fn jobs_of_a_budget_that_are_out_on_any_of_many_routes_are_counted() {
    let bucket = |n| format!("[[bucket]]\nmatch = 'b{n}'\nwithin = 'api'\nroute = 'r{n}'\n");
    let buckets = (0..40).map(bucket).collect::<Vec<_>>().concat();
    let toml = format!(
        "[defaults]\nrate = '10/s'\n[limits]\nready_window = 'off'\n[[budget]]\nmatch = 'api'\nrate = '1000/s'\ntold = 'stop'\n{buckets}\
         [[bucket]]\nmatch = 'a'\nwithin = 'api'\n"
    );
    let mut case = Case::with(&toml);
    for n in 0..40 {
        case.push_at(T0, &format!("b{n}"), &["1"]);
    }
    run(&mut case, T0, at(1, 0));
    case.push_at(at(10, 0), "a", &jobs(100));
    let how = r#"{"node": "{api}", "remaining": 46, "reset_ms": 3600000}"#;
    assert_eq!(case.fcall::<i64>("drip__told_node", &["policy"], &[&at(10, 0).to_string(), how]), 1);
    run(&mut case, at(10, 0), at(30, 0));
    assert_eq!(case.stream("ready").len(), 6, "forty of the 46 are out");
}

#[test]
fn a_route_with_very_many_jobs_hides_none_that_are_out_on_another_one() {
    let toml = "[defaults]\nrate = '10/s'\n[limits]\nready_window = 'off'\n[[budget]]\nmatch = 'api'\nrate = '1000/s'\ntold = 'stop'\n\
                [[bucket]]\nmatch = 'a'\nwithin = 'api'\n[[bucket]]\nmatch = 'z'\nwithin = 'api'\nroute = 'z'\n";
    let mut case = Case::with(toml);
    case.push_at(T0, "z", &["1"]);
    run(&mut case, T0, at(1, 0));
    let key = case.key("ready");
    let mut add = redis::pipe();
    for _ in 0..30_000 {
        add.cmd("XADD").arg(&key).arg("*").arg("job").arg("theirs").ignore();
    }
    add.exec(&mut case.redis).expect("they are added");
    let how = r#"{"node": "{api}", "remaining": 1, "reset_ms": 3600000}"#;
    assert_eq!(case.fcall::<i64>("drip__told_node", &["policy"], &[&at(10, 0).to_string(), how]), 1);
    case.push_at(at(10, 0), "z", &jobs(3));
    run(&mut case, at(10, 0), at(30, 0));
    assert_eq!(case.stream("ready:z").len(), 1, "the one of it is out");
}
