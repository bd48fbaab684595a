//! Told limits where a system has two partitions: each is kept where its bucket, or its budget, lives.

use super::shell_at;
use crate::program::Work;
use crate::program::work_http::Hook;
use crate::rig::{Daemon, Server, eventually, test_config};

#[test]
fn what_is_told_of_a_bucket_or_a_budget_is_kept_in_its_partition_alone() {
    let server = Server::start(&[]);
    let policies = ["x", "y", "z", "u", "v", "w"].map(|name| {
        format!("[[budget]]\nmatch = '{name}'\ntold = 'stop'\n[[bucket]]\nmatch = '{name}:*'\nwithin = '{name}'\n")
    });
    let toml = format!("partitions = 2\npartition_by = 1\n[defaults]\nrate = '1000/s'\n{}", policies.concat());
    let shell = shell_at(&server, &test_config(&toml));
    let _daemons = (Daemon::start(shell.home()), Daemon::start(shell.home()));
    let number = |name: &str| shell.must_run(&["partition", name]).trim_end().to_owned();
    let of = |wanted: &str| ["x", "y", "z", "u", "v", "w"].into_iter().find(|name| number(name) == wanted);
    let (zero, one) = (of("0").expect("one of six"), of("1").expect("one of six"));
    let fields = |number: &str| -> Vec<String> {
        let found = redis::cmd("HKEYS").arg(format!("drip:told:{{{number}}}")).query(&mut server.connect());
        found.expect("a hash, or none")
    };

    // A budget by its name, a budget through a bucket, and a bucket, of which the other partition knows nothing.
    shell.must_run(&["told", zero, "0", "1h", "--budget", "--limit", "9"]);
    assert_eq!((fields("0"), fields("1")), (vec![format!("{{{zero}}}")], Vec::new()));
    let bucket = format!("{one}:a");
    shell.must_run(&["told", &bucket, "0", "1h"]);
    assert_eq!(fields("1"), std::slice::from_ref(&bucket));
    shell.must_run(&["told", &bucket, "clear"]);
    eventually("it is forgotten", || fields("1").is_empty());
    let settings = shell.must_run(&["settings"]);
    assert!(settings.contains(&format!("budget {zero}")), "{settings}");

    // Workers go round both partitions, and say it where the job came from.
    let hook = Hook::start(|_, _| "200 Fine\r\nRateLimit: \"a\";r=0;t=3600\r\nRateLimit-Policy: \"a\";q=70;w=3600");
    let _worker = Work::start(&shell, &["--http", &hook.url, "--told-in", one]);
    let push = |bucket: &str| shell.must_run(&["push", bucket, bucket]);
    push(&bucket);
    assert_eq!(hook.take(1)[0].job, bucket.as_bytes());
    eventually("the budget is told", || fields("1") == [format!("{{{one}}}")]);
    assert_eq!(fields("0"), [format!("{{{zero}}}")]);
    push(&format!("{one}:b"));
    push(&format!("{zero}:b"));
    for (name, left) in [(zero, "0 of 9 jobs"), (one, "0 of 70 jobs")] {
        eventually("it is explained", || shell.run(&["explain", &format!("{name}:b")]).1.contains(left));
    }
    shell.must_run(&["told", zero, "clear", "--budget"]);
    assert_eq!(hook.take(1)[0].job, format!("{zero}:b").as_bytes(), "the other partition still waits");
}
