//! What docs/workers.md says of stock clients whose reply to a push is lost: which of them push again by themselves, and what switches it off.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::clients::{node_client, node_with, python_with_redis};
use crate::needs::{self, runs};
use crate::rig::Server;
use crate::shell::said;

/// A way to a Redis on which the first reply to a push is lost: the connection ends in its place.
fn losing_a_reply(server: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let is_lost = Arc::new(AtomicBool::new(false));
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut redis = TcpStream::connect(("127.0.0.1", server)).expect("it answers");
            let (mut from, mut to) = (client.try_clone().expect("a copy"), redis.try_clone().expect("a copy"));
            let (was_pushed, is_lost) = (Arc::new(AtomicBool::new(false)), is_lost.clone());
            let pushes = was_pushed.clone();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(length @ 1..) = from.read(&mut bytes) {
                    if String::from_utf8_lossy(&bytes[..length]).to_uppercase().contains("LPUSH") {
                        pushes.store(true, Ordering::SeqCst);
                    }
                    if to.write_all(&bytes[..length]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(length @ 1..) = redis.read(&mut bytes) {
                    let is_first = was_pushed.load(Ordering::SeqCst) && !is_lost.swap(true, Ordering::SeqCst);
                    if is_first || client.write_all(&bytes[..length]).is_err() {
                        break;
                    }
                }
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    port
}

/// A program that pushes one job, and how many there are then; it says `reply` or `error`.
#[track_caller]
fn pushes(command: &mut Command, says: &str, jobs: i64) {
    let server = Server::start(&[]);
    let url = format!("redis://127.0.0.1:{}", losing_a_reply(server.port));
    let (code, out, err) = said(&command.env("REDIS_URL", url).output().expect("it runs"));
    let length: i64 = redis::cmd("LLEN").arg("list").query(&mut server.connect()).expect("a length");
    assert_eq!((code, out.trim(), length), (0, says, jobs), "{err}");
}

/// The page names this, as a switch of this client.
#[track_caller]
fn is_on_the_page(client: &str, switch: &str) {
    let page = std::fs::read_to_string("docs/workers.md").expect("the page");
    let row = page.lines().find(|line| line.starts_with('|') && line.contains(client)).expect("a row of the table");
    assert!(row.contains(&format!("`{switch}`")), "{row}");
}

fn redis_rb_pushes_again_unless_it_is_told_not_to() {
    if !runs(Command::new("ruby").args(["-rredis", "-e", ""])) {
        needs::missing("Ruby with its Redis client", "apt-get install ruby-redis");
    }
    let ruby = |options: &str| {
        let program = format!(
            "begin; Redis.new(url: ENV['REDIS_URL'], {options}).lpush('list', 'x'); puts 'reply'; rescue Redis::BaseError; puts 'error'; end"
        );
        let mut command = Command::new("ruby");
        command.args(["-rredis", "-e", &program]);
        command
    };
    pushes(&mut ruby(""), "reply", 2);
    is_on_the_page("redis-rb", "reconnect_attempts: 0");
    pushes(&mut ruby("reconnect_attempts: 0"), "error", 1);
}

fn ioredis_pushes_again_unless_it_is_told_not_to() {
    let folder = node_with("client-ioredis", &["ioredis"]);
    let node = |options: &str| {
        let program = format!(
            "const redis = new (require('ioredis').Redis)(process.env.REDIS_URL, {{ {options} }}); redis.on('error', () => {{}});
            redis.lpush('list', 'x').then(() => 'reply', () => 'error').then((said) => {{ console.log(said); process.exit(); }});"
        );
        let mut command = Command::new("node");
        command.args(["-e", &program]).current_dir(&folder);
        command
    };
    pushes(&mut node(""), "reply", 2);
    for switch in ["maxRetriesPerRequest: 0", "retryStrategy: () => null"] {
        is_on_the_page("ioredis", switch);
        pushes(&mut node(switch), "error", 1);
    }
}

fn redis_py_pushes_again_unless_it_is_told_not_to() {
    // What `Redis.from_url` makes does not.
    let python = |options: &str| {
        let program = format!(
            "import os\nfrom redis import Redis\nfrom redis.backoff import NoBackoff\nfrom redis.retry import Retry
try: print('reply' if Redis(port=int(os.environ['REDIS_URL'].split(':')[2]), {options}).lpush('list', 'x') else '')\nexcept Exception: print('error')"
        );
        let mut command = Command::new(python_with_redis());
        command.args(["-c", &program]);
        command
    };
    pushes(&mut python(""), "reply", 2);
    is_on_the_page("redis-py 6", "retry=Retry(NoBackoff(), 0)");
    pushes(&mut python("retry=Retry(NoBackoff(), 0)"), "error", 1);
}

fn node_redis_does_not_push_again() {
    let program = "const redis = require('redis').createClient({ url: process.env.REDIS_URL }); redis.on('error', () => {});
        redis.connect().then(() => redis.lPush('list', 'x')).then(() => 'reply', () => 'error').then((said) => { console.log(said); process.exit(); });";
    // The package of the folder is a module, and what stands in the argument is none.
    let mut node = Command::new("node");
    pushes(node.args(["--input-type=commonjs", "-e", program]).current_dir(node_client()), "error", 1);
}

tests! {
    ioredis_pushes_again_unless_it_is_told_not_to,
    node_redis_does_not_push_again,
    redis_py_pushes_again_unless_it_is_told_not_to,
    redis_rb_pushes_again_unless_it_is_told_not_to,
}
