//! The examples, as a newcomer runs them.

use std::process::{Command, Stdio};

use crate::needs;
use crate::rig::{Case, Daemon, Server, dripd, eventually, without_door};
use crate::shell::said;

/// The examples in a language, on a Redis of their own.
fn run(language: &str) {
    let server = Server::start(&[]);
    let home = tempfile::tempdir().expect("a directory");
    let toml = format!(
        "[redis]\nurl = '{}'\n[defaults]\nrate = '1000/s'\n[[bucket]]\nmatch = 'small:*'\nrate = '1/h'\ncapacity = 3\n",
        server.url()
    );
    std::fs::write(home.path().join("config.toml"), without_door(&toml)).expect("written");
    let _daemon = Daemon::start(home.path());
    // The clients are kept between runs: they come from package registries.
    let work = concat!(env!("CARGO_TARGET_TMPDIR"), "/examples");
    let work = format!("{work}-{language}");
    let output =
        Command::new("sh").args(["tests/examples.sh", &server.url(), &work, language]).output().expect("sh runs");
    let (code, out, err) = said(&output);
    assert_eq!(code, 0, "{out}{err}");
    if out.starts_with("SKIPPED") {
        needs::skipped(&out, "apt-get install redis-tools python3-venv nodejs npm");
    }
    assert_eq!(
        out,
        format!(
            "ok {language}
"
        )
    );
}

fn the_examples_for_the_shell_run_with_the_stock_client() {
    run("sh");
}

fn the_examples_in_python_run_with_the_stock_client() {
    run("python");
}

fn the_examples_in_node_run_with_the_stock_client() {
    run("node");
}

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

tests! {
    the_examples_for_the_shell_run_with_the_stock_client,
    the_examples_in_python_run_with_the_stock_client,
    the_examples_in_node_run_with_the_stock_client,
    jobs_pass_through_each_recipe,
}
