//! Buckets: both doors, the verdict, overflow, levels, the rejected stream, names, and what is left of an idle one.

use crate::rig::{Case, Drained, MS, S, T0};

#[test]
fn an_atomic_push_answers_accepted_depth_capacity_retry_after_and_eta() {
    let mut case = Case::with("[defaults]\nrate = '5/s'\ncapacity = 3\n");
    assert_eq!(case.push_at(T0, "b", &["a", "b"]), [2, 2, 3, -1, 200]);
    assert_eq!(case.push_at(T0, "b", &["c", "d", "e"]), [1, 3, 3, 1, 400]);
    assert_eq!(case.push_at(T0, "b", &["f"]), [0, 3, 3, 1, -1]);
    assert_eq!(case.waiting("b"), ["a", "b", "c"]);
    assert_eq!(case.drain_at(T0).dispatched, 1);
    assert_eq!(case.push_at(T0 + 50_001, "b", &["g", "h"]), [1, 3, 3, 150, 550]);
    assert_eq!(case.peek_at(T0 + 50_001, "b"), [0, 3, 3, 150, 150]);
    assert_eq!(case.waiting("b"), ["b", "c", "g"]);
    assert!(case.stream("rejected").is_empty(), "a rejected atomic push leaves nothing behind");
}

#[test]
fn peek_tells_without_changing_anything() {
    let mut case = Case::with("[defaults]\nrate = '5/s'\ncapacity = 3\n");
    assert_eq!(case.peek_at(T0, "b"), [0, 0, 3, -1, -1]);
    case.lpush("b", &["a", "b", "c", "d"]);
    assert_eq!(case.peek_at(T0, "b"), [0, 3, 3, 1_000, 0], "no daemon has looked at them yet");
    assert_eq!(case.waiting("b").len(), 4);
    let key = case.queue("b");
    let reply: Vec<i64> = case.cmd(&["FCALL_RO", "drip_peek", "1", &key]);
    assert_eq!(reply[..3], [0, 3, 3]);
}

#[test]
fn without_a_record_the_defaults_hold() {
    let mut case = Case::new();
    assert_eq!(case.push_at(T0, "b", &["a", "b"]), [2, 2, 1_000, -1, 100]);
    case.settle_at(T0);
    assert_eq!(case.stream("ready")[0].number("lease_ms"), 60_000);
}

#[test]
fn a_plain_push_is_cut_newest_first_as_its_reply_said() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 5\n");
    case.settle_at(T0);
    assert_eq!(case.lpush("b", &["1", "2", "3"]), 3);
    assert_eq!(case.lpush("b", &["4", "5", "6", "7"]), 7, "L = 7, C = 5: the newest two are rejected");
    let woken = case.wake_at(T0, &["b"]);
    assert_eq!((woken.dispatched, woken.rejected), (1, 2));
    assert_eq!(case.waiting("b"), ["2", "3", "4", "5"]);
    let rejected = case.stream("rejected");
    assert_eq!(rejected.iter().map(|e| e.text("job")).collect::<Vec<_>>(), ["6", "7"], "the oldest of the cut first");
    assert!(rejected.iter().all(|e| e.text("reason") == "full" && e.text("bucket") == "b"));
}

#[test]
fn every_step_that_takes_a_job_cuts_the_queue_first() {
    // The place that a dispatch frees must not save a job that its producer was told is rejected.
    for step in ["drain", "wake", "push"] {
        let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 2\n");
        case.push_at(T0, "b", &["1", "2"]);
        case.settle_at(T0);
        assert_eq!(case.lpush("b", &["3", "4"]), 3, "L = 3, C = 2: 4 is rejected");
        match step {
            "drain" => drop(case.settle_at(T0 + S)),
            "wake" => drop(case.wake_at(T0 + S, &["b"])),
            _ => assert_eq!(case.push_at(T0 + S, "b", &["5"])[..2], [0, 2]),
        }
        assert_eq!(case.jobs("rejected"), ["4"], "{step}");
        case.settle_at(T0 + S);
        assert_eq!(case.jobs("ready"), ["1", "2"], "{step}");
        assert_eq!(case.waiting("b"), ["3"], "{step}");
    }
}

#[test]
fn a_queue_that_a_wake_names_twice_is_cut_once() {
    let mut case = Case::with("[defaults]\ncapacity = 10\nrate = '1/h'\n");
    case.lpush("b", &["x"; 15]);
    assert_eq!(case.wake_at(T0, &["b", "b"]).rejected, 5);
    assert_eq!(case.cmd::<u64>(&["LLEN", &case.queue("b")]), 9, "and one job left");
}

#[test]
fn of_a_large_cut_the_batch_oldest_get_an_entry_and_the_rest_one_with_their_count() {
    let mut case = Case::with("[defaults]\ncapacity = 1\n[limits]\nbatch = 3\n");
    case.lpush("b", &["0", "1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(case.wake_at(T0, &["b"]).rejected, 7);
    let rejected = case.stream("rejected");
    assert_eq!(rejected.len(), 4);
    assert_eq!(rejected[..3].iter().map(|e| e.text("job")).collect::<Vec<_>>(), ["1", "2", "3"]);
    assert_eq!((rejected[3].text("count"), rejected[3].text("reason")), ("4".to_owned(), "full".to_owned()));
    assert!(!rejected[3].fields.contains_key("job"));
}

#[test]
fn the_rejected_stream_is_capped_and_keeps_4_kib_of_a_job() {
    let mut case = Case::with("[defaults]\ncapacity = 1\n[limits]\nrejected_keep = 5\n");
    let long = "x".repeat(5_000);
    case.lpush("b", &["0", "1", "2", "3", "4", "5", &long]);
    case.wake_at(T0, &["b"]);
    let rejected = case.stream("rejected");
    assert_eq!(rejected.len(), 5);
    assert_eq!((rejected[4].text("job").len(), rejected[4].number("bytes")), (4_096, 5_000));
    assert!(!rejected[3].fields.contains_key("bytes"));
}

#[test]
fn drop_oldest_accepts_everything_and_drops_the_oldest() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 3\noverflow = 'drop-oldest'\n");
    case.settle_at(T0);
    assert_eq!(case.push_at(T0, "b", &["1", "2", "3"]), [3, 3, 3, -1, 2_000]);
    assert_eq!(case.push_at(T0, "b", &["4", "5"]), [2, 3, 3, -1, 2_000]);
    assert_eq!(case.waiting("b"), ["3", "4", "5"]);
    assert_eq!(case.lpush("b", &["6"]), 4);
    case.wake_at(T0, &["b"]);
    assert_eq!(case.jobs("rejected"), ["1", "2", "3"]);
    assert!(case.stream("rejected").iter().all(|e| e.text("reason") == "dropped"));
    assert_eq!(case.jobs("ready"), ["4"]);
    assert_eq!(case.push_at(T0, "b", &["7", "8", "9", "10", "11"])[..3], [5, 3, 3]);
    assert_eq!(case.waiting("b"), ["9", "10", "11"]);
}

#[test]
fn a_capacity_lowered_under_a_full_queue_throws_nothing_out() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 10\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["1", "2", "3", "4", "5", "6"]);
    assert_eq!(case.configure("[defaults]\nrate = '1/s'\ncapacity = 3\n"), 1);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    assert_eq!(case.waiting("b").len(), 5);
    assert_eq!(case.push_at(T0, "b", &["7"])[..3], [0, 5, 3], "it accepts nothing until it is below");
    assert_eq!(case.lpush("b", &["8"]), 6);
    assert_eq!(case.wake_at(T0, &["b"]).rejected, 1, "and its level is what it holds");
    for (second, left) in [(1, 4), (2, 3), (3, 2)] {
        case.settle_at(T0 + second * S);
        assert_eq!(case.waiting("b").len(), left, "the level falls with each job that leaves");
        case.lpush("b", &["9"]);
        let rejected = case.wake_at(T0 + second * S, &["b"]).rejected;
        assert_eq!(rejected, i64::from(left >= 3), "at {left}");
    }
    assert_eq!(case.jobs("ready"), ["1", "2", "3", "4"]);
    let level = case.key("level");
    assert_eq!(case.cmd::<i64>(&["EXISTS", &level]), 0, "no level is kept once it is below");
}

#[test]
fn a_change_reaches_every_bucket_in_bounded_batches_and_reanchors_the_due() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n[limits]\nbatch = 10\n");
    case.settle_at(T0);
    let names: Vec<_> = (0..300).map(|n| format!("b{n}")).collect();
    for name in &names {
        case.push_at(T0, name, &["1", "2"]);
    }
    assert_eq!(case.settle_at(T0).dispatched, 300);
    assert_eq!(case.due("b7"), Some(T0 + S));
    case.configure("[defaults]\nrate = '10/s'\n[limits]\nbatch = 10\n");
    let settled = case.settle_at(T0 + 10 * MS);
    assert_eq!(
        settled,
        Drained { wait_us: 90 * MS as i64, dispatched: 0, rejected: 0 },
        "last dispatch + the new interval"
    );
    assert!(names.iter().all(|name| case.due(name) == Some(T0 + 100 * MS)));
    assert!(!case.keys().contains(&"reached".to_owned()));
    case.configure("[defaults]\nrate = '1/m'\n[limits]\nbatch = 10\n");
    assert_eq!(case.settle_at(T0 + 100 * MS).dispatched, 0, "slower takes hold before anything leaves");
    assert_eq!(case.due("b7"), Some(T0 + 60 * S));
}

#[test]
fn a_faster_rate_makes_up_for_nothing_and_counters_outlive_a_change() {
    let mut case = Case::with("[defaults]\nrate = '1/d'\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["1", "2", "3"]);
    case.settle_at(T0);
    let later = T0 + 43_200 * S;
    assert_eq!(case.configure("[defaults]\nrate = '1/s'\n"), 1);
    case.settle_at(later);
    let second = case.stream("ready").remove(1);
    assert_eq!(
        (second.number("due_us"), second.number("at_us")),
        (later, later),
        "due by the change, not half a day late"
    );
    case.settle_at(later + 2 * S);
    let stats = case.key("stats");
    assert_eq!(case.cmd::<i64>(&["HGET", &stats, "dispatched"]), 3);
}

#[test]
fn while_held_the_times_are_reckoned_as_if_that_ended_now() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 10\n[limits]\nmax_ready = 1\n");
    case.settle_at(T0);
    case.push_at(T0, "a", &["1"]);
    case.settle_at(T0);
    case.push_at(T0, "b", &["1"; 9]);
    case.settle_at(T0);
    assert_eq!(case.push_at(T0 + 3_600 * S, "b", &["1"]), [1, 10, 10, -1, 9_000]);
    assert_eq!(case.peek_at(T0 + 3_600 * S, "b"), [0, 10, 10, 1_000, 0], "but workers take a moment");
}

#[test]
fn a_second_change_waits_until_the_first_has_spread() {
    let mut case = Case::with("[limits]\nbatch = 1\n");
    case.settle_at(T0);
    for n in 0..200 {
        case.push_at(T0, &format!("b{n}"), &["1", "2"]);
    }
    assert_eq!(case.configure("[defaults]\ncapacity = 7\n[limits]\nbatch = 1\n"), 1);
    assert_eq!(case.configure("[defaults]\ncapacity = 8\n[limits]\nbatch = 1\n"), -1);
    assert_eq!(case.configure("[defaults]\ncapacity = 7\n[limits]\nbatch = 1\n"), 0, "the same again is no change");
    case.settle_at(T0);
    assert_eq!(case.configure("[defaults]\ncapacity = 8\n[limits]\nbatch = 1\n"), 1);
}

#[test]
fn a_policy_is_found_by_glob_on_bytes_and_the_first_match_wins() {
    let globs = ["sms:*", "*:vip", "h?llo", "a[0-9x]c", "a[^0-9]d", "*b*b*c", "lit\\\\*", "Zü*", "[z-a]!"];
    let mut toml = "[defaults]\ncapacity = 99\n".to_owned();
    for (n, glob) in globs.iter().enumerate() {
        toml += &format!("[[bucket]]\nmatch = \"{glob}\"\ncapacity = {}\n", n + 1);
    }
    let mut case = Case::with(&toml);
    for (name, capacity) in [
        ("sms:acme", 1),
        ("sms:vip", 1),
        ("mail:vip", 2),
        ("hello", 3),
        ("hxllo", 3),
        ("hllo", 99),
        ("a5c", 4),
        ("axc", 4),
        ("ayc", 99),
        ("ayd", 5),
        ("a5d", 99),
        ("xxbyybzzc", 6),
        ("xxbyyzzc", 99),
        ("lit*", 7),
        ("litx", 99),
        ("Zürich", 8),
        ("m!", 9),
        ("sms", 99),
        (":vip", 2),
        ("a:b:vip", 2),
    ] {
        assert_eq!(case.peek_at(T0, name)[2], capacity, "{name}");
    }
}

#[test]
fn a_glob_made_to_be_slow_is_not() {
    let mut case = Case::with(&format!("[[bucket]]\nmatch = '{}b'\ncapacity = 1\n", "*a".repeat(40)));
    let since = std::time::Instant::now();
    assert_eq!(case.peek_at(T0, &"a".repeat(200))[2], 1_000);
    assert!(since.elapsed().as_millis() < 500);
}

#[test]
fn nothing_is_left_of_an_idle_bucket() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    case.settle_at(T0);
    let before = case.keys();
    case.push_at(T0, "a", &["1"]);
    case.lpush("b", &["1"]);
    case.wake_at(T0, &["b"]);
    case.settle_at(T0);
    assert!(case.due("a").is_some() && case.due("b").is_some(), "empty, but not past its due");
    assert_eq!(case.settle_at(T0 + 100 * MS).wait_us, case.drain_at(T0 + 100 * MS).wait_us);
    let mut after = case.keys();
    after.retain(|key| key != "stats");
    assert_eq!(after, before);
    let fresh = Case::with("").drain_at(T0).wait_us;
    assert!(fresh == -1 || fresh == 0);
}

#[test]
fn a_wake_writes_nothing_where_nothing_is_to_be_done() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\n");
    case.push_at(T0, "b", &["1", "2"]);
    case.settle_at(T0);
    case.settle_at(T0 + 2 * S);
    let dirty = |case: &mut Case| {
        let info: String = case.cmd(&["INFO", "persistence"]);
        info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:")).map(str::to_owned)
    };
    // Other cases write meanwhile, so ask until two answers in a row frame a wake without a write.
    crate::rig::eventually("a wake without a write", || {
        let before = dirty(&mut case);
        let woken = case.wake_at(T0 + 3 * S, &["b", "not there"]);
        assert_eq!((woken.dispatched, woken.wait_us), (0, (3_600 * S - 3 * S) as i64));
        dirty(&mut case) == before
    });
}

#[test]
fn a_flood_of_rejected_pushes_grows_neither_keys_nor_the_queue() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\ncapacity = 1\n");
    case.push_at(T0, "b", &["1"]);
    let before = case.keys();
    for _ in 0..1_000 {
        assert_eq!(case.push_at(T0, "b", &["x", "y"])[0], 0);
    }
    assert_eq!(case.keys(), before);
    case.settle_at(T0 + 2 * S);
    let stats = case.key("stats");
    assert_eq!(case.cmd::<i64>(&["HGET", &stats, "rejected"]), 2_000, "but they are counted");
}

#[test]
fn jobs_of_any_bytes_and_sizes_pass_unchanged_and_too_large_ones_take_no_slot() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    case.settle_at(T0);
    let queue = case.queue("b");
    let mib = vec![0xAB_u8; 1_048_576];
    let over = vec![0xCD_u8; 1_048_577];
    let binary: Vec<u8> = (0..=255).collect();
    for job in [&b""[..], &binary, &over, &mib] {
        redis::cmd("LPUSH").arg(&queue).arg(job).exec(&mut case.redis).expect("LPUSH");
    }
    case.wake_at(T0, &["b"]);
    for second in 1..=3 {
        case.settle_at(T0 + second * S);
    }
    let ready: Vec<_> =
        case.stream("ready").into_iter().map(|e| (e.number("due_us") - T0, e.fields["job"].clone())).collect();
    assert_eq!(ready, [(0, vec![]), (S, binary), (2 * S, mib)]);
    let rejected = case.stream("rejected");
    assert_eq!((rejected[0].text("reason"), rejected[0].number("bytes")), ("too_large".to_owned(), 1_048_577));
    let args = [T0.to_string().into_bytes(), b"fits".to_vec(), over];
    assert_eq!(case.refusal("drip__push", &["queue:c"], &args), "TOOLARGE");
    assert!(!case.keys().contains(&"queue:c".to_owned()));
}

#[test]
fn every_public_function_refuses_bad_input_with_its_code_and_changes_nothing() {
    let mut case = Case::with("");
    let (wrong, list) = (case.key("queue:wrong"), case.key("ready:wrong"));
    let _: String = case.cmd(&["SET", &wrong, "x"]);
    let _: i64 = case.cmd(&["LPUSH", &list, "x"]);
    let before = case.keys();
    let long = format!("queue:{}", "x".repeat(201));
    for key in ["queue:", "queue:a{b}", "queue:a\nb", "queue:\u{85}", long.as_str(), "other", "ready"] {
        assert_eq!(case.refusal("drip_push", &[key], &["x"]), "BADBUCKET", "{key:?}");
        assert_eq!(case.refusal("drip_peek", &[key], &[] as &[&str]), "BADBUCKET", "{key:?}");
    }
    let invalid: Result<redis::Value, _> =
        redis::cmd("FCALL").arg("drip_push").arg(1).arg(b"t:queue:\xff\xfe").arg("x").query(&mut case.redis);
    assert_eq!(invalid.expect_err("not UTF-8").code(), Some("BADBUCKET"));
    assert_eq!(case.refusal("drip_push", &["queue:a"], &[] as &[&str]), "BADARG");
    assert_eq!(case.refusal("drip_push", &["queue:a", "queue:b"], &["x"]), "BADARG");
    assert_eq!(case.refusal("drip_push", &[], &["x"]), "BADARG");
    assert_eq!(case.refusal("drip_peek", &["queue:a"], &["x"]), "BADARG");
    assert_eq!(case.refusal("drip_push", &["queue:a"], &vec!["x"; 1_001]), "TOOMANY");
    assert_eq!(case.refusal("drip_push", &["queue:wrong"], &["x"]), "WRONGTYPE");
    assert_eq!(case.refusal("drip_peek", &["queue:wrong"], &[] as &[&str]), "WRONGTYPE");
    for name in ["drip_ack", "drip_fail"] {
        assert_eq!(case.refusal(name, &["ready"], &[] as &[&str]), "BADARG", "{name}");
        assert_eq!(case.refusal(name, &["other"], &["1-1"]), "BADARG", "{name}");
        assert_eq!(case.refusal(name, &["ready", "ready:b"], &["1-1"]), "BADARG", "{name}");
        assert_eq!(case.refusal(name, &["ready:wrong"], &["1-1"]), "WRONGTYPE", "{name}");
        for id in
            ["", "x", "1-", "-1", "1-1-1", "0x1-1", "18446744073709551616-1", "1-99999999999999999999", "1.5-1", " 1-1"]
        {
            assert_eq!(case.refusal(name, &["ready"], &[id]), "BADARG", "{name} {id:?}");
        }
    }
    assert_eq!(case.refusal("drip_ack", &["ready"], &vec!["1-1"; 1_001]), "TOOMANY");
    for bad in [
        &["RETRY_IN"][..],
        &["RETRY_IN", "x"],
        &["RETRY_IN", "-1"],
        &["RETRY_IN", "1e3"],
        &["RETRY_IN", "0x10"],
        &["RETRY_IN", "99999999999999"],
        &["REASON"],
        &["SOON"],
        &[""],
    ] {
        let args: Vec<&str> = std::iter::once("1-1").chain(bad.iter().copied()).collect();
        assert_eq!(case.refusal("drip_fail", &["ready"], &args), "BADARG", "{bad:?}");
    }
    assert_eq!(case.keys(), before);
}

#[test]
fn a_queue_of_the_wrong_type_or_name_harms_no_other() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    case.settle_at(T0);
    case.push_at(T0, "turned", &["x"]);
    for name in ["queue:turned", "queue:never"] {
        let key = case.key(name);
        let _: i64 = case.cmd(&["DEL", &key]);
        let _: String = case.cmd(&["SET", &key, "x"]);
    }
    case.lpush("good", &["1"]);
    case.lpush("bad{name}", &["1"]);
    let woken = case.wake_at(T0, &["turned", "never", "bad{name}", "good"]);
    assert_eq!(woken.dispatched, 1);
    assert_eq!(case.jobs("ready"), ["1"]);
    assert_eq!(case.settle_at(T0 + 2 * S).wait_us, -1, "and nothing spins");
    assert_eq!(case.waiting("bad{name}"), ["1"], "left alone");
}
