//! The ready window of routes that forward: the age of a list is reckoned from what was sent when and how many jobs it still holds
//! (`READY.md` section 3).

use super::flow::audit;
use crate::rig::{Case, MS, S, Server, T0};

#[test]
fn a_list_is_as_old_as_the_first_job_of_it_and_what_a_restart_finds_counts_as_just_sent() {
    let key = format!("ready-window-{}", std::process::id());
    let mut case = Case::with(&format!(
        "[[route]]\nname = 'out'\nto = '{key}'\n[defaults]\nrate = '100/s'\ncapacity = 1000\nroute = 'out'\n[limits]\nready_window = '100ms'\n"
    ));
    let _: i64 = case.cmd(&["RPUSH", &key, "from before"]);
    case.settle_at(T0);
    case.push_at(T0, "b", &["x"; 100]);
    let mut left = 0;
    for n in 0..60 {
        left += case.drain_at(T0 + n * 10 * MS).dispatched;
    }
    assert_eq!(left, 7, "with the one from before eight, and then the first is too old");
    assert!(case.routes(T0 + 600 * MS)[0].age_us >= 500 * MS);
    let _: Option<String> = case.cmd(&["RPOP", &key]);
    assert_eq!(case.drain_at(T0 + 600 * MS).dispatched, 0, "the next one is old, too");
    let _: Vec<String> = case.cmd(&["RPOP", &key, "100"]);
    assert!(case.drain_at(T0 + 620 * MS).dispatched > 0);
    let _: i64 = case.cmd(&["DEL", &key]);
    audit(&mut case);
}

#[test]
fn a_list_that_is_looked_at_once_a_second_is_known_to_be_old_all_the_same() {
    let key = format!("ready-window-slow-{}", std::process::id());
    let mut case = Case::with(&format!(
        "[[route]]\nname = 'out'\nto = '{key}'\n[defaults]\nrate = '1/s'\ncapacity = 1000\nroute = 'out'\n[limits]\nready_window = '250ms'\n"
    ));
    case.settle_at(T0);
    case.push_at(T0, "b", &["1", "2", "3", "4", "5", "6"]);
    assert_eq!((0..4).map(|n| case.drain_at(T0 + n * S).dispatched).sum::<i64>(), 1, "the workers are away");
    // Others push behind it.
    let _: i64 = case.cmd(&["LPUSH", &key, "theirs"]);
    assert_eq!(case.drain_at(T0 + 4 * S).dispatched, 0);
    let _: Option<String> = case.cmd(&["RPOP", &key]);
    assert_eq!(case.drain_at(T0 + 4 * S + 20 * MS).dispatched, 1, "it was taken; what is there now came later");
    assert_eq!(case.drain_at(T0 + 6 * S).dispatched, 0, "that one is old by now");
    let _: Vec<String> = case.cmd(&["RPOP", &key, "2"]);
    assert_eq!((7..9).map(|n| case.drain_at(T0 + n * S).dispatched).sum::<i64>(), 1);
    let _: i64 = case.cmd(&["DEL", &key]);
    audit(&mut case);
}

#[test]
fn a_list_in_which_others_always_have_the_same_jobs_holds_nobody_whose_jobs_are_taken() {
    let key = format!("ready-window-same-{}", std::process::id());
    let mut case = Case::with(&format!(
        "[[route]]\nname = 'out'\nto = '{key}'\n[defaults]\nrate = '10/s'\ncapacity = 1000\nroute = 'out'\n[limits]\nready_window = '250ms'\n"
    ));
    let refill = |case: &mut Case, n: u64| {
        let _: Option<Vec<String>> = case.cmd(&["RPOP", &key, "60"]);
        let pings = "for i = 1, ARGV[1] do redis.call('LPUSH', KEYS[1], 'ping') end return 1";
        let _: i64 = case.cmd(&["EVAL", pings, "1", &key, &(30 + n % 7).to_string()]);
    };
    refill(&mut case, 0);
    case.settle_at(T0);
    case.push_at(T0, "b", &["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]);
    let mut left = 0;
    for n in 0..100 {
        left += case.drain_at(T0 + n * 10 * MS).dispatched;
        refill(&mut case, n);
        assert!(case.routes(T0 + n * 10 * MS)[0].age_us < 250 * MS, "who looks changes nothing");
    }
    assert_eq!(left, 10);
    let _: i64 = case.cmd(&["DEL", &key]);
    audit(&mut case);
}

#[test]
fn a_list_that_only_one_pushes_into_keeps_its_age_where_nobody_may_search_it() {
    let server = Server::start(&[]);
    let toml = "[[route]]\nname = 'out'\nto = 'l'\n[defaults]\nrate = '100/s'\ncapacity = 1000\nroute = 'out'\n[limits]\nready_window = '250ms'\n";
    let mut case = Case::on(&server, toml);
    let _: String = case.cmd(&["ACL", "SETUSER", "old", "on", ">secret", "~*", "&*", "+@all", "-lpos"]);
    let _: String = case.cmd(&["AUTH", "old", "secret"]);
    case.settle_at(T0);
    case.push_at(T0, "b", &["x"; 500]);
    for n in 0..200 {
        case.drain_at(T0 + n * 10 * MS);
        assert_eq!(case.routes(T0 + n * 10 * MS).len(), 1);
    }
    assert!(case.cmd::<i64>(&["LLEN", "l"]) <= 28, "1 + ⌊270 / 10⌋");
    let route = &case.routes(T0 + 2 * S)[0];
    assert!(route.age_us >= S && route.held == 1, "{} us", route.age_us);
}

#[test]
fn a_list_whose_other_key_holds_something_else_for_a_while_is_as_old_as_before() {
    let (key, other) =
        (format!("ready-window-blink-{}", std::process::id()), format!("ready-window-told-{}", std::process::id()));
    let mut case = Case::with(&format!(
        "[[route]]\nname = 'out'\nto = '{key}'\nnotify = '{other}'\n[defaults]\nrate = '10/s'\ncapacity = 1000\nroute = 'out'\n[limits]\n\
         ready_window = '250ms'\n"
    ));
    case.settle_at(T0);
    case.push_at(T0, "b", &["x"; 100]);
    let drains = |case: &mut Case, since: u64| (0..15).for_each(|n| _ = case.drain_at(since + n * 20 * MS));
    for n in 0..4 {
        drains(&mut case, T0 + n * S);
        let _: String = case.cmd(&["SET", &other, "x"]);
        drains(&mut case, T0 + n * S + 300 * MS);
        assert_eq!(case.routes(T0 + n * S + 600 * MS).len(), 1);
        let _: i64 = case.cmd(&["DEL", &other]);
    }
    let there: i64 = case.cmd(&["LLEN", &key]);
    assert!((1..=4).contains(&there), "{there} in the list, of which a window lets out 1 + ⌊270 / 100⌋");
    let _: i64 = case.cmd(&["DEL", &key, &other]);
    audit(&mut case);
}

#[test]
fn a_list_that_others_push_into_as_well_keeps_the_age_of_the_jobs_that_were_sent() {
    // The same job again and again cannot be told from the one before it: it counts as older than it is, never as younger.
    for is_same in [false, true] {
        let key = format!("ready-window-shared-{}", std::process::id());
        let mut case = Case::with(&format!(
            "[[route]]\nname = 'out'\nto = '{key}'\n[defaults]\nrate = '100/s'\ncapacity = 1000\nroute = 'out'\n[limits]\n\
             ready_window = '100ms'\nmax_ready = 200\n"
        ));
        let take = |case: &mut Case, most: u64| {
            let jobs: Option<Vec<String>> = case.cmd(&["RPOP", &key, &most.to_string()]);
            jobs.unwrap_or_default().iter().filter(|job| job.starts_with("ours")).count()
        };
        case.settle_at(T0);
        let jobs: Vec<String> =
            (0..1000).map(|n| if is_same { "ours".to_owned() } else { format!("ours-{n}") }).collect();
        let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
        case.push_at(T0, "b", &jobs);
        // Others always have twenty jobs in the list, and the workers keep up: 500/s.
        let (mut now, mut taken) = (T0, 0);
        for n in 0..1_000 {
            now = T0 + n * 10 * MS;
            if n < 500 {
                let missing = 20_i64.saturating_sub(case.cmd::<i64>(&["LLEN", &key]));
                (0..missing).for_each(|i| assert!(case.cmd::<i64>(&["LPUSH", &key, &format!("theirs-{n}-{i}")]) > 0));
            }
            case.drain_at(now);
            if n < 300 {
                taken += take(&mut case, 5);
            }
            if n == 299 {
                // 100/s for three seconds; what cannot be told apart holds the bucket back now and then.
                assert!(taken >= if is_same { 100 } else { 290 } && taken <= 303, "{taken} taken in 3 s of 100/s");
            }
        }
        // The workers have been away since: what left in one window lies there, and the age says how long.
        let theirs = case.cmd::<Vec<String>>(&["LRANGE", &key, "0", "-1"]);
        let ours = theirs.iter().filter(|job| job.starts_with("ours")).count();
        assert!((1..=12).contains(&ours), "{ours} in the list");
        let route = &case.routes(now)[0];
        assert!(route.age_us >= 6 * S && route.held == 1, "{} us, {} held", route.age_us, route.held);
        // With others alone in it, it is not old, and the bucket goes on.
        take(&mut case, 1_000);
        let _: i64 = case.cmd(&["LPUSH", &key, "theirs"]);
        assert_eq!(case.routes(now)[0].age_us, 0);
        assert!(case.drain_at(now + 20 * MS).dispatched > 0);
        let _: i64 = case.cmd(&["DEL", &key]);
        audit(&mut case);
    }
}

#[test]
fn a_job_that_somebody_deletes_from_a_list_makes_the_others_no_younger() {
    // Workers are away. A stranger deletes the job that was sent last, or any, or the oldest, each 500 ms.
    for which in ["0", "1", "-1"] {
        let key = format!("ready-window-deleted-{}", std::process::id());
        let mut case = Case::with(&format!(
            "[[route]]\nname = 'out'\nto = '{key}'\n[defaults]\nrate = '10/s'\ncapacity = 1000\nroute = 'out'\n[limits]\nready_window = '250ms'\n"
        ));
        case.settle_at(T0);
        let jobs: Vec<String> = (0..500).map(|n| n.to_string()).collect();
        case.push_at(T0, "b", &jobs.iter().map(String::as_str).collect::<Vec<_>>());
        for n in 1..1_000 {
            case.drain_at(T0 + n * 20 * MS);
            if n % 25 == 0 {
                let job: Option<String> = case.cmd(&["LINDEX", &key, which]);
                let _: i64 = case.cmd(&["LREM", &key, "1", &job.unwrap_or_default()]);
            }
            let (there, deleted): (i64, u64) = (case.cmd(&["LLEN", &key]), n / 25);
            let most = 4 + (deleted / 8) as i64; // one more for every eight: dripd cannot tell who took them
            assert!(there <= most, "{there} in the list after {} ms: 2 + ⌊270 / 100⌋ are allowed", n * 20);
        }
        let _: i64 = case.cmd(&["DEL", &key]);
        audit(&mut case);
    }
}

#[test]
fn a_job_that_is_pushed_back_again_and_again_stops_no_list() {
    // Workers keep up, and put some jobs back with the same bytes, in one step: another system throttles them.
    let key = format!("ready-window-back-{}", std::process::id());
    let mut case = Case::with(&format!(
        "[[route]]\nname = 'out'\nto = '{key}'\n[defaults]\nrate = '10/s'\ncapacity = 1000\nroute = 'out'\n[limits]\nready_window = '250ms'\n"
    ));
    case.settle_at(T0);
    for bucket in ["j", "k"] {
        let jobs: Vec<String> = (0..200).map(|n| format!("{bucket}{n}")).collect();
        case.push_at(T0, bucket, &jobs.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let take = "local gone = 0 for _ = 1, redis.call('LLEN', KEYS[1]) do local job = redis.call('RPOP', KEYS[1]) \
                if string.find(job, '^[jk][12]0$') then redis.call('LPUSH', KEYS[1], job) else gone = gone + 1 end end return gone";
    let mut taken = 0;
    for n in 0..1_000 {
        case.drain_at(T0 + n * 10 * MS);
        taken += case.cmd::<i64>(&["EVAL", take, "1", &key]);
    }
    assert!(taken >= 190, "{taken} of 200 in ten seconds");
    let _: i64 = case.cmd(&["DEL", &key]);
    audit(&mut case);
}

/// What strangers push does not make room for a whole window of jobs.
#[test]
fn a_few_jobs_of_others_let_no_flood_into_a_list() {
    let key = format!("ready-window-few-{}", std::process::id());
    let mut case = Case::with(&format!(
        "[[route]]\nname = 'out'\nto = '{key}'\n[defaults]\nrate = '1000/s'\ncapacity = 10000\nroute = 'out'\n[limits]\n\
         ready_window = '250ms'\n"
    ));
    case.settle_at(T0);
    for bucket in ["a", "b", "c"] {
        let jobs: Vec<String> = (0..1_000).map(|n| format!("{bucket}-{n}")).collect();
        case.push_at(T0, bucket, &jobs.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let mut most = 0;
    for ms in 0..2_000 {
        if ms == 1_000 {
            let _: i64 = case.cmd(&["LPUSH", &key, "x", "y", "z"]);
        }
        case.drain_at(T0 + ms * MS);
        if ms % 10 == 0 {
            let _: Option<String> = case.cmd(&["RPOP", &key]);
        }
        most = most.max(case.cmd::<i64>(&["LLEN", &key]));
    }
    assert!(most <= 60, "{most} in the list, of which workers take 100/s");
    let _: i64 = case.cmd(&["DEL", &key]);
    audit(&mut case);
}
