//! `ordered = true`: jobs of a bucket finish in the order in which they were pushed, whatever fails.

use super::settings_table::change;
use super::slots::{ack, audit, by_hand, fail, heal_all, reap, set_slots, start};
use crate::rig::{Case, MS};

#[test]
fn while_a_job_backs_off_the_next_one_runs_unless_the_bucket_keeps_their_order() {
    for (ordered, expected) in [(false, ["2", "3", "1"]), (true, ["1", "2", "3"])] {
        let mut case =
            Case::with(&format!("[[bucket]]\nmatch = '*'\nrate = '1000/s'\nconcurrency = 1\nordered = {ordered}\n"));
        let now = start(&mut case);
        case.push_at(now, "a", &["1", "2", "3"]);
        case.settle_at(now);
        let first = case.take("ready", 5);
        assert_eq!(first.len(), 1, "one at a time");
        fail(&mut case, now, "ready", &first[0], &["RETRY_IN", "5000"]);
        audit(&mut case, now);
        let (mut now, mut done) = (now, Vec::new());
        for _ in 0..6 {
            let wait = case.settle_at(now).wait_us;
            audit(&mut case, now);
            let taken = case.take("ready", 5);
            assert!(taken.len() <= 1, "one at a time");
            for entry in &taken {
                ack(&mut case, now, "ready", &[entry]);
                done.push(entry.text("job"));
            }
            if taken.is_empty() && wait > 0 {
                now += wait as u64;
            } else {
                now += 10 * MS;
            }
        }
        assert_eq!(done, expected, "ordered = {ordered}");
    }
}

#[test]
fn an_ordered_bucket_finishes_its_jobs_in_the_order_in_which_they_were_pushed_whatever_fails() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut case = Case::with(
        "[[budget]]\nmatch = 'p'\nrate = '500/s'\nconcurrency = 3\n[[bucket]]\nmatch = '*'\nrate = '1000/s'\nwithin = 'p'\nconcurrency = 1\n\
         ordered = true\nlease = '7d'\nattempts = 3\nbackoff = { initial = '20ms', max = '100ms' }\n",
    );
    let mut now = start(&mut case);
    let names = ["a", "b", "c", "d", "e"];
    let mut pushed = vec![0; names.len()];
    let mut done = vec![Vec::new(); names.len()];
    for round in 0..1_500 {
        if round < 200 && rng.u8(0..3) == 0 {
            let n = rng.usize(0..names.len());
            let jobs: Vec<String> = (0..rng.usize(1..4)).map(|k| (pushed[n] + k).to_string()).collect();
            pushed[n] += jobs.len();
            case.push_at(now, names[n], &jobs.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let wait = case.settle_at(now).wait_us;
        audit(&mut case, now);
        for entry in case.take("ready", 10) {
            let bucket = names.iter().position(|name| *name == entry.text("bucket")).expect("known");
            let finished = match rng.u8(0..8) {
                0..3 => ack(&mut case, now, "ready", &[&entry]) == 1,
                3 => fail(&mut case, now, "ready", &entry, &[]) == 2,
                4 => fail(&mut case, now, "ready", &entry, &["KEEP", "RETRY_IN", "0"]) == 2,
                5 => fail(&mut case, now, "ready", &entry, &["RETRY_IN", "70"]) == 2,
                6 => {
                    by_hand(
                        &mut case,
                        &["XCLAIM", "@", "workers", "w", "0", "#", "IDLE", "691200000", "JUSTID"],
                        &entry,
                    );
                    reap(&mut case, now);
                    case.stream("dead")
                        .iter()
                        .any(|dead| dead.text("job") == entry.text("job") && dead.text("bucket") == names[bucket])
                }
                _ => {
                    by_hand(&mut case, &["XACK", "@", "workers", "#"], &entry);
                    now = heal_all(&mut case, now);
                    true
                }
            };
            if finished {
                done[bucket].push(entry.number("job"));
            }
            audit(&mut case, now);
        }
        if round >= 200 && done.iter().map(Vec::len).sum::<usize>() == pushed.iter().sum::<usize>() {
            break;
        }
        now += if wait > 0 { (wait as u64).min(100 * MS) } else { MS };
    }
    for (bucket, done) in done.iter().enumerate() {
        let expected: Vec<u64> = (0..pushed[bucket] as u64).collect();
        assert_eq!(*done, expected, "{}", names[bucket]);
    }
}

#[test]
fn where_the_clock_steps_back_behind_an_end_that_was_announced_an_ordered_bucket_goes_on_at_that_end() {
    let mut case = Case::with("[[bucket]]\nmatch = '*'\nrate = '1/s'\nconcurrency = 1\nordered = true\n");
    let now = start(&mut case);
    case.push_at(now, "a", &["1"]);
    case.settle_at(now);
    let first = case.take("ready", 1).remove(0);
    fail(&mut case, now + 10 * MS, "ready", &first, &["RETRY_IN", "100"]);
    // It is announced, and then its end is still to come.
    case.settle_at(now + 111 * MS);
    case.push_at(now + 106 * MS, "a", &["2"]);
    for ms in [106, 107, 108, 110, 1_000, 2_000] {
        case.settle_at(now + ms * MS);
        audit(&mut case, now + ms * MS);
    }
    assert_eq!(case.jobs("ready"), ["1"], "the one that failed; its first dispatch is gone");
    assert_eq!(case.stream("ready")[0].text("attempt"), "2");
}

/// Drain as a daemon does that only obeys the replies, for so long. Replies which jobs left, finished at once.
fn obey(case: &mut Case, mut now: u64, lasting: u64) -> Vec<String> {
    let (until, mut done) = (now + lasting, Vec::new());
    while now <= until {
        let wait = case.settle_at(now).wait_us;
        audit(case, now);
        let taken = case.take("ready", 5);
        for entry in &taken {
            ack(case, now, "ready", &[entry]);
            done.push(entry.text("job"));
        }
        if taken.is_empty() && wait < 0 {
            break;
        }
        now += if taken.is_empty() { (wait as u64).max(1) } else { 1 };
    }
    done
}

#[test]
fn an_ordered_bucket_goes_on_after_a_back_off_though_the_time_of_a_delayed_job_came_meanwhile() {
    for (rate, more) in [("10/s", None), ("1/10s", None), ("1/10s", Some("3"))] {
        let mut case =
            Case::with(&format!("[[bucket]]\nmatch = '*'\nrate = '{rate}'\nconcurrency = 1\nordered = true\n"));
        let now = start(&mut case);
        case.push_at(now, "a", &["1"]);
        case.settle_at(now);
        let first = case.take("ready", 5).remove(0);
        fail(&mut case, now, "ready", &first, &["RETRY_IN", "30000"]);
        assert_eq!(case.submit_at(now, "a", "2", &["DELAY", "1"]).five[0], 1);
        case.settle_at(now + 2 * MS);
        if let Some(more) = more {
            case.push_at(now + 2 * MS, "a", &[more]);
        }
        let mut done = obey(&mut case, now + 2 * MS, 100_000 * MS);
        assert_eq!(done.remove(0), "1", "{rate} {more:?}");
        assert_eq!(done.len(), 1 + more.iter().count(), "{rate}: and all behind it: {done:?}");
    }
}

#[test]
fn an_ordered_bucket_goes_on_where_the_clock_stepped_back_behind_an_end_that_is_now_once_more() {
    let mut case = Case::with("[[bucket]]\nmatch = '*'\nrate = '1000/s'\nconcurrency = 1\nordered = true\n");
    let now = start(&mut case);
    case.push_at(now, "a", &["1", "2"]);
    case.settle_at(now);
    let first = case.take("ready", 1).remove(0);
    fail(&mut case, now, "ready", &first, &["DEAD"]);
    case.settle_at(now + 10 * MS);
    let second = case.take("ready", 1).remove(0);
    // It is put back while the other one runs, and that is announced.
    let args = [&(now + 20 * MS).to_string(), "", "", "", "", "", "1", "", "", "", "", "", "0"];
    let _: redis::Value = case.fcall("drip__dead_retry", &["dead"], &args);
    case.settle_at(now + 20 * MS);
    ack(&mut case, now + 15 * MS, "ready", &[&second]);
    assert_eq!(obey(&mut case, now + 15 * MS, 1_000 * MS), ["1"]);
}

fn set(case: &mut Case, now: u64, pattern: &str, value: &str) {
    let json = serde_json::to_string(&change(pattern, &[value], None)).expect("JSON");
    let told: (i64, Vec<String>, String) = case.fcall("drip__set", &["policy"], &[now.to_string(), json]);
    assert_eq!(told.0, 1, "{told:?}");
}

#[test]
fn a_bucket_that_is_ordered_no_more_lets_delayed_jobs_out_though_one_that_failed_backs_off() {
    let toml = |ordered| format!("[[bucket]]\nmatch = '*'\nrate = '1/s'\nconcurrency = 1\nordered = {ordered}\n");
    // The bucket stands among those that wait for a slot; or, with nothing in its queue and past its due, nowhere.
    for how in ["record", "name", "glob"] {
        for queued in [&["2"][..], &[]] {
            let mut case = Case::with(&toml(true));
            let now = start(&mut case);
            case.push_at(now, "a", &["1"]);
            case.settle_at(now);
            let first = case.take("ready", 5).remove(0);
            fail(&mut case, now, "ready", &first, &["RETRY_IN", "60000"]);
            assert_eq!(case.submit_at(now, "a", "delayed", &["DELAY", "1"]).five[0], 1);
            for job in queued {
                case.push_at(now, "a", &[job]);
            }
            case.settle_at(now + 2 * MS);
            case.settle_at(now + 5_000 * MS);
            assert_eq!(case.jobs("ready"), Vec::<String>::new(), "{how}: it waits");
            match how {
                "record" => assert_eq!(case.configure_at(&(now + 5_000 * MS).to_string(), &toml(false)), 1),
                "name" => set(&mut case, now + 5_000 * MS, "a", "ordered=false"),
                _ => set(&mut case, now + 5_000 * MS, "a*", "ordered=false"),
            }
            let mut done = obey(&mut case, now + 5_000 * MS, 20_000 * MS);
            done.sort();
            let expected: Vec<&str> = queued.iter().copied().chain(["delayed"]).collect();
            assert_eq!(done, expected, "{how}: all that could leave has left");
        }
    }
}

#[test]
fn a_bucket_that_becomes_ordered_while_a_job_backs_off_waits_for_that_one_and_goes_on() {
    let toml = |ordered| format!("[[bucket]]\nmatch = '*'\nrate = '1/s'\nconcurrency = 1\nordered = {ordered}\n");
    let mut case = Case::with(&toml(false));
    let now = start(&mut case);
    case.push_at(now, "a", &["1"]);
    case.settle_at(now);
    let first = case.take("ready", 5).remove(0);
    fail(&mut case, now, "ready", &first, &["RETRY_IN", "30000"]);
    assert_eq!(case.submit_at(now, "a", "delayed", &["DELAY", "1"]).five[0], 1);
    case.push_at(now, "a", &["2"]);
    case.settle_at(now + 2 * MS);
    case.configure_at(&(now + 2 * MS).to_string(), &toml(true));
    let done = obey(&mut case, now + 2 * MS, 100_000 * MS);
    assert_eq!((done[0].as_str(), done.len()), ("1", 3), "{done:?}");
}

#[test]
fn a_delayed_job_does_not_wait_for_the_end_of_a_back_off_that_is_gone_or_that_nobody_waits_for_any_more() {
    for is_purged in [true, false] {
        let mut case = Case::with("[[bucket]]\nmatch = '*'\nrate = '1000/s'\nconcurrency = 1\nordered = true\n");
        let now = start(&mut case);
        case.push_at(now, "a", &["1"]);
        case.settle_at(now);
        case.submit_at(now, "a", "2", &["DELAY", "5"]);
        let now = now + 20 * MS;
        case.settle_at(now);
        let first = case.take("ready", 5);
        fail(&mut case, now, "ready", &first[0], &["RETRY_IN", "600000"]);
        case.settle_at(now);
        assert_eq!(case.jobs("ready"), [""; 0], "it waits for the one that failed");
        if is_purged {
            let _: Vec<i64> = case.fcall("drip__purge", &["queue:a"], &[now.to_string(), "1".into()]);
        } else {
            set_slots(&mut case, now, "a", 2);
        }
        case.settle_at(now + MS);
        assert_eq!(case.jobs("ready"), ["2"], "purged: {is_purged}");
        audit(&mut case, now);
    }
}

#[test]
fn an_ordered_bucket_whose_retries_are_purged_has_earned_nothing_by_its_wait() {
    let mut case =
        Case::with("[[bucket]]\nmatch = '*'\nrate = '10/s'\ncatch_up = '50ms'\nconcurrency = 1\nordered = true\n");
    let now = start(&mut case);
    case.push_at(now, "a", &["1", "2", "3"]);
    case.settle_at(now);
    let first = case.take("ready", 1).remove(0);
    fail(&mut case, now, "ready", &first, &["RETRY_IN", "30000"]);
    case.settle_at(now + 100 * MS);
    let at = now + 130 * MS;
    let told: Vec<i64> = case.fcall("drip__purge", &["queue:a"], &[&at.to_string(), "1", "", "", "", "only"]);
    assert_eq!(told[1], 1, "its retry is thrown away");
    assert_eq!(case.settle_at(at).dispatched, 1, "nothing is waited for any more");
    let second = case.take("ready", 1).remove(0);
    ack(&mut case, at, "ready", &[&second]);
    assert_eq!(case.settle_at(now + 200 * MS).dispatched, 0, "the 30 ms were no lateness of the second one");
    assert_eq!(case.settle_at(at + 100 * MS).dispatched, 1);
    audit(&mut case, at + 100 * MS);
}
