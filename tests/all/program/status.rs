//! `dripd status`.

use super::{Shell, said};
use crate::rig::{Daemon, Server, dripd, eventually};
use crate::shell::configure;

#[test]
fn status_shows_everything_and_one_bucket_to_people_and_machines() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\ncapacity = 5\n");
    let (_, out, _) = shell.run(&["status"]);
    assert!(out.contains("policies    in force as in"), "{out}");
    let _daemon = Daemon::start(shell.home());
    shell.case.lpush("b", &["1", "2", "3", "4", "5", "6", "7"]);
    eventually("one leaves", || shell.case.stream("ready").len() == 1);
    eventually("it is counted", || shell.run(&["status"]).1.contains("1 dispatched"));
    let (code, out, err) = shell.run(&["status", "--json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let status: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (&status["scheduled"], &status["rejected"], &status["routes"][0]["undelivered"]),
        (&1.into(), &2.into(), &1.into())
    );
    assert!(status["lateness"]["p99_us"].is_u64());
    let (_, out, _) = shell.run(&["status", "b", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (&status["depth"], &status["capacity"], &status["count"], &status["route"]),
        (&4.into(), &5.into(), &1.into(), &"default".into())
    );
    assert!(shell.run(&["status", "b"]).1.contains("depth       4 of 5"));
    configure(shell.home(), &shell.case, "[defaults]\ncapacity = 6\n");
    assert!(shell.run(&["status"]).1.contains("another one is in force"));
}

#[test]
fn status_and_push_say_that_a_gate_is_closed() {
    let shell =
        Shell::new("[defaults]\nrate = '1/h'\nadmit = { limiter = 'fixed-window', limit = 1, period = '1h' }\n");
    assert_eq!(shell.run(&["push", "b", "one"]).0, 0);
    let (code, _, err) = shell.run(&["push", "b", "two"]);
    assert_eq!(code, 75);
    assert!(err.starts_with("dripd push: b is limited by its fixed-window, 1 of 1000: try again in "), "{err}");
    assert!(err.contains(" m") && !err.contains(" ms"), "{err}");
    let (_, out, _) = shell.run(&["status", "b"]);
    assert!(out.contains("gate        fixed-window: 0 of 1 left, the next in "), "{out}");
    let (_, out, _) = shell.run(&["status", "b", "--json"]);
    assert!(out.contains("\"gates\":[{\"limiter\":\"fixed-window\",\"limit\":1,\"remaining\":0,"), "{out}");
    let (_, out, _) = shell.run(&["check"]);
    assert!(
        out.contains("admit fixed-window 1/h\n") && out.contains("\nnote      admit holds for drip_push only"),
        "{out}"
    );
}

#[test]
fn status_from_another_directory_advises_nothing_that_would_replace_what_is_in_force() {
    let server = Server::start(&[]);
    let home = server.home("[defaults]\ncapacity = 7\n");
    let _daemon = Daemon::start(home.path());
    let foreign = tempfile::tempdir().expect("a directory");
    // A line that is too long for a terminal is broken.
    let on_one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let status = || {
        let mut command = dripd();
        said(
            &command
                .arg("status")
                .current_dir(foreign.path())
                .env("DRIPD_REDIS_URL", server.url())
                .output()
                .expect("it runs"),
        )
    };
    let (code, out, _) = status();
    assert!(code == 0 && !out.contains("reload") && !out.contains("another"), "{out}");
    assert!(on_one_line(&out).contains(" policies in force; no configuration file is found from here"), "{out}");
    std::fs::write(foreign.path().join("config.toml"), "[defaults]\ncapacity = 8\n").expect("written");
    let (_, out, _) = status();
    let told = on_one_line(&out);
    assert!(
        told.contains("another one is in force than in ") && told.contains("; a daemon that reads this file"),
        "{out}"
    );
}

#[test]
fn a_rate_is_shown_in_the_same_words_everywhere() {
    let shell = Shell::new("[defaults]\nrate = '5/1s'\n[[bucket]]\nmatch = 'b'\nrate = '30/600s'\n");
    for (bucket, rate) in [("a", "5/s"), ("b", "30/10m")] {
        let (_, out, _) = shell.run(&["status", bucket]);
        assert!(out.contains(&format!("\nrate        {rate}\n")), "{out}");
        assert!(shell.run(&["check"]).1.contains(&format!(" rate {rate} ")));
    }
}

#[test]
fn a_count_of_delayed_jobs_that_is_none_does_not_keep_anybody_from_the_rest() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\n");
    let _daemon = Daemon::start(shell.home());
    let count = shell.case.key("delays");
    for broken in ["-5", "many", "1.5", "99999999999999999999999"] {
        shell.case.cmd::<String>(&["SET", &count, broken]);
        let (code, out, err) = shell.run(&["status", "--json"]);
        assert_eq!((code, err.as_str()), (0, ""), "{broken}");
        let status: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(status["delayed"], 0, "{broken}");
        let figures: redis::Value = shell.case.fcall("drip__figures", &["policy"], &[""]);
        let told = format!("{figures:?}");
        assert!(told.contains(r#"bulk-string('"delayed"'), int(0)"#), "{broken}: {told}");
    }
}
