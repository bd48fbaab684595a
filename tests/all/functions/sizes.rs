//! What a call may read: 1 MiB of jobs, or one job where that one is larger, whatever their sizes are and in whatever order they come.

use crate::rig::{Case, MS, S, Server, T0};

const KIB: usize = 1_024;

/// Jobs of so many KiB, the first one pushed first.
fn jobs(sizes: &[usize]) -> Vec<String> {
    sizes.iter().map(|size| "x".repeat(size * KIB)).collect()
}

fn push(case: &mut Case, bucket: &str, sizes: &[usize]) {
    for job in jobs(sizes) {
        case.lpush(bucket, &[&job]);
    }
}

/// The sizes of the rejected jobs that are shown, in KiB, and how many more were counted.
fn rejected(case: &mut Case) -> (Vec<usize>, u64) {
    let (mut shown, mut counted) = (Vec::new(), 0);
    for entry in case.stream("rejected") {
        if entry.fields.contains_key("count") {
            counted += entry.number("count");
        } else if entry.fields.contains_key("bytes") {
            shown.push(entry.number("bytes") as usize / KIB);
        } else {
            shown.push(entry.fields["job"].len() / KIB);
        }
    }
    (shown, counted)
}

#[test]
fn a_cut_shows_jobs_until_it_has_read_1_mib_and_counts_the_others() {
    for (sizes, expect) in [
        (&[1, 700, 700, 700, 700, 700][..], (&[700, 700][..], 3)),
        (&[1, 1, 10, 100, 1_000, 5_000, 20_000, 40_000], (&[1, 10, 100, 1_000][..], 3)),
        (&[1, 40_000, 20_000, 5_000, 1_000, 100, 10, 1], (&[40_000][..], 6)),
        (&[1, 1, 1, 1], (&[1, 1, 1][..], 0)),
    ] {
        let server = Server::start(&[]);
        let mut case =
            Case::on(&server, "[defaults]\nrate = '1/h'\ncapacity = 1\n[limits]\nmax_job_bytes = 100000000\n");
        push(&mut case, "b", sizes);
        case.wake_at(T0, &["b"]);
        assert_eq!(rejected(&mut case), (expect.0.to_vec(), expect.1), "{sizes:?}");
    }
}

#[test]
fn a_drop_of_the_oldest_reads_no_more_either() {
    let toml = "[defaults]\nrate = '1/h'\ncapacity = 1\noverflow = 'drop-oldest'\n";
    let mut case = Case::with(toml);
    push(&mut case, "b", &[600, 600, 600, 600, 1]);
    case.wake_at(T0, &["b"]);
    assert_eq!(rejected(&mut case), (vec![600, 600], 2));
    case.settle_at(T0);
    assert_eq!(case.stream("ready")[0].fields["job"].len(), KIB);
}

#[test]
fn a_drain_stops_when_it_has_read_1_mib_whether_sizes_grow_or_shrink_along_the_queue() {
    for (sizes, expect) in [
        (&[1, 1, 1, 900, 900, 900, 900][..], &[5, 2][..]),
        (&[900, 900, 900, 1, 1, 1, 1], &[2, 5]),
        (&[1, 1, 1, 1, 1, 1, 1], &[7]),
        (&[1, 900, 1, 900, 1, 900, 1], &[4, 3]),
    ] {
        let mut case = Case::with("[defaults]\nrate = '1000000/s'\ncatch_up = '1s'\n");
        case.settle_at(T0);
        case.push_at(T0, "b", &jobs(sizes).iter().map(String::as_str).collect::<Vec<_>>());
        let mut left = Vec::new();
        let now = T0 + S;
        loop {
            let drained = case.drain_at(now);
            left.extend((drained.dispatched > 0).then_some(drained.dispatched));
            if drained.wait_us != 0 {
                break;
            }
        }
        assert_eq!(left, expect, "{sizes:?}");
    }
}

#[test]
fn one_huge_job_is_read_in_a_call_of_its_own_and_takes_little_memory_besides() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '1000000/s'\ncatch_up = '1s'\ncapacity = 100\n");
    push(&mut case, "b", &[16 * KIB; 12]);
    let memory = |case: &mut Case, name: &str| -> i64 {
        let info: String = case.cmd(&["INFO", "memory"]);
        let line = info.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.trim().parse().expect("a number")
    };
    let before = memory(&mut case, "used_memory:");
    let _: String = case.cmd(&["CONFIG", "RESETSTAT"]);
    let mut calls = 0;
    while !case.waiting_is_empty("b") {
        let drained = case.wake_at(T0 + calls * MS, &["b"]);
        assert!(drained.rejected <= 1, "one in a call: {drained:?}");
        calls += 1;
        assert!(calls < 50, "it comes to an end");
    }
    let peak = memory(&mut case, "used_memory_peak:");
    assert!(peak - before < 80 << 20, "{} MiB more than the queue", (peak - before) >> 20);
    assert_eq!(rejected(&mut case), (vec![16 * KIB; 12], 0));
}

#[test]
fn a_head_that_is_too_large_while_the_rejected_stream_does_not_take_it_is_not_asked_for_back_to_back() {
    let mut case = Case::with("[defaults]\nrate = '1000000/s'\n[limits]\nmax_job_bytes = 10\n");
    case.settle_at(T0);
    let rejected = case.key("rejected");
    let _: String = case.cmd(&["SET", &rejected, "in the way"]);
    case.lpush("b", &["much too large a job"]);
    case.push_at(T0, "other", &["1"]);
    let woken = case.wake_at(T0, &["b"]);
    assert_eq!(woken.dispatched, 1, "the other bucket goes on");
    let waits: Vec<i64> = (0..5).map(|_| case.drain_at(T0).wait_us).collect();
    assert!(waits.iter().all(|wait| *wait >= 1_000), "{waits:?}");
    assert!(waits.last() >= Some(&(100 * MS as i64)), "{waits:?}");
    let _: i64 = case.cmd(&["DEL", &rejected]);
    assert_eq!(case.settle_at(T0 + 2 * S).rejected, 1, "and it goes when it is taken");
}

#[test]
fn the_sweep_of_retries_reads_1_mib_of_jobs_in_a_call() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '1000/s'\n");
    let jobs = jobs(&[700; 10]);
    for (n, job) in jobs.iter().enumerate() {
        let now = T0 + n as u64 * S;
        case.push_at(now, "b", &[job]);
        case.settle_at(now);
        let entry = case.take("ready", 1).remove(0);
        let args = [(T0 + 20 * S).to_string(), entry.id, "RETRY_IN".to_owned(), "60000".to_owned()];
        assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &args), 1);
    }
    case.settle_at(T0 + 21 * S);
    let back = T0 - 3_600 * S; // the clock stepped back: every retry is looked at
    let mut reads = Vec::new();
    while reads.len() < 100 {
        let _: String = case.cmd(&["CONFIG", "RESETSTAT"]);
        let wait = case.drain_at(back).wait_us;
        let info: String = case.cmd(&["INFO", "commandstats"]);
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_zrange:calls="));
        reads.push(line.map_or(0, |line| line.split(',').next().and_then(|n| n.parse().ok()).expect("a number")));
        if wait != 0 {
            break;
        }
    }
    assert!(reads.len() < 100, "it comes to an end");
    // Two of these jobs are more than 1 MiB; a drain reads what is due, when the next is, and what ends next besides.
    let most: u32 = *reads.iter().max().expect("some");
    assert!(reads.iter().sum::<u32>() >= 10 && most <= 7, "reads of each call: {reads:?}");
    assert_eq!(case.settle_at(back).wait_us, 60 * S as i64, "none lies further ahead than its length");
    let mut left = 0;
    for n in 0..10 {
        left += case.settle_at(back + 60 * S + n * MS).dispatched;
    }
    assert_eq!(left, 10);
}

#[test]
fn a_capacity_lowered_while_nothing_can_be_rejected_throws_nothing_out_later() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\ncapacity = 100\n");
    let rejected = case.key("rejected");
    case.push_at(T0, "b", &["first", "second"]);
    case.settle_at(T0);
    let _: String = case.cmd(&["SET", &rejected, "in the way"]);
    case.lpush("b", &["x"; 149]);
    case.configure_at(&T0.to_string(), "[defaults]\nrate = '1/h'\ncapacity = 10\n");
    case.settle_at(T0 + S);
    let _: i64 = case.cmd(&["DEL", &rejected]);
    case.wake_at(T0 + 2 * S, &["b"]);
    assert_eq!(case.waiting("b").len(), 100, "what the old capacity accepted stays");
}
