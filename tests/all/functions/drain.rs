//! Drain: order, bounds of a call, fairness, backpressure, and a clock that steps.

use crate::rig::{Case, MS, S, Server, T0};

#[test]
fn a_dispatched_job_carries_its_bucket_attempt_due_time_and_lease() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\nlease = '90s'\n");
    case.settle_at(T0);
    case.push_at(T0, "acme", &["hello", "again"]);
    case.settle_at(T0 + 3 * MS);
    case.settle_at(T0 + 105 * MS);
    let ready = case.stream("ready");
    let expect = [("hello", T0, T0 + 3 * MS), ("again", T0 + 100 * MS, T0 + 105 * MS)];
    for (entry, (job, due, at)) in ready.iter().zip(expect) {
        assert_eq!(
            (entry.text("bucket"), entry.text("job"), entry.text("attempt")),
            ("acme".into(), job.into(), "1".into())
        );
        assert_eq!((entry.number("due_us"), entry.number("at_us"), entry.number("lease_ms")), (due, at, 90_000));
        assert!(!entry.fields.contains_key("id"), "the first attempt is its own identity");
    }
    assert_eq!(ready.len(), 2);
}

#[test]
fn jobs_leave_first_in_first_out_whatever_the_size_of_the_steps() {
    let mut case = Case::with("[defaults]\nrate = '10000/s'\ncapacity = 1000\ncatch_up = '1s'\n[limits]\nbatch = 7\n");
    case.settle_at(T0);
    let jobs: Vec<_> = (0..500).map(|n| n.to_string()).collect();
    case.push_at(T0, "b", &jobs.iter().map(String::as_str).collect::<Vec<_>>());
    for step in [0, 3, 10, 11, 40, 41, 60] {
        case.settle_at(T0 + step * MS);
    }
    assert_eq!(case.jobs("ready"), jobs);
}

#[test]
fn a_call_handles_at_most_a_batch_and_a_bucket_a_quarter_of_it_while_others_are_due() {
    let mut case = Case::with("[defaults]\nrate = '1000000/s'\ncatch_up = '1s'\n[limits]\nbatch = 20\n");
    case.settle_at(T0);
    for bucket in ["a", "b", "c"] {
        case.push_at(T0, bucket, &["x"; 100]);
    }
    let first = case.drain_at(T0 + S);
    assert_eq!((first.dispatched, first.wait_us), (15, 0), "three quarters, and more is due");
    assert_eq!(case.settle_at(T0 + S).dispatched, 285);
    case.push_at(T0 + 2 * S, "alone", &["x"; 100]);
    case.settle_at(T0 + 2 * S);
    assert_eq!(case.drain_at(T0 + 3 * S).dispatched, 20, "alone it gets all of it");
}

#[test]
fn a_wake_looks_at_a_batch_of_queues_with_jobs_and_at_half_of_one_while_others_are_due() {
    for (others, expect) in [(0, [(20, 20), (10, 20)].as_slice()), (100, &[(20, 10), (20, 10), (20, 10), (20, 10)])] {
        let mut case = Case::with("[defaults]\nrate = '1/s'\n[limits]\nbatch = 20\n");
        case.settle_at(T0);
        for n in 0..others {
            case.push_at(T0, &format!("due{n}"), &["x"]);
        }
        let names: Vec<_> = (0..40).map(|n| format!("b{n:02}")).collect();
        for name in &names[..30] {
            case.cmd::<u64>(&["LPUSH", &case.queue(name), "x"]);
        }
        let keys: Vec<_> = names.iter().map(|name| format!("queue:{name}")).collect();
        let (mut from, mut seen) = (0, Vec::new());
        while from < keys.len() {
            let rest: Vec<_> = keys[from..].iter().map(String::as_str).collect();
            let reply: Vec<redis::Value> = case.fcall("drip__wake", &rest, &[T0.to_string()]);
            let number = |n: usize| redis::from_redis_value::<i64>(reply[n].clone()).expect("a number");
            seen.push((number(1), number(7)));
            from += number(7) as usize;
        }
        assert_eq!(seen, expect, "what it looked at counts towards the batch");
    }
}

#[test]
fn a_queue_that_is_as_a_dispatch_left_it_needs_no_look_and_any_other_does() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 3\n[limits]\nbatch = 20\n");
    let names: Vec<_> = (0..30).map(|n| format!("b{n:02}")).collect();
    for name in &names {
        case.push_at(T0, name, &["1", "2"]);
    }
    assert_eq!(case.settle_at(T0).dispatched, 30);
    let keys: Vec<_> = names.iter().map(|name| format!("queue:{name}")).collect();
    let mut looked = |now: u64| -> i64 {
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let reply: Vec<redis::Value> = case.fcall("drip__wake", &keys, &[now.to_string()]);
        redis::from_redis_value::<i64>(reply[7].clone()).expect("a number")
    };
    assert_eq!(looked(T0 + MS), 30, "a batch are twenty, and none of these counts");
    assert_eq!(looked(T0 + 60 * MS), 30, "another daemon asks for the same ones");
    assert_eq!(looked(T0 + 300 * MS), 20, "nothing is believed for long: a batch");

    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 3\n");
    case.push_at(T0, "over", &["1", "2"]);
    case.push_at(T0, "empty", &["1", "2"]);
    case.settle_at(T0);
    case.lpush("over", &["3", "4", "5"]);
    assert_eq!(case.wake_at(T0 + MS, &["over"]).rejected, 1, "pushed after the dispatch: cut at once");
    case.settle_at(T0 + S);
    assert_eq!(case.waiting("empty"), [] as [&str; 0]);
    case.settle_at(T0 + 2 * S);
    assert_eq!(case.due("empty"), None, "nothing of it stays");
    case.lpush("empty", &["3", "4"]);
    case.wake_at(T0 + 2 * S + MS, &["empty"]);
    assert_eq!(case.jobs("ready").last().map(String::as_str), Some("3"), "as many as once, and a bucket begun anew");
}

#[test]
fn what_a_dispatch_left_is_forgotten_with_the_schedule_the_record_and_the_clock() {
    for what in ["schedule", "queue", "everything", "clock"] {
        let mut case = Case::with("[defaults]\nrate = '10/s'\ncapacity = 10\n");
        case.lpush("b", &["1", "2"]);
        case.wake_at(T0, &["b"]);
        let names = [case.key("schedule"), case.queue("b"), case.key("policy")];
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let mut now = T0 + MS;
        match what {
            "schedule" => drop(case.cmd::<u64>(&["DEL", names[0]])),
            "queue" => {
                let _: u64 = case.cmd(&["DEL", names[1]]);
                case.wake_at(now, &["b"]);
                let _: u64 = case.cmd(&["DEL", names[0]]);
                case.lpush("b", &["3"]);
            }
            "everything" => {
                let _: u64 = case.cmd(&["DEL", names[0], names[1], names[2]]);
                case.lpush("b", &["3"]);
            }
            _ => now = T0 - MS,
        }
        case.wake_at(now, &["b"]);
        let due = case.due("b").expect("scheduled");
        assert!(due <= now + 100 * MS, "{what}: due {due} at {now}");
    }
    // No record is stored, and none after a flush: two functions alone, without a daemon.
    let mut case = Case::bare();
    case.lpush("b", &["1", "2"]);
    case.wake_at(T0, &["b"]);
    let names = [case.key("schedule"), case.queue("b")];
    let _: u64 = case.cmd(&["DEL", &names[0], &names[1]]);
    case.lpush("b", &["3"]);
    case.lpush("other", &["x", "x"]);
    case.wake_at(T0, &["other"]);
    case.wake_at(T0 + MS, &["b"]);
    assert!(case.due("b").is_some());
}

#[test]
fn what_dispatches_left_takes_little_memory_though_no_echo_comes() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '1/h'\n[limits]\nbatch = 1000\nmax_ready = 1000000\n");
    let name = "n".repeat(190);
    for n in 0..30_000 {
        case.push_at(T0, &format!("{name}{n}"), &["1", "2"]);
    }
    case.settle_at(T0);
    let info: String = case.cmd(&["INFO", "memory"]);
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory_vm_functions:"));
    let bytes: u64 = line.and_then(|text| text.trim().parse().ok()).expect("Redis says it");
    println!("{bytes} bytes of Lua");
    assert!(bytes < 7 << 20, "{bytes} bytes of Lua");
}

#[test]
fn a_held_bucket_that_is_as_a_dispatch_left_it_leaves_when_there_is_room() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n[limits]\nmax_ready = 1\n");
    case.push_at(T0, "b", &["1", "2"]);
    case.settle_at(T0);
    case.settle_at(T0 + S);
    case.wake_at(T0 + S + MS, &["b"]);
    let (ready, [first, ..]) = (case.key("ready"), &case.stream("ready")[..]) else { panic!("one is out") };
    let _: u64 = case.cmd(&["XDEL", &ready, &first.id]);
    case.settle_at(T0 + S + 2 * MS);
    assert_eq!(case.jobs("ready"), ["2"]);
}

#[test]
fn buckets_that_are_always_behind_do_not_delay_one_that_is_not() {
    let mut case = Case::with(
        "[defaults]\nrate = '1000000/s'\ncatch_up = '1s'\ncapacity = 5000\n[[bucket]]\nmatch = 'slow'\nrate = '10/s'\n[limits]\nmax_ready = 1000000\n",
    );
    case.settle_at(T0);
    for bucket in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        for _ in 0..5 {
            case.push_at(T0, bucket, &["x"; 1_000]);
        }
    }
    case.push_at(T0, "slow", &["1", "2", "3"]);
    let mut now = T0;
    for _ in 0..300 {
        now += MS; // a server that dispatches a batch a millisecond, which is not enough for all
        case.drain_at(now);
    }
    let late: Vec<u64> = case
        .stream("ready")
        .iter()
        .filter(|e| e.text("bucket") == "slow")
        .map(|e| e.number("at_us") - e.number("due_us"))
        .collect();
    assert!(late.len() >= 3 && late.iter().all(|us| *us <= 3 * MS), "{late:?}");
}

#[test]
fn a_key_of_the_wrong_type_in_the_middle_of_a_call_breaks_no_rate() {
    for key in ["wait:{default}", "held:default", "waiting", "rejected"] {
        let mut case = Case::with("[defaults]\nrate = '1/h'\ncapacity = 20\n[limits]\nmax_ready = 3\n");
        case.settle_at(T0);
        for n in 0..5 {
            case.push_at(T0, &format!("b{n}"), &["x"; 20]);
        }
        let name = case.key(key);
        let _: String = case.cmd(&["SET", &name, "x"]);
        case.lpush("b4", &["one", "too", "many"]);
        for n in 0..20 {
            case.drain_at(T0 + n * MS);
            case.take("ready", 100);
        }
        let mut of: std::collections::HashMap<String, u32> = std::collections::HashMap::new();
        for entry in case.stream("ready") {
            *of.entry(entry.text("bucket")).or_default() += 1;
        }
        assert!(of.values().all(|n| *n == 1) && of.len() >= 3, "{key}: {of:?}");
        assert!(case.drain_at(T0 + 30 * MS).wait_us != 0, "{key}: and nothing spins");
    }
}

#[test]
fn a_call_rejects_a_bounded_number_of_jobs_and_says_how_far_it_came() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\ncapacity = 1\n");
    case.settle_at(T0);
    let names: Vec<String> = (0..10).map(|n| format!("b{n}")).collect();
    for name in &names {
        case.lpush(name, &["x"; 61]);
    }
    let keys: Vec<String> = names.iter().map(|name| format!("queue:{name}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let reply: Vec<redis::Value> = case.fcall("drip__wake", &keys, &[T0.to_string()]);
    assert_eq!((&reply[2], &reply[7]), (&redis::Value::Int(120), &redis::Value::Int(2)));
    let reply: Vec<redis::Value> = case.fcall("drip__wake", &keys[2..], &[T0.to_string()]);
    assert_eq!((&reply[2], &reply[7]), (&redis::Value::Int(120), &redis::Value::Int(2)));
}

#[test]
fn a_call_stops_after_the_job_that_passes_1_mib() {
    let mut case = Case::with("[defaults]\nrate = '1000000/s'\ncatch_up = '1s'\n");
    case.settle_at(T0);
    let large = "x".repeat(600_000);
    case.push_at(T0, "b", &[&large, &large, &large, &large]);
    case.push_at(T0, "c", &[&large]);
    let first = case.drain_at(T0 + S);
    assert_eq!((first.dispatched, first.wait_us), (2, 0));
    assert_eq!(case.settle_at(T0 + S).dispatched, 3);
}

#[test]
fn no_due_lies_further_ahead_than_an_interval_after_the_clock_stepped_back() {
    let mut case =
        Case::with("[defaults]\nrate = '10/s'\n[[bucket]]\nmatch = 'slow*'\nrate = '1/h'\n[limits]\nbatch = 10\n");
    case.settle_at(T0);
    let names: Vec<_> = (0..300).map(|n| format!("b{n}")).collect();
    for name in &names {
        case.push_at(T0, name, &["1", "2"]);
    }
    case.push_at(T0 - 1_800 * S, "slow", &["1", "2"]);
    case.settle_at(T0);
    let back = T0 - 1_000 * S;
    let settled = case.settle_at(back);
    assert_eq!((settled.dispatched, settled.wait_us), (0, 100 * MS as i64));
    assert!(names.iter().all(|name| case.due(name) == Some(back + 100 * MS)));
    assert_eq!(case.due("slow"), Some(T0 + 3_600 * S).filter(|_| false).or(Some(back + 3_600 * S)));
    assert_eq!(case.settle_at(back + 100 * MS).dispatched, 300);
}

#[test]
fn a_full_route_holds_its_buckets_and_no_others() {
    let toml = "[defaults]\nrate = '10/s'\ncapacity = 5\n[[bucket]]\nmatch = 'mail*'\nroute = 'mail'\nrate = '10/s'\n[limits]\nmax_ready = 4\n";
    let mut case = Case::with(toml);
    case.settle_at(T0);
    for n in 0..6 {
        case.push_at(T0, &format!("b{n}"), &["1", "2"]);
    }
    case.push_at(T0, "mail1", &["1"]);
    assert_eq!(case.drain_at(T0).dispatched, 5, "four of one route, one of the other");
    assert_eq!(case.stream("ready").len(), 4);
    let later = T0 + 10 * S;
    let drained = case.settle_at(later);
    assert_eq!(drained.dispatched, 0);
    assert!(drained.wait_us > 0 && drained.wait_us <= 20 * MS as i64, "{drained:?}");
    assert_eq!(case.push_at(later, "b5", &["3", "4", "5", "6"])[..3], [3, 5, 5], "it fills, and then rejects");
    case.push_at(later, "mail1", &["2"]);
    assert_eq!(case.settle_at(later).dispatched, 1, "the other route goes on");

    assert_eq!(case.take("ready", 3).len(), 3);
    assert_eq!(case.settle_at(later).dispatched, 3, "as many as there is room for");
    case.take("ready", 100);
    assert_eq!(case.settle_at(later + 200 * MS).dispatched, 4);
    case.take("ready", 100);
    // With no credit: what was missed does not leave in a burst.
    let mut bursts = Vec::new();
    for n in 0..20 {
        bursts.push(case.settle_at(later + 300 * MS + n * MS).dispatched);
        case.take("ready", 100);
    }
    assert!(case.stream("ready").iter().filter(|e| e.text("bucket") == "b5").count() <= 4);
    let mut times: Vec<_> =
        case.stream("ready").iter().filter(|e| e.text("bucket") == "b5").map(|e| e.number("at_us")).collect();
    times.sort_unstable();
    assert!(times.windows(2).all(|t| t[1] - t[0] >= 80 * MS), "{times:?}");
    for n in 0..100 {
        case.settle_at(later + S + n * 100 * MS);
        case.take("ready", 100);
    }
    assert!(case.keys().iter().all(|key| !key.starts_with("queue:") && !key.starts_with("held")), "{:?}", case.keys());
}

#[test]
fn a_change_reaches_held_buckets_and_moves_them_to_their_new_route() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n[limits]\nmax_ready = 1\n");
    case.settle_at(T0);
    for n in 0..20 {
        case.push_at(T0, &format!("b{n}"), &["1"]);
    }
    assert_eq!(case.settle_at(T0).dispatched, 1);
    case.configure("[defaults]\nrate = '10/s'\nroute = 'other'\n[limits]\nmax_ready = 100\n");
    let mut left = 0;
    for n in 0..10 {
        left += case.settle_at(T0 + S + n * S).dispatched;
    }
    assert_eq!(left, 19);
    assert_eq!(case.stream("ready:other").len(), 19);
    assert!(case.keys().iter().all(|key| !key.starts_with("held")), "{:?}", case.keys());
}

#[test]
fn acknowledged_entries_do_not_count_against_max_ready() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\n[limits]\nmax_ready = 2\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["x"; 20]);
    let key = case.key("ready");
    let mut now = T0;
    for n in 0..20 {
        now += S;
        case.settle_at(now);
        let taken = case.take("ready", 1);
        assert_eq!(taken.len(), 1, "round {n}");
        if n % 2 == 0 {
            let _: i64 = case.cmd(&["XACK", &key, "workers", &taken[0].id]);
        } else {
            assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &[&taken[0].id]), 1);
        }
        let _: redis::Value = case.fcall("drip__reap", &["policy"], &["", "0", "", ""]);
    }
}

#[test]
fn streams_and_groups_come_back_when_somebody_deletes_them() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    case.settle_at(T0);
    let ready = case.key("ready");
    let _: i64 = case.cmd(&["DEL", &ready]);
    case.push_at(T0, "b", &["1"]);
    case.settle_at(T0);
    assert_eq!(case.take("ready", 10).len(), 1);
}

#[test]
fn a_ready_stream_of_the_wrong_type_holds_its_route_and_loses_nothing() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n[[bucket]]\nmatch = 'm'\nroute = 'mail'\n");
    case.settle_at(T0);
    let mail = case.key("ready:mail");
    let _: i64 = case.cmd(&["DEL", &mail]);
    let _: String = case.cmd(&["SET", &mail, "x"]);
    case.push_at(T0, "m", &["1"]);
    case.push_at(T0, "b", &["1"]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    assert_eq!(case.waiting("m"), ["1"]);
    let _: i64 = case.cmd(&["DEL", &mail]);
    assert_eq!(case.settle_at(T0 + S).dispatched, 1);
}

#[test]
fn a_full_redis_can_be_emptied() {
    let server = crate::rig::Server::start(&[]);
    crate::rig::load_library(&mut server.connect());
    let mut case = Case { redis: server.connect(), prefix: "drip".to_owned() };
    case.configure("[defaults]\nrate = '10/s'\n[[bucket]]\nmatch = 'm'\nroute = 'mail'\n");
    case.push_at(T0, "b", &["1", "2"]);
    case.lpush("m", &["1"]);
    let _: String = case.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(case.refusal("drip_push", &["queue:b"], &["3"]), "OOM");
    assert_eq!(case.settle_at(T0).dispatched, 1);
    assert_eq!(case.wake_at(T0 + S, &["m"]).dispatched, 2);
    let taken = case.take("ready", 10);
    assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &[&taken[0].id]), 1);
    assert_eq!(case.fcall::<i64>("drip_fail", &["ready"], &[&taken[1].id]), 1);
    let _: redis::Value = case.fcall("drip__reap", &["policy"], &["", "1", "", ""]);
}

#[test]
fn what_a_stream_does_not_take_is_left_untouched_in_its_queue() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\n");
    case.lpush("b", &["a", "b", "c"]);
    let (queue, ready, last) = (case.queue("b"), case.key("ready"), u64::MAX.to_string());
    case.cmd::<()>(&["XSETID", &ready, &format!("{last}-{last}")]);
    case.cmd::<()>(&["WATCH", &queue]);
    assert_eq!(case.wake_at(T0, &["b"]).dispatched, 0);
    assert_eq!(case.drain_at(T0 + S).dispatched, 0);
    assert_eq!(case.waiting("b"), ["a", "b", "c"]);
    case.cmd::<()>(&["MULTI"]);
    let done: redis::Value = case.cmd(&["EXEC"]);
    assert_ne!(done, redis::Value::Nil, "it was taken out and put back: each try would wake the daemon");
}

#[test]
fn a_call_that_raises_in_the_middle_of_a_piece_loses_no_job() {
    let mut case = Case::with(
        "[defaults]\nrate = '1000/s'\ncatch_up = '1s'\n[limits]\nmax_job_bytes = 10\nrejected_keep = 20000\n",
    );
    let jobs = ["1", "2", "3", "a job that is too large", "5", "6"];
    case.lpush("b", &jobs);
    case.wake_at(T0, &["b"]);
    let user = format!("{}-without-memory", case.prefix);
    case.cmd::<()>(&["ACL", "SETUSER", &user, "on", "nopass", "~*", "+@all", "-memory"]);
    case.cmd::<()>(&["AUTH", &user, "any"]);
    let _ = case.try_fcall::<redis::Value>("drip__drain", &["schedule"], &[(T0 + S).to_string()]);
    case.cmd::<()>(&["AUTH", "default", "any"]);
    let mut found = case.waiting("b");
    found.extend(case.jobs("ready"));
    found.extend(case.jobs("rejected"));
    for job in jobs {
        assert!(found.iter().any(|found| found == job), "{job} is lost: {found:?}");
    }
}

#[test]
fn a_key_of_ours_that_is_of_the_wrong_type_is_named_as_such() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\n");
    case.lpush("b", &["a", "b"]);
    case.wake_at(T0, &["b"]);
    case.configure("[defaults]\nrate = '2/h'\n");
    let spread = case.key("reached");
    case.cmd::<()>(&["SET", &spread, "x"]);
    assert_eq!(case.refusal("drip__drain", &["schedule"], &[(T0 + 3_600 * S).to_string()]), "WRONGTYPE");
}

#[test]
fn time_spent_held_is_no_lateness() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncatch_up = '1s'\n[limits]\nmax_ready = 1\n");
    case.push_at(T0, "a", &["1"]);
    case.push_at(T0, "b", &["1", "2", "3"]);
    case.settle_at(T0);
    let late = |case: &mut Case, now: u64| -> i64 {
        let reply: Vec<redis::Value> = case.fcall("drip__drain", &["schedule"], &[now.to_string()]);
        redis::from_redis_value(reply[3].clone()).expect("a number")
    };
    case.settle_at(T0 + 10 * S);
    for n in 0..3 {
        case.take("ready", 1);
        let now = T0 + 10 * S + n * S;
        assert_eq!(late(&mut case, now), 0, "the latest of a call");
        case.settle_at(now);
        case.settle_at(now + 500 * MS); // its next due comes, and it is held again
    }
    let ready = case.stream("ready");
    let late: Vec<u64> = ready.iter().map(|e| e.number("at_us") - e.number("due_us")).collect();
    assert_eq!(late, [0, 0, 0, 0], "neither as lateness nor as credit");
    let times: Vec<u64> = ready.iter().filter(|e| e.text("bucket") == "b").map(|e| e.number("at_us")).collect();
    assert!(times.windows(2).all(|t| t[1] - t[0] >= 100 * MS), "{times:?}");
}
