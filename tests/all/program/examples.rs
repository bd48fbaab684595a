//! The examples, as a newcomer runs them.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::said;
use crate::rig::{Case, Daemon, Server, dripd, eventually, test_config};

#[test]
fn the_examples_run_with_stock_clients() {
    let server = Server::start(&[]);
    let home = tempfile::tempdir().expect("a directory");
    let toml = format!(
        "[redis]\nurl = '{}'\n[defaults]\nrate = '1000/s'\n[[bucket]]\nmatch = 'small:*'\nrate = '1/h'\ncapacity = 3\n",
        server.url()
    );
    std::fs::write(home.path().join("config.toml"), test_config(&toml)).expect("written");
    let _daemon = Daemon::start(home.path());
    // The clients are kept between runs: they come from package registries.
    let work = concat!(env!("CARGO_TARGET_TMPDIR"), "/examples");
    let output = Command::new("sh").args(["tests/examples.sh", &server.url(), work]).output().expect("sh runs");
    let (code, out, err) = said(&output);
    assert_eq!(code, 0, "{out}{err}");
    for line in out.lines().filter(|line| line.starts_with("SKIPPED")) {
        writeln!(std::io::stderr(), "{line}").expect("standard error"); // past the capture of the test harness
    }
}

#[test]
fn jobs_pass_through_each_recipe() {
    for (recipe, buckets) in [
        ("sms", ["twilio:acme:1", "twilio:zen:1"]),
        ("mail", ["mail:mta1:example.org:acme", "mail:mta1:example.net:acme"]),
        ("llm/dripd", ["llm:large:support", "llm:large:search"]),
        ("webhooks", ["hook:acme:orders", "hook:zen:orders"]),
        ("scraping", ["crawl:example.org", "crawl:example.net"]),
    ] {
        let server = Server::start(&[]);
        let policies = std::fs::read_to_string(format!("examples/{recipe}.toml")).expect("the recipe");
        let home = server.home(&policies);
        let daemon = Daemon::start(home.path());
        let mut case = Case { redis: server.connect(), prefix: "drip".to_owned() };
        for bucket in buckets {
            case.lpush(bucket, &["first", "second"]);
        }
        let done = home.path().join("done");
        let script = format!("echo $DRIPD_BUCKET $(cat) >> {}", done.display());
        let mut worker = dripd();
        worker.current_dir(home.path()).args(["work", "--exec", "sh", "-c", &script]);
        let mut worker = worker.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        let lines =
            || std::fs::read_to_string(&done).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
        let all = std::panic::catch_unwind(|| eventually("every job is done", || lines().len() == 4));
        worker.kill().and_then(|()| worker.wait().map(drop)).expect("it is stopped");
        assert!(all.is_ok(), "{recipe}: {:?}\n{}", lines(), daemon.log());
        for bucket in buckets {
            let of_it: Vec<String> = lines().into_iter().filter(|line| line.starts_with(bucket)).collect();
            assert_eq!(of_it, [format!("{bucket} first"), format!("{bucket} second")], "{recipe}");
        }
    }
}
