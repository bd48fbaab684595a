//! A server that is no Redis, or means no good, and the built program as its client: it ends with a line, or goes on trying. It neither breaks
//! nor grows.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{Damage, bytes_like, cases, damage, damaged};
use crate::program::proc;
use crate::rig::{Daemon, dripd, eventually, server, test_config};

/// What such a server does with whatever it is asked.
#[derive(Debug, Clone)]
enum Trick {
    /// It answers each piece that it reads with these bytes.
    Say(Vec<u8>),
    /// It says these bytes again and again and never ends.
    Endless(Vec<u8>),
    /// It asks a real Redis, and damages what that answers, from the n-th piece on.
    Damage(usize, Vec<Damage>),
    /// It greets as Redis does, and then says this.
    GreetAndSay(Vec<u8>),
    /// It asks a real Redis so many times, and then says nothing more.
    FallSilent(usize),
}

/// What a Redis says to `HELLO 3`.
const GREETING: &[u8] =
    b"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:3\r\n\
    $4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";

/// Answers that a client may get, of every type.
const ANSWERS: [&str; 24] = [
    "+OK\r\n",
    "-ERR no\r\n",
    ":1\r\n",
    "$-1\r\n",
    "*-1\r\n",
    "*0\r\n",
    "_\r\n",
    "#t\r\n",
    ",nan\r\n",
    "(123456789012345678901234567890\r\n",
    "$3\r\nabc\r\n",
    "*2\r\n:9\r\n:7\r\n",
    "%1\r\n+a\r\n:1\r\n",
    "~1\r\n+a\r\n",
    ">2\r\n+invalidate\r\n*1\r\n$12\r\ndrip:queue:a\r\n",
    "!5\r\nERR x\r\n",
    "=7\r\ntxt:abc\r\n",
    "|1\r\n+a\r\n+b\r\n:1\r\n",
    "*3\r\n*0\r\n%0\r\n_\r\n",
    "-MOVED 1 127.0.0.1:1\r\n",
    "-LOADING x\r\n",
    "-NOAUTH x\r\n",
    "-READONLY x\r\n",
    "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n",
];

/// A hostile server. It ends with the value.
struct Hostile {
    port: u16,
    asked: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl Hostile {
    fn open(trick: Trick) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("a port").port();
        let (asked, is_over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (count, end) = (Arc::clone(&asked), Arc::clone(&is_over));
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                let (trick, count, end) = (trick.clone(), Arc::clone(&count), Arc::clone(&end));
                std::thread::spawn(move || play(&client, &trick, &count, &end));
            }
        });
        Self { port, asked, is_over }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port)); // wakes the listener
    }
}

/// Until the other side closes, or the server's end: to whoever does not read it is written no more, either.
fn play(mut client: &TcpStream, trick: &Trick, asked: &AtomicUsize, is_over: &AtomicBool) -> Option<()> {
    let limit = Some(Duration::from_millis(100));
    client.set_read_timeout(limit).and_then(|()| client.set_write_timeout(limit)).ok()?;
    let mut real = TcpStream::connect(("127.0.0.1", server().port)).ok()?;
    real.set_read_timeout(Some(Duration::from_millis(10))).ok()?;
    let (mut bytes, mut pieces) = (vec![0; 64 * 1024], 0);
    while !is_over.load(Ordering::Relaxed) {
        let n = match client.read(&mut bytes) {
            Ok(0) => return None,
            Ok(n) => n,
            Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => 0,
            Err(_) => return None,
        };
        if n > 0 {
            asked.fetch_add(1, Ordering::Relaxed);
        }
        match trick {
            Trick::Say(answer) if n > 0 => client.write_all(answer).ok()?,
            Trick::GreetAndSay(_) if n > 0 && pieces == 0 => client.write_all(GREETING).ok()?,
            Trick::GreetAndSay(answer) if n > 0 => client.write_all(answer).ok()?,
            Trick::Endless(answer) => {
                let many = answer.repeat(1 + 65_536 / answer.len().max(1));
                while !is_over.load(Ordering::Relaxed) && client.write_all(&many).is_ok() {}
            }
            Trick::Damage(from, damages) => {
                real.write_all(&bytes[..n]).ok()?;
                if let Ok(more) = real.read(&mut bytes) {
                    let answer = bytes[..more].to_vec();
                    client.write_all(&if pieces < *from { answer } else { damaged(answer, damages) }).ok()?;
                }
            }
            Trick::FallSilent(after) => {
                real.write_all(&bytes[..n]).ok()?;
                if let Ok(more) = real.read(&mut bytes)
                    && pieces < *after
                {
                    client.write_all(&bytes[..more]).ok()?;
                }
            }
            _ => {}
        }
        pieces += usize::from(n > 0);
    }
    None
}

/// The daemon and some commands as clients of such a server. Replies what was wrong.
fn suffer(trick: &Trick) -> Option<String> {
    let (hostile, home) = (Hostile::open(trick.clone()), tempfile::tempdir().expect("a directory"));
    let toml = format!("[redis]\nurl = 'redis://127.0.0.1:{}'\nprefix = 'hostile'\n", hostile.port);
    std::fs::write(home.path().join("config.toml"), test_config(&toml)).expect("written");
    let mut daemon = Daemon::spawn(home.path());
    let start = |args: &[&str]| {
        let mut command: Command = dripd();
        command.args(args).current_dir(home.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("it runs")
    };
    let commands: Vec<_> =
        [&["status"][..], &["push", "a", "x"], &["explain", "a"]].iter().map(|args| start(args)).collect();
    // A process that is about to become the daemon still has the memory of this one.
    let name = format!("/proc/{}/comm", daemon.child.id());
    eventually("the daemon runs", || std::fs::read_to_string(&name).is_ok_and(|name| name.trim() == "dripd"));
    eventually("the daemon asks", || hostile.asked.load(Ordering::Relaxed) > 0);
    let since = Instant::now();
    let (mut most_kb, mut ended) = (0, None);
    while since.elapsed() < Duration::from_millis(1_500) && ended.is_none() {
        most_kb = most_kb.max(proc(daemon.child.id(), "status", "RssAnon:").unwrap_or(0));
        ended = daemon.child.try_wait().expect("it can be asked");
        std::thread::sleep(Duration::from_millis(10));
    }
    let log = daemon.log();
    if most_kb > 100 * 1024
        || log.contains("panicked")
        || ended.is_some_and(|status| !matches!(status.code(), Some(69 | 78)))
    {
        return Some(format!("{most_kb} kB, ended {ended:?}\n{log}"));
    }
    for mut command in commands {
        // A hostile server may keep a command waiting for as long as it may take; nothing waits for ever.
        let until = Instant::now() + Duration::from_secs(60);
        let status = loop {
            match command.try_wait().expect("it can be asked") {
                Some(status) => break status,
                None if Instant::now() > until => {
                    let _ = (command.kill(), command.wait());
                    return Some("a command does not end".to_owned());
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let mut said = String::new();
        command.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        let is_clear = status.success() || (!said.is_empty() && status.code().is_some_and(|code| code != 101));
        if said.contains("panicked") || !is_clear {
            return Some(format!("a command ended with {status}: {said}"));
        }
    }
    None
}

/// All of them at once.
fn suffer_all(tricks: &[Trick]) -> Vec<String> {
    let wrong = std::thread::scope(|scope| {
        let running: Vec<_> = tricks.iter().map(|trick| scope.spawn(move || suffer(trick))).collect();
        running.into_iter().map(|one| one.join().expect("no panic")).collect::<Vec<_>>()
    });
    tricks.iter().zip(wrong).filter_map(|(trick, wrong)| Some(format!("{trick:?}: {}", wrong?))).collect()
}

#[test]
fn a_server_that_promises_much_or_never_ends_neither_breaks_nor_fattens_anybody() {
    let huge = [
        "$999999999999\r\n",
        "*2147483647\r\n",
        "%9223372036854775807\r\n",
        "$2147483647\r\nabc",
        ":99999999999999999999999\r\n",
    ];
    let deep = b"*1\r\n".repeat(100_000);
    let mut tricks: Vec<Trick> = huge.iter().map(|answer| Trick::Say(answer.as_bytes().to_vec())).collect();
    tricks.extend(huge.iter().map(|answer| Trick::GreetAndSay(answer.as_bytes().to_vec())));
    tricks.extend([Trick::Say(deep.clone()), Trick::GreetAndSay(deep)]);
    let wrong = suffer_all(&tricks);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // An endless text of announced length is read for as long as an answer may take: a job may be that large.
    let endless = ["+x", "x", "*1\r\n", ":1\r\n", ">1\r\n+a\r\n", "\r\n"];
    let tricks: Vec<Trick> = endless.iter().map(|answer| Trick::Endless(answer.as_bytes().to_vec())).collect();
    let wrong = suffer_all(&tricks);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn trick() -> impl Strategy<Value = Trick> {
    prop_oneof![
        1 => bytes_like(&ANSWERS).prop_map(Trick::Say),
        2 => bytes_like(&ANSWERS).prop_map(Trick::GreetAndSay),
        6 => (0..40_usize, prop::collection::vec(damage(), 1..4)).prop_map(|(from, damages)| Trick::Damage(from, damages)),
        1 => (0..20_usize).prop_map(Trick::FallSilent),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 30, ..cases(2) })]

    #[test]
    fn whatever_a_server_answers_the_program_says_so_or_goes_on_trying(tricks in prop::collection::vec(trick(), 6)) {
        let wrong = suffer_all(&tricks);
        prop_assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
