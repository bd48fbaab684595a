//! Sixty-four clients push into buckets of twelve policies at once, while two daemons serve them and one of those is killed. The verdict of every
//! plain push is reconstructed from its reply alone, as a producer must do it, and compared with what became of each job.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::Connection;

use crate::rig::{Daemon, Server, eventually, rand_u64};

const CLIENTS: usize = 64;
const FOR: Duration = Duration::from_secs(3);
const LARGEST: usize = 100;

/// Each bucket with its capacity.
const BUCKETS: [(&str, i64); 12] = [
    ("one", 1),
    ("small", 5),
    ("slots", 10),
    ("plain", 50),
    ("roomy", 200),
    ("a:1", 20),
    ("a:2", 20),
    ("ordered", 10),
    ("backlog", 300),
    ("elsewhere", 30),
    ("drop", 15),
    ("large", 40),
];
const DROP: usize = 10;
const LARGE: usize = 11;

const TOML: &str = "[limits]\nmax_job_bytes = 100\n[defaults]\nrate = '200/s'\n\
    [[budget]]\nmatch = 'a'\nrate = '60/s'\n\
    [[bucket]]\nmatch = 'one'\ncapacity = 1\nrate = '2000/s'\n\
    [[bucket]]\nmatch = 'small'\ncapacity = 5\nrate = '20/s'\n\
    [[bucket]]\nmatch = 'slots'\ncapacity = 10\nconcurrency = 3\n\
    [[bucket]]\nmatch = 'plain'\ncapacity = 50\n\
    [[bucket]]\nmatch = 'roomy'\ncapacity = 200\nrate = '50/s'\n\
    [[bucket]]\nmatch = 'a:*'\ncapacity = 20\nwithin = 'a'\n\
    [[bucket]]\nmatch = 'ordered'\ncapacity = 10\nordered = true\nconcurrency = 1\n\
    [[bucket]]\nmatch = 'backlog'\ncapacity = 300\nrate = '10/s'\n\
    [[bucket]]\nmatch = 'elsewhere'\ncapacity = 30\nroute = 'other'\n\
    [[bucket]]\nmatch = 'drop'\ncapacity = 15\noverflow = 'drop-oldest'\n\
    [[bucket]]\nmatch = 'large'\ncapacity = 40\n";

/// What a producer makes of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Accepted,
    Rejected,
    /// The same, of an atomic push: the job was never in.
    Refused,
}

/// What became of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Delivered,
    Waiting,
    /// It is in the rejected stream, with this reason.
    Rejected(String),
}

/// Push until it is over. Replies each job with its bucket and its verdict.
fn push(mut redis: Connection, client: usize, plain: bool) -> Vec<(String, usize, Verdict)> {
    let (since, mut pushed) = (Instant::now(), Vec::new());
    while since.elapsed() < FOR {
        let bucket = usize::try_from(rand_u64() % 12).expect("small");
        let (name, capacity) = BUCKETS[bucket];
        let key = format!("drip:queue:{name}");
        let jobs: Vec<String> = (0..=rand_u64() % 4)
            .map(|n| {
                let is_large = plain && bucket == LARGE && rand_u64().is_multiple_of(4);
                format!("{client}-{}-{n}{}", pushed.len(), if is_large { "x".repeat(LARGEST) } else { String::new() })
            })
            .collect();
        let n = i64::try_from(jobs.len()).expect("few");
        let fit = if plain {
            let length: i64 = redis::cmd("LPUSH").arg(&key).arg(&jobs).query(&mut redis).expect("LPUSH");
            if bucket == DROP { n } else { (n - (length - capacity)).clamp(0, n) }
        } else {
            let said: Vec<i64> =
                redis::cmd("FCALL").arg("drip_push").arg(1).arg(&key).arg(&jobs).query(&mut redis).expect("FCALL");
            said[0]
        };
        let no = if plain { Verdict::Rejected } else { Verdict::Refused };
        let verdicts = (0..n).map(|at| if at < fit { Verdict::Accepted } else { no });
        pushed.extend(jobs.into_iter().zip(verdicts).map(|(job, verdict)| (job, bucket, verdict)));
        sleep(Duration::from_micros(10_000 + rand_u64() % 20_000));
    }
    pushed
}

type Page = Vec<(String, HashMap<String, String>)>;

/// Note what is rejected, until told to stop: older entries go. Replies where to go on.
fn collect_rejected(
    mut redis: Connection,
    mut from: String,
    is_over: &AtomicBool,
    fates: &Mutex<HashMap<String, Vec<Fate>>>,
) -> String {
    loop {
        let is_last = is_over.load(Ordering::Relaxed);
        let page: Page =
            redis::cmd("XRANGE").arg("drip:rejected").arg(&from).arg("+").query(&mut redis).expect("XRANGE");
        let mut fates = fates.lock().expect("no panic");
        for (id, fields) in page {
            let job = fields["job"].clone();
            fates.entry(job).or_default().push(Fate::Rejected(fields["reason"].clone()));
            from = format!("({id}");
        }
        drop(fates);
        if is_last {
            return from;
        }
        sleep(Duration::from_millis(10));
    }
}

/// Take jobs and finish them, until told to stop and no more are there.
fn work(mut redis: Connection, stream: &str, is_over: &AtomicBool, fates: &Mutex<HashMap<String, Vec<Fate>>>) {
    loop {
        let is_last = is_over.load(Ordering::Relaxed);
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("workers").arg("w").arg("COUNT").arg(100).arg("BLOCK").arg(50);
        let page: Result<Option<Vec<(String, Page)>>, _> = read.arg("STREAMS").arg(stream).arg(">").query(&mut redis);
        // There is no group before the first job of a route.
        let page: Page = page.ok().flatten().into_iter().flatten().flat_map(|(_, page)| page).collect();
        if page.is_empty() && is_last {
            return;
        }
        for (id, fields) in page {
            fates.lock().expect("no panic").entry(fields["job"].clone()).or_default().push(Fate::Delivered);
            let acked: i64 =
                redis::cmd("FCALL").arg("drip_ack").arg(1).arg(stream).arg(&id).query(&mut redis).expect("FCALL");
            assert_eq!(acked, 1);
        }
    }
}

#[test]
fn the_verdict_of_every_push_of_64_clients_against_12_policies_is_what_becomes_of_it() {
    let server = Server::start(&[]);
    let home = server.home(TOML);
    let mut daemons = vec![Daemon::start(home.path()), Daemon::start(home.path())];
    let (is_over, fates) = (AtomicBool::new(false), Mutex::default());
    let (pushed, from) = std::thread::scope(|scope| {
        let (is_over, fates, server) = (&is_over, &fates, &server);
        let rejected = scope.spawn(|| collect_rejected(server.connect(), "-".to_owned(), is_over, fates));
        for stream in ["drip:ready", "drip:ready:other"] {
            scope.spawn(move || work(server.connect(), stream, is_over, fates));
        }
        let clients: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || push(server.connect(), n, n % 4 > 0))).collect();
        sleep(FOR / 2);
        daemons.remove(0).kill();
        daemons.push(Daemon::spawn(home.path()));
        let pushed: Vec<_> = clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect();
        let mut redis = server.connect();
        eventually("all queues are cut", || {
            BUCKETS.iter().all(|(name, capacity)| {
                let length: i64 = redis::cmd("LLEN").arg(format!("drip:queue:{name}")).query(&mut redis).expect("LLEN");
                length <= *capacity
            })
        });
        daemons.iter_mut().for_each(Daemon::kill);
        is_over.store(true, Ordering::Relaxed);
        (pushed, rejected.join().expect("no panic"))
    });
    collect_rejected(server.connect(), from, &is_over, &fates); // an acknowledgement may have let something out
    let mut fates = fates.into_inner().expect("nobody else");
    let mut redis = server.connect();
    for (name, _) in BUCKETS {
        let waiting: Vec<String> =
            redis::cmd("LRANGE").arg(format!("drip:queue:{name}")).arg(0).arg(-1).query(&mut redis).expect("LRANGE");
        for job in waiting {
            fates.entry(job).or_default().push(Fate::Waiting);
        }
    }

    let mut seen: BTreeMap<(&str, Verdict, Fate), usize> = BTreeMap::new();
    let (mut wrong, mut refused) = (Vec::new(), 0);
    for (job, bucket, verdict) in &pushed {
        let fate = match fates.remove(job).as_deref() {
            Some([fate]) => fate.clone(),
            None if *verdict == Verdict::Refused => {
                refused += 1;
                continue;
            }
            other => {
                wrong.push(format!("{job} in {}: {verdict:?}, and became of it {other:?}", BUCKETS[*bucket].0));
                continue;
            }
        };
        let reason = match &fate {
            Fate::Rejected(reason) => reason.as_str(),
            Fate::Delivered | Fate::Waiting => "",
        };
        let is_right = match verdict {
            Verdict::Refused => false,
            Verdict::Rejected => reason == "full" && *bucket != DROP,
            Verdict::Accepted if job.len() > LARGEST => reason == "too_large" || fate == Fate::Waiting,
            Verdict::Accepted => reason.is_empty() || (reason == "dropped" && *bucket == DROP),
        };
        if !is_right {
            wrong.push(format!("{job} in {}: {verdict:?}, and it is {fate:?}", BUCKETS[*bucket].0));
        }
        *seen.entry((BUCKETS[*bucket].0, *verdict, fate)).or_default() += 1;
    }
    assert!(wrong.is_empty(), "{} of {}: {:#?}", wrong.len(), pushed.len(), &wrong[..wrong.len().min(10)]);
    assert!(fates.is_empty(), "nobody pushed {fates:?}");
    // Of every kind there was something.
    let rejecting: HashSet<&str> =
        seen.keys().filter(|(_, verdict, _)| *verdict == Verdict::Rejected).map(|(name, ..)| *name).collect();
    assert!(rejecting.len() >= 6, "{seen:#?}");
    let has = |reason: &str| seen.keys().any(|(.., fate)| *fate == Fate::Rejected(reason.to_owned()));
    assert!(has("full") && has("dropped") && has("too_large"), "{seen:#?}");
    assert!(pushed.len() > 2_000 && refused > 100, "{} jobs, {refused} refused", pushed.len());
}
