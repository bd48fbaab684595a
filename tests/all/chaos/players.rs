//! What everybody on the stage does: producers and workers never give up, somebody watches the server, and all of them note what they see.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};

use super::cast::{Shared, now_us};
use super::history::{Answer, End, Entry, Held, Push};
use super::line::{Line, PAUSE, is_for_later};
use super::stage::{BUCKETS, CAPACITIES};

/// Push one job after the other into any of the buckets, in turns by a plain push and by the function.
pub fn produce(shared: &Shared, n: usize) {
    let mut line = Line::new(&shared.way);
    let mut turn = n;
    while shared.pushing.load(Ordering::Relaxed) {
        turn += 1;
        let bucket = usize::try_from(crate::rig::rand_u64() % 5).expect("small");
        let job = format!("j{}", shared.next_job.fetch_add(1, Ordering::Relaxed));
        let key = shared.names.of_bucket("queue", bucket);
        let sent_us = now_us();
        let answer = if turn.is_multiple_of(2) {
            let said: RedisResult<i64> = line.query(redis::cmd("LPUSH").arg(&key).arg(&job));
            said.map(|length| length <= CAPACITIES[bucket])
        } else {
            let said: RedisResult<Vec<i64>> =
                line.query(redis::cmd("FCALL").arg("drip_push").arg(1).arg(&key).arg(&job));
            said.map(|said| said[0] == 1)
        };
        let answer = match answer {
            Ok(true) => Answer::Accepted,
            Ok(false) => Answer::Rejected,
            Err(why) if is_for_later(&why) => Answer::Rejected,
            Err(_) => Answer::Unknown,
        };
        let push = Push { job, bucket, sent_us, answered_us: now_us(), answer, primary: line.primary };
        shared.pushes.lock().expect("no panic").push(push);
        sleep(Duration::from_millis(4));
    }
}

/// Ask the server something again and again, so that it is known when it may have stood still. Where ids tell no time it is asked how far the
/// stream has come.
pub fn watch(shared: &Shared) {
    let mut line = Line::new(&shared.way);
    let note = |sent, now| shared.questions.lock().expect("no panic").push((sent, now));
    note(now_us(), now_us());
    // The question has a key, so that in a cluster nobody but the right server answers.
    let (ready, mut question) = (shared.names.key("ready"), Cmd::new());
    question.arg(if shared.ids_tell_no_time { &["XINFO", "STREAM"][..] } else { &["EXISTS"] }).arg(ready);
    while shared.working.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(1));
        let sent = now_us();
        let answer: RedisResult<Value> = line.query(&question);
        let now = now_us();
        let Ok(answer) = answer else { continue };
        note(sent, now);
        if shared.ids_tell_no_time
            && let Ok(stream) = redis::from_redis_value::<HashMap<String, Value>>(answer)
        {
            let id: String = redis::from_redis_value_ref(&stream["last-generated-id"]).expect("an id");
            shared.tops.lock().expect("no panic").push((number_of(&id), sent, now));
        }
    }
}

/// What a read of a stream is answered.
type Read = Option<Vec<(String, Vec<(String, HashMap<String, String>)>)>>;

/// Take jobs, hold each for a moment, and finish it in one of the ways that there are. A tenth fails.
pub fn work(shared: &Shared, n: usize) {
    let mut line = Line::new(&shared.way);
    let ready = shared.names.key("ready");
    let (mut name, mut turn) = (format!("w{n}"), 0_u64);
    while shared.working.load(Ordering::Relaxed) {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("workers").arg(&name).arg("COUNT").arg(4).arg("BLOCK").arg(100);
        read.arg("STREAMS").arg(&ready).arg(">");
        let read_us = now_us();
        let Ok(reply) = line.query::<Read>(&read) else {
            sleep(PAUSE); // there may be no group yet
            continue;
        };
        let (from, taken_us) = (line.primary, (read_us, now_us()));
        let entries: Vec<_> = reply.into_iter().flatten().flat_map(|(_, entries)| entries).collect();
        let at_of: Vec<u64> = entries.iter().map(|(id, fields)| note(shared, from, id, fields)).collect();
        let dropped = |at| Held { at, taken_us, end: End::Dropped, given_us: None, acked_us: None, primary: from };
        let take = |deaths: usize| deaths.checked_sub(1);
        if !entries.is_empty() && shared.deaths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            shared.held.lock().expect("no panic").extend(at_of.into_iter().map(dropped));
            name.push('x'); // another one takes its place
            line.hang_up();
            continue;
        }
        for ((id, _), at) in entries.iter().zip(at_of) {
            turn += 1;
            sleep(Duration::from_micros(500));
            let given_us = now_us();
            let (end, command) = match turn % 10 {
                0 => (End::Failed, fcall("drip_fail", &ready, id)),
                n if n % 2 == 0 => (End::Acked, fcall("drip_ack", &ready, id)),
                _ => (End::Acked, redis::cmd("XACK").arg(&ready).arg("workers").arg(id).clone()),
            };
            let held = match give_back(shared, &mut line, from, &command) {
                None => dropped(at),
                Some(said) => {
                    let acked_us = said.ok().filter(|said| end == End::Acked && *said == 1).map(|_| now_us());
                    Held { at, taken_us, end, given_us: Some(given_us), acked_us, primary: line.primary }
                }
            };
            shared.held.lock().expect("no panic").push(held);
        }
    }
}

fn fcall(name: &str, ready: &str, id: &str) -> Cmd {
    redis::cmd("FCALL").arg(name).arg(1).arg(ready).arg(id).clone()
}

/// Finish what a primary gave out, wherever its slot is now. Nothing is asked where another entry may have its id.
fn give_back(shared: &Shared, line: &mut Line, from: usize, command: &Cmd) -> Option<RedisResult<i64>> {
    loop {
        line.reach();
        if line.has_lost(from) {
            return None;
        }
        match line.send(command) {
            Err(why) if is_for_later(&why) && shared.working.load(Ordering::Relaxed) => sleep(PAUSE),
            said => return Some(said),
        }
    }
}

/// The number of an id: they grow alike.
fn number_of(id: &str) -> u64 {
    let (ms, seq) = id.split_once('-').expect("an id");
    let (ms, seq): (u64, u64) = (ms.parse().expect("a number"), seq.parse().expect("a number"));
    assert!(seq < 1 << 17, "{id}");
    ((ms << 17) + seq) << 4
}

/// Note an entry. Replies its number: one primary may know by an id another entry than the one before it.
fn note(shared: &Shared, primary: usize, id: &str, fields: &HashMap<String, String>) -> u64 {
    let mut entries = shared.entries.lock().expect("no panic");
    let number = number_of(id);
    let is_same =
        |entry: &&mut Entry| entry.at & !15 == number && entry.job == fields["job"] && entry.primary != primary;
    if primary > 0
        && let Some(known) = entries.iter_mut().rev().find(is_same)
    {
        known.is_kept = true;
        return known.at;
    }
    let bucket = (0..BUCKETS.len()).find(|one| shared.names.bucket(*one) == fields["bucket"]).expect("one of them");
    let attempt = fields["attempt"].parse().expect("a number");
    let at = number + u64::try_from(primary).expect("small");
    let left_us = (number >> 21) * 1_000;
    let job = fields["job"].clone();
    entries.push(Entry { at, left_us, early_us: left_us, job, bucket, attempt, primary, is_kept: false });
    at
}
