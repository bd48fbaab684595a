//! Routes that forward, from outside: what the commands and the door say of them, and the libraries of others, each with its own producer
//! and its own worker, with a bucket between.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::needs::{self, runs};
use crate::rig::{Daemon, Server, eventually, free_port};
use crate::shell::{Shell, said};

fn commands_and_the_door_say_where_jobs_are_forwarded_to() {
    let port = free_port();
    let mut shell = Shell::new(&format!(
        "[[route]]\nname = 'out'\nto = 'their-list'\n[[bucket]]\nmatch = 'a'\nroute = 'out'\n[limits]\nmax_ready = 2\n[http]\n\
         listen = '127.0.0.1:{port}'\n"
    ));
    let (_, out, _) = shell.run(&["check"]);
    assert!(out.contains("\nout       route to the left of the list their-list\n"), "{out}");
    assert!(out.contains("\na         rate 10/s capacity 1000 overflow reject route out catch_up 20ms\n"), "{out}");
    let _daemon = Daemon::start(shell.home());
    shell.case.lpush("a", &["1", "2", "3", "4"]);
    let of_route = |json: &str, route: &str| {
        let status: Value = serde_json::from_str(json).expect("JSON");
        status["routes"].as_array().expect("routes").iter().find(|one| one["route"] == route).cloned()
    };
    let is_full = |route: Value| route["to"] == "their-list" && route["undelivered"] == 2 && route["held"] == 1;
    eventually("the list is full", || of_route(&shell.run(&["status", "--json"]).1, "out").is_some_and(is_full));
    let default = of_route(&shell.run(&["status", "--json"]).1, "default").expect("there too");
    assert!(default.get("to").is_none(), "{default}");
    let (_, out, _) = shell.run(&["status"]);
    assert!(out.contains("route       out: 2 in the list their-list (the oldest for "), "{out}");
    assert!(out.contains("HELD        ") && out.contains("1 bucket waits for them\n"), "{out}");
    let (_, out, _) = shell.run(&["status", "a"]);
    assert!(
        out.contains("held for the workers of route out") && !out.contains("lease") && !out.contains("attempts"),
        "{out}"
    );
    let (_, out, _) = shell.run(&["explain", "a"]);
    assert!(
        out.contains("ready     2 jobs are in the list their-list, at most 2: route out forwards to it\n"),
        "{out}"
    );
    assert!(out.contains("their-list") && out.lines().last().is_some_and(|line| line.contains("held")), "{out}");
    let get = |path: &str| {
        let url = format!("http://127.0.0.1:{port}{path}");
        let answer = Command::new("curl").args(["-s", &url]).output().expect("curl runs");
        String::from_utf8(answer.stdout).expect("text")
    };
    assert!(of_route(&get("/v1/status"), "out").is_some_and(is_full));
    eventually("it is counted", || get("/metrics").contains("dripd_jobs_finished_total{outcome=\"forwarded\"} 2\n"));
    let metrics = get("/metrics");
    for line in [
        "dripd_jobs_dispatched_total{route=\"out\"} 2",
        "dripd_ready_undelivered{route=\"out\"} 2",
        "dripd_in_flight{route=\"out\"} 0",
        "dripd_jobs_finished_total{outcome=\"ack\"} 0",
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line} is not in\n{metrics}");
    }
    let (code, _, err) = shell.run(&["work", "--route", "out", "--print"]);
    assert_eq!(code, 1);
    let why = "route out has no ready stream: its jobs go into the list their-list, and the workers of that list take them; run those, or work \
               another route";
    assert!(err.contains(why), "{err}");
    let taken: Vec<String> = shell.case.cmd(&["RPOP", "their-list", "2"]);
    assert_eq!(taken, ["1", "2"]);
    eventually("the daemon sees that there is room", || {
        shell.case.cmd::<Vec<String>>(&["LRANGE", "their-list", "0", "-1"]) == ["4", "3"]
    });
    let _: String = shell.case.cmd(&["SET", "their-list", "text"]);
    let (_, out, _) = shell.run(&["status"]);
    let wrong =
        "ROUTE       NOTHING LEAVES by out: the key their-list must hold a list: rename\n            or delete it\n";
    assert!(out.contains(wrong), "{out}");
}

/// The programs of a virtual environment with a package, which is kept between runs: it comes from a package registry.
fn python(package: &str, module: &str) -> PathBuf {
    needs::one_of(&["python3"], "apt-get install python3-venv");
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("forward-{module}"));
    let bin = venv.join("bin");
    let import = format!("import {module}");
    let made = runs(Command::new(bin.join("python")).args(["-c", &import]))
        || runs(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))
            && runs(Command::new(bin.join("python")).args(["-m", "pip", "install", "-q", package]));
    if !made {
        needs::missing(&format!("the Python package {package}"), &needs::registry("apt-get install python3-venv"));
    }
    bin
}

/// A worker of somebody else, which ends with the value.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Push jobs with `producer`, which gets a bucket and a number, and see that `worker` does them: in their order, and no more of them at any
/// moment than the bucket, 20 a second, may have let out by then.
fn is_paced(bucket: &str, mut worker: Command, producer: impl Fn() -> Command) {
    let server = Server::start(&[]);
    let home = server.home(&std::fs::read_to_string("examples/forward/forward.toml").expect("the example"));
    let _daemon = Daemon::start(home.path());
    let log = home.path().join("worker.log");
    let file = || File::options().create(true).append(true).open(&log).expect("a log");
    let in_place = |command: &mut Command| {
        command.current_dir("examples/forward").env("REDIS_URL", server.url()).env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::null());
    };
    in_place(&mut worker);
    let _worker = Worker(worker.stdout(file()).stderr(file()).spawn().expect("it runs"));
    let sent = || {
        let text = String::from_utf8_lossy(&std::fs::read(&log).expect("a log")).into_owned();
        let numbers = text.lines().filter_map(|line| line.split_once("sent ")?.1.trim().parse().ok());
        numbers.collect::<Vec<u64>>()
    };
    let push = |count: &str| {
        let mut command = producer();
        in_place(&mut command);
        let (code, out, err) = said(&command.args([bucket, count]).output().expect("it runs"));
        assert_eq!(code, 0, "{out}{err}");
    };
    push("1");
    let seen = std::panic::catch_unwind(|| eventually("the worker takes a job", || sent() == [0]));
    assert!(seen.is_ok(), "{}", String::from_utf8_lossy(&std::fs::read(&log).expect("a log")));
    let since = Instant::now();
    push("20");
    eventually("all jobs are done", || {
        let done = sent().len() as u128 - 1;
        let most = 1 + (since.elapsed() + Duration::from_millis(20)).as_millis() / 50;
        assert!(done <= most, "{done} jobs after {:?}", since.elapsed());
        done == 20
    });
    assert_eq!(sent()[1..], (0..20).collect::<Vec<u64>>());
}

fn celery_s_worker_gets_what_celery_pushed_at_the_rate_of_the_bucket() {
    let bin = python("celery[redis]", "celery");
    let mut worker = Command::new(bin.join("celery"));
    worker.args(["-A", "celery_app", "worker", "--pool", "solo", "--loglevel", "warning"]);
    is_paced("celery:acme", worker, || {
        let mut producer = Command::new(bin.join("python"));
        producer.arg("celery_app.py");
        producer
    });
}

fn rq_s_worker_gets_what_rq_pushed_at_the_rate_of_the_bucket() {
    let bin = python("rq", "rq");
    let mut worker = Command::new("sh");
    let program = bin.join("rq");
    worker.args(["-c", "exec \"$0\" worker --worker-class rq.SimpleWorker --url \"$REDIS_URL\" default"]).arg(program);
    is_paced("rq:acme", worker, || {
        let mut producer = Command::new(bin.join("python"));
        producer.arg("rq_app.py");
        producer
    });
}

fn sidekiq_s_worker_gets_what_sidekiq_pushed_at_the_rate_of_the_bucket() {
    if !runs(Command::new("ruby").args(["-e", "require 'sidekiq'"])) || !runs(Command::new("sidekiq").arg("--version"))
    {
        needs::missing("Sidekiq", "apt-get install ruby-sidekiq");
    }
    let mut worker = Command::new("sidekiq");
    worker.args(["-c", "1", "-r", "./sidekiq_app.rb"]);
    is_paced("sidekiq:acme", worker, || {
        let mut producer = Command::new("ruby");
        producer.arg("sidekiq_app.rb");
        producer
    });
}

tests! {
    commands_and_the_door_say_where_jobs_are_forwarded_to,
    celery_s_worker_gets_what_celery_pushed_at_the_rate_of_the_bucket,
    rq_s_worker_gets_what_rq_pushed_at_the_rate_of_the_bucket,
    sidekiq_s_worker_gets_what_sidekiq_pushed_at_the_rate_of_the_bucket,
}
