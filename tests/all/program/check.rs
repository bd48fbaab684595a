//! `dripd check` and `dripd functions`.

use super::{Shell, said};
use crate::rig::{Daemon, Server, eventually};
use crate::shell::configure;

#[test]
fn check_says_what_a_configuration_means_or_every_problem_of_it() {
    let shell = Shell::new("[defaults]\nrate = '5/s'\n[[bucket]]\nmatch = 'sms:*'\nrate = '1/10s'\n");
    let (code, out, _) = shell.run(&["check"]);
    assert_eq!(code, 0);
    assert!(out.contains("sms:*     rate 1/10s") && out.contains("(others)  rate 5/s"), "{out}");
    let bad = shell.file("bad.toml", "[defaults]\nrate = '5'\ncapacity = -1\n[redis]\npartitions = 5\n[htp]\n");
    let (code, out, err) = shell.run(&["check", &bad]);
    assert_eq!((code, out.as_str()), (78, ""));
    for part in [
        "4 problems",
        "defaults.rate: \"5\"",
        "defaults.capacity: -1",
        "redis.partitions: 5 is not allowed; write a power of two, 1 to 64",
        "did you mean http?",
    ] {
        assert!(err.contains(part), "{part} is not in\n{err}");
    }
    let broken = shell.file("broken.toml", "[defaults\n");
    assert_eq!(shell.run(&["check", &broken]).0, 78);
    assert_eq!(shell.run(&["--config", "not-there.toml", "check"]).0, 78);
    assert_eq!(shell.run(&["--config", &bad, "run"]).0, 78);
    assert_eq!(shell.run(&["--config", &bad, "push", "b", "x"]).0, 78);
}

#[test]
fn an_unknown_key_is_told_what_may_stand_there() {
    let shell = Shell::new("");
    let bad = shell.file("bad.toml", "[http]\nport = 1\n[redis]\nfoo = 1\n");
    let (code, _, err) = shell.run(&["check", &bad]);
    assert_eq!(code, 78);
    assert!(err.contains("http.port: unknown key; write one of listen, hosts, memory, token\n"), "{err}");
    assert!(
        err.contains("redis.foo: unknown key; write one of url, sentinel, cluster, user, password_file, tls, "),
        "{err}"
    );
}

#[test]
fn check_warns_of_an_entry_that_is_never_used_and_is_content() {
    let shell = Shell::new("[[bucket]]\nmatch = 'sms:*'\n[[bucket]]\nmatch = 'sms:ch'\n");
    let (code, out, err) = shell.run(&["check"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let warning = "\nwarning   bucket[2] \"sms:ch\" is never used: bucket[1] \"sms:*\" comes first and matches all that it \
                   matches; put it before that one, or remove it\n";
    assert!(out.contains(": good\n") && out.ends_with(warning), "{out}");
}

const TREE: &str = "[[budget]]\nmatch = 'twilio'\nrate = '3000/m'\nslow = { initial = '5s', adaptive = true }\n\
    [[budget]]\nmatch = 'twilio:*'\nquota = ['1000/d@-08:00', '100/h']\nconcurrency = 50\nwithin = 'twilio'\ncatch_up = '0s'\n\
    [[bucket]]\nmatch = 'twilio:*:*'\nrate = '6/s'\nwithin = 'twilio:{1}'\nweight = 3\nconcurrency = 1\nordered = true\n";

#[test]
fn check_says_what_a_tree_means() {
    let shell = Shell::new(TREE);
    let (code, out, err) = shell.run(&["check"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let expected = "\n\
        twilio      budget rate 3000/m slow 5s..10m cap 1h adaptive\n\
        twilio:*    budget catch_up 0us quota 1000/d@-08:00 quota 100/h concurrency 50 within twilio\n\
        twilio:*:*  rate 6/s capacity 1000 lease 1m attempts 5 backoff 1s..10m overflow reject route default catch_up at least 20ms concurrency 1 \
        within twilio:{1} weight 3 ordered\n\
        (others)    rate 10/s capacity 1000 lease 1m attempts 5 backoff 1s..10m overflow reject route default catch_up 20ms\n\
        (routes)    ready_window off\n";
    assert!(out.ends_with(expected), "{out}");
}

#[test]
fn everything_that_is_wrong_with_a_tree_is_named_at_once() {
    let shell = Shell::new("");
    let text = TREE.replace("within = 'twilio'\n", "within = 'twillio'\n").replace("'twilio:{1}'", "'twilio:{3}'")
        + "[[budget]]\nmatch = 'a'\nrate = '1/s'\nwithin = 'b'\n[[budget]]\nmatch = 'b'\nrate = '1/s'\nwithin = 'a'\n\
           [[budget]]\nmatch = 'c'\nweight = 2\n[defaults]\nconcurrency = 0\njob_rate = '5'\n";
    let bad = shell.file("bad.toml", &text);
    let (code, out, err) = shell.run(&["check", &bad]);
    assert_eq!((code, out.as_str()), (78, ""));
    let lines: Vec<&str> = err.lines().skip(1).collect();
    let expected = [
        "  defaults.concurrency: 0 is not allowed; write a whole number, 1 to 100000, or \"none\"; to let nothing out use `dripd pause`",
        "  defaults.job_rate: \"5\" is not allowed; write a count and a period, as in \"500/m\", or \"none\"",
        "  budget[5]: it limits nothing; write at least one of rate, job_rate, quota, concurrency, told",
        "  budget[2].within: \"twillio\" names no budget: no [[budget]] entry matches it; did you mean \"twilio\"?",
        "  budget[3].within: \"b\" closes a circle: \"a\" in \"b\" in \"a\"; one of them must be within nothing",
        "  bucket[1].within: \"twilio:{3}\" has {3}, but \"twilio:*:*\" has only 2 *; write {1} to {2}",
    ];
    assert!(err.starts_with("dripd check: ") && err.contains("bad.toml: 6 problems\n"), "{err}");
    assert_eq!(lines, expected);
}

#[test]
fn check_warns_of_a_rate_above_that_of_the_budget_above() {
    let shell = Shell::new("[[budget]]\nmatch = 'api'\nrate = '5/s'\n[[bucket]]\nmatch = 'acme'\nwithin = 'api'\n");
    let (code, out, err) = shell.run(&["check"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let warning = "\nwarning   bucket[1] \"acme\": its rate, 10/s, is above that of budget[1] \"api\", 5/s: it never gets more than that\n";
    assert!(out.ends_with(warning), "{out}");
}

#[test]
fn too_many_globs_are_refused_by_check_run_and_reload() {
    let shell = Shell::new("");
    let daemon = Daemon::start(shell.home());
    let entries = |glob: &str, n: usize| (0..n).map(|i| entry(glob, i)).collect::<String>();
    let plain = entries("name@", 500) + &entries("prefix@:*", 500);
    configure(shell.home(), &shell.case, &(plain.clone() + &entries("*:@", 100)));
    assert_eq!(shell.run(&["check"]).0, 0);
    let (code, out, err) = shell.run(&["reload"]);
    assert!(code == 0 && out.ends_with("live\n"), "{code} {out}{err}");
    configure(shell.home(), &shell.case, &(plain + &entries("*:@", 101)));
    for command in ["check", "run", "reload"] {
        let (code, out, err) = shell.run(&[command]);
        assert!(code == 78 && out.is_empty(), "{command}: {code} {err}");
        for part in
            ["1 problem\n", "bucket: 101 entries", "at most 100", "names (\"acme\")", "plain prefixes (\"sms:*\")"]
        {
            assert!(err.contains(part), "{command}: {part} is not in\n{err}");
        }
    }
    daemon.signal("HUP");
    eventually("it refuses the file", || daemon.log().contains("bucket: 101 entries"));
}

fn entry(glob: &str, n: usize) -> String {
    format!("[[bucket]]\nmatch = '{}'\n", glob.replace('@', &n.to_string()))
}

#[test]
fn keys_come_from_the_environment_too_and_whoever_asks_hears_from_where() {
    let shell = Shell::new("[defaults]\nrate = '5/s'\n[[bucket]]\nmatch = 'sms:*'\nrate = '1/10s'\n");
    let variables = [("DRIPD_DEFAULTS_RATE", "7/s"), ("DRIPD_BUCKET_1_CAPACITY", "12"), ("DRIPD_BUCKET", "acme")];
    let run = |args: &[&str], more: &[(&str, &str)]| {
        said(&shell.command(args).envs(variables).envs(more.iter().copied()).output().expect("it runs"))
    };
    let (code, out, _) = run(&["check"], &[]);
    assert_eq!(code, 0);
    for line in [
        "sms:*     rate 1/10s capacity 12 ",
        "(others)  rate 7/s ",
        "note      $DRIPD_DEFAULTS_RATE sets defaults.rate",
        "note      $DRIPD_BUCKET_1_CAPACITY sets bucket[1].capacity",
    ] {
        assert!(out.contains(line), "{line} is not in\n{out}");
    }
    let wrong = [("DRIPD_DEFAULTS_RATE", "7"), ("DRIPD_REDIS_PREFFIX", "q")];
    for command in ["check", "run"] {
        let (code, _, err) = run(&[command], &wrong);
        assert_eq!(code, 78, "{err}");
        assert!(
            err.contains("2 problems") && err.contains("$DRIPD_DEFAULTS_RATE: \"7\" is not allowed; write"),
            "{err}"
        );
        assert!(err.contains("$DRIPD_REDIS_PREFFIX: PREFFIX is an unknown key; did you mean PREFIX?"), "{err}");
    }
    let _daemon = Daemon::spawn_with(shell.home(), &variables);
    eventually("a daemon has stored what it read", || run(&["explain", "sms:a"], &[]).1.contains("_CAPACITY"));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (_, out, _) = run(&["explain", "sms:a"], &[]);
    assert!(out.contains(&format!("{host}:$DRIPD_BUCKET_1_CAPACITY")), "{out}");
    assert!(
        out.contains("config.toml:") && out.contains("[[bucket]] match \"sms:*\""),
        "its rate is from the file: {out}"
    );
    let without = shell.run(&["explain", "other"]).1;
    let said = "config.toml with $DRIPD_DEFAULTS_RATE, $DRIPD_BUCKET_1_CAPACITY; a daemon that reads yours";
    assert!(without.contains(said), "who asks without them hears of them: {without}");
    let (_, out, _) = run(&["explain", "other"], &[]);
    assert!(out.contains(&format!("{host}:$DRIPD_DEFAULTS_RATE")), "{out}");
}

#[test]
fn tls_that_verifies_nothing_is_refused() {
    let shell = Shell::new("");
    let (code, _, err) = said(
        &shell
            .command(&["status"])
            .env("DRIPD_REDIS_URL", "rediss://user:secret@host/#insecure")
            .output()
            .expect("it runs"),
    );
    assert_eq!(code, 78);
    let expected = "  $DRIPD_REDIS_URL: \"rediss://user:***@host/#insecure\" asks for TLS and has a #: servers are always verified; leave out what begins with #";
    assert!(err.contains(expected), "{err}");
}

#[test]
fn functions_prints_the_library_as_redis_loads_it() {
    let shell = Shell::new("");
    let (code, out, _) = shell.run(&["functions"]);
    assert_eq!((code, out.as_str()), (0, dripd::store::library::source()));
    let server = Server::start(&[]);
    let mut redis = server.connect();
    redis::cmd("FUNCTION").arg("LOAD").arg(out).exec(&mut redis).expect("it loads");
    let key = "a key of its own"; // no bucket: there is no daemon, and so no policy
    let reply: Vec<i64> =
        redis::cmd("FCALL").arg(&["drip_fixed_window", "1", key, "5", "1000"]).query(&mut redis).expect("FCALL");
    assert_eq!(reply[..3], [0, 5, 4]);
}

#[test]
fn check_says_what_jobs_with_options_get_and_that_a_plain_push_tells_no_time() {
    let shell = Shell::new("");
    let good = shell.file("good.toml", "[defaults]\nttl = '30s'\ndedup = '1h'\njob_rate = '500/m'\n");
    let (code, out, err) = shell.run(&["check", &good]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains(" job_rate 500/m dedup 1h ttl 30s\n"), "{out}");
    assert_eq!(out.matches("a plain LPUSH tells no time").count(), 1, "{out}");
}

#[test]
fn a_file_of_a_token_that_a_daemon_would_refuse_is_refused_here_too() {
    let shell = Shell::new("[[http.token]]\nname = 't'\nfile = 'token'\nmay = 'operate'\n");
    let (code, out, err) = shell.run(&["check"]);
    assert!(code == 78 && err.contains("cannot be read"), "{code} {out}{err}");
    shell.file("token", "\n");
    let (code, out, err) = shell.run(&["check"]);
    assert!(code == 78 && err.contains("has no token in its first line"), "{code} {out}{err}");
}
