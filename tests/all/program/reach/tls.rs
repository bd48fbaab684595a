//! TLS: all doors over it, and what is said when it cannot be.

use std::time::{Duration, Instant};

use super::{Authority, Holds, Secured};
use crate::program::http::Door;
use crate::program::{Shell, Work, said};
use crate::rig::{Case, Daemon, dripd, eventually, free_port, test_config};

const FAST: &str = "[defaults]\nrate = '1000/s'\n";

#[test]
fn the_daemon_the_worker_the_commands_and_http_speak_tls() {
    let secured = Secured::start(&[]);
    let redis = format!("url = '{}'\ntls = {{ ca = '{}' }}", secured.url(), secured.ca.display());
    // From here on nothing but TLS comes in, save this test, which is connected.
    let mut shell = secured.shell(&redis, &format!("{FAST}[http]\nlisten = '127.0.0.1:0'\n"));
    let _: String = shell.case.cmd(&["CONFIG", "SET", "port", "0"]);
    let mut door = Door::of(shell);
    assert_eq!(door.push("a", b"over http").status, 202);
    assert_eq!(door.shell.run(&["push", "a", "by a command"]).0, 0);
    door.shell.case.lpush("a", &["by a client"]);
    let out = door.shell.home().join("out");
    let worker = Work::start(&door.shell, &["--exec", &format!("printf '%s\\n' \"$(cat)\" >> {}", out.display())]);
    let read = || std::fs::read_to_string(&out).unwrap_or_default();
    eventually("all three are done", || read().lines().count() == 3);
    for job in ["over http", "by a command", "by a client"] {
        assert!(read().contains(job), "{job} is not in {}", read());
    }
    let (code, status, err) = door.shell.run(&["status"]);
    assert!(code == 0 && status.contains(&secured.url()), "{status}{err}");
    assert!(door.daemon.log().contains("tracking=true"), "{}", door.daemon.log());
    assert_eq!(worker.stop().0, Some(0));
}

#[test]
fn without_a_ca_whom_the_system_trusts_is_trusted() {
    let secured = Secured::start(&[]);
    let shell = secured.shell(&format!("url = '{}'", secured.url()), FAST);
    let (code, _, err) = shell.run(&["status"]);
    assert!(
        code == 69 && err.contains("signed by no CA that this system trusts; name its CA in redis.tls.ca"),
        "{err}"
    );
    let trusting = shell.command(&["status"]).env("SSL_CERT_FILE", &secured.ca).output().expect("it runs");
    let (code, out, err) = said(&trusting);
    assert!(code == 0 && out.contains(&secured.url()), "{out}{err}");
}

#[test]
fn a_client_certificate_is_shown_where_one_is_wanted() {
    let secured = Secured::start(&["--tls-auth-clients", "yes"]);
    let (cert, key) = secured.authority.issue(secured.dir.path(), "client", &["client"], Holds::Still);
    let (ca, cert, key) = (secured.ca.display(), cert.display(), key.display());
    let redis = format!("url = '{}'\ntls = {{ ca = '{ca}', cert = '{cert}', key = '{key}' }}", secured.url());
    let shell = secured.shell(&redis, FAST);
    let (code, out, err) = shell.run(&["push", "a", "x"]);
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn a_certificate_is_for_the_name_that_is_named_or_for_that_of_the_url() {
    let secured = Secured::with(&["redis.example"], Holds::Still, &[]);
    let of = |name: &str| {
        format!("url = '{}'\ntls = {{ ca = '{}', server_name = '{name}' }}", secured.url(), secured.ca.display())
    };
    let shell = secured.shell(&of("redis.example"), FAST);
    assert_eq!(shell.run(&["push", "a", "x"]).0, 0);
    shell.file("config.toml", &format!("[redis]\n{}\n", of("other.example")));
    let (code, _, err) = shell.run(&["push", "a", "x"]);
    assert!(code == 69 && err.contains("is for redis.example, not for other.example"), "{err}");
}

/// What does not verify, and what is said of it.
fn mistakes() -> Vec<(&'static str, Secured, String, &'static str)> {
    let ca = |secured: &Secured| format!("url = '{}'\ntls = {{ ca = '{}' }}", secured.url(), secured.ca.display());
    let mut all = Vec::new();
    let mut add = |what, secured: Secured, redis: String, expect| all.push((what, secured, redis, expect));

    let secured = Secured::start(&[]);
    let other = Authority::new("another CA").write(secured.dir.path(), "other.pem");
    let redis = format!("url = '{}'\ntls = {{ ca = '{}' }}", secured.url(), other.display());
    add("a wrong CA", secured, redis, "other.pem; name the right one in redis.tls.ca");

    let secured = Secured::with(&["redis.example"], Holds::Still, &[]);
    let redis = ca(&secured);
    let expect = "its certificate is for redis.example, not for localhost; use one of its names in redis.url, or name one in redis.tls.server_name";
    add("a wrong name", secured, redis, expect);

    let secured = Secured::with(&["localhost"], Holds::NoMore, &[]);
    let redis = ca(&secured);
    add("an expired certificate", secured, redis, "days ago; renew it (or the clock of this machine is wrong)");

    let secured = Secured::with(&["localhost"], Holds::NotYet, &[]);
    let redis = ca(&secured);
    add("a certificate of the future", secured, redis, "its certificate becomes valid only in ");

    let secured = Secured::start(&["--tls-auth-clients", "yes"]);
    let redis = ca(&secured);
    add("no client certificate", secured, redis, "client certificate");

    let secured = Secured::start(&["--tls-auth-clients", "yes"]);
    let (cert, key) = Authority::new("a stranger").issue(secured.dir.path(), "client", &["client"], Holds::Still);
    let (cert, key) = (cert.display(), key.display());
    let files = format!("ca = '{}', cert = '{cert}', key = '{key}'", secured.ca.display());
    let redis = format!("url = '{}'\ntls = {{ {files} }}", secured.url());
    add(
        "a client certificate of a stranger",
        secured,
        redis,
        "client.pem (UnknownCA); name one of a CA that it trusts",
    );

    let secured = Secured::start(&[]);
    let redis =
        format!("url = 'rediss://localhost:{}'\ntls = {{ ca = '{}' }}", secured.server.port, secured.ca.display());
    add("a server without TLS", secured, redis, "TLS port, or, if it has none, leave TLS out (redis:// is clear text)");

    let secured = Secured::start(&[]);
    let redis = format!("url = 'redis://localhost:{}'", secured.port);
    add("clear text to a TLS port", secured, redis, "if it speaks TLS, write rediss:// there");

    let secured = Secured::start(&["--tls-protocols", "TLSv1.1"]);
    let redis = ca(&secured);
    add("an old TLS", secured, redis, "it speaks neither TLS 1.2 nor newer; see tls-protocols");
    all
}

#[test]
fn what_does_not_verify_is_said_in_one_line_with_the_way_out() {
    let mistakes = mistakes();
    std::thread::scope(|scope| {
        for (what, secured, redis, expect) in &mistakes {
            scope.spawn(move || {
                let shell = secured.shell(redis, FAST);
                let (code, out, err) = shell.run(&["status"]);
                println!("{what}: {err}");
                assert_eq!((code, out.as_str()), (69, ""), "{what}: {err}");
                assert_eq!(err.lines().count(), 1, "{what}: {err}");
                assert!(err.starts_with("dripd status: cannot use redis at redis"), "{what}: {err}");
                assert!(err.contains(expect), "{what}: {expect:?} is not in {err}");
            });
        }
    });
}

#[test]
fn a_daemon_that_cannot_verify_its_redis_says_why_at_once_and_ends_with_69() {
    let secured = Secured::with(&["localhost"], Holds::NoMore, &[]);
    let redis = format!("url = '{}'\ntls = {{ ca = '{}' }}", secured.url(), secured.ca.display());
    let shell = secured.shell(&redis, FAST);
    let (since, mut daemon) = (Instant::now(), Daemon::spawn(shell.home()));
    eventually("it says why", || daemon.log().contains("its certificate expired"));
    assert_eq!(daemon.wait(), Some(69), "{}", daemon.log());
    assert!(since.elapsed() >= Duration::from_secs(28), "it tries for 30 s: {:?}", since.elapsed());
}

#[test]
fn renewed_certificates_need_no_restart() {
    let secured = Secured::start(&["--tls-auth-clients", "yes"]);
    let dir = secured.dir.path();
    let (cert, key) = secured.authority.issue(dir, "client", &["client"], Holds::Still);
    let files = format!("ca = '{}', cert = '{}', key = '{}'", secured.ca.display(), cert.display(), key.display());
    let mut shell = secured.shell(&format!("url = '{}'\ntls = {{ {files} }}", secured.url()), FAST);
    let daemon = Daemon::start(shell.home());

    // The server changes its CA and its own certificate. Whoever is connected stays so.
    let next = Authority::new("the next CA");
    let (new_cert, new_key) = next.issue(dir, "renewed", &["localhost"], Holds::Still);
    let trusted = next.write(dir, "next.pem");
    let path = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    let words = ["CONFIG", "SET", "tls-cert-file", &path(&new_cert), "tls-key-file", &path(&new_key)];
    let _: String = shell.case.cmd(&[&words[..], &["tls-ca-cert-file", &path(&trusted)]].concat());
    shell.case.lpush("a", &["before"]);
    eventually("it goes on", || shell.case.jobs("ready") == ["before"]);

    // Its files are still the old ones when the connection is lost.
    let _: i64 = shell.case.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    eventually("it says what is wrong", || daemon.log().contains("signed by no CA in "));
    next.issue(dir, "client", &["client"], Holds::Still);
    std::fs::copy(&trusted, &secured.ca).expect("copied");
    shell.case.lpush("a", &["after"]);
    eventually("it serves again", || shell.case.jobs("ready") == ["before", "after"]);
}

#[test]
fn files_that_are_of_no_use_are_named_by_check_all_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, two) = (Authority::new("one"), Authority::new("two"));
    let (cert, _) = one.issue(dir.path(), "cert", &["a"], Holds::Still);
    let (_, key) = two.issue(dir.path(), "key", &["a"], Holds::Still);
    let write = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).expect("written");
        dir.path().join(name).display().to_string()
    };
    let (text, none) = (write("text", "no PEM\n"), dir.path().join("none").display().to_string());
    let (cert, key, ca) = (cert.display(), key.display(), one.write(dir.path(), "ca.pem").display().to_string());
    let check = |redis: &str| {
        let file = write("config.toml", &test_config(&format!("[redis]\nurl = 'rediss://h'\n{redis}\n")));
        let output = dripd().args(["check", &file]).current_dir(dir.path()).output().expect("it runs");
        said(&output)
    };
    for (redis, expect) in [
        (format!("tls = {{ ca = '{none}' }}"), vec!["redis.tls.ca: ", "none cannot be read: No such file"]),
        (format!("tls = {{ ca = '{text}' }}"), vec!["redis.tls.ca: ", "text holds no certificate in PEM form"]),
        (format!("tls = {{ cert = '{text}', key = '{key}' }}"), vec!["redis.tls.cert: ", "text holds no certificate"]),
        (format!("tls = {{ cert = '{cert}', key = '{text}' }}"), vec!["redis.tls.key: ", "text holds no private key"]),
        (
            format!("tls = {{ cert = '{cert}', key = '{key}' }}"),
            vec!["redis.tls.key: ", "is not the key of the certificate in"],
        ),
        (
            format!("tls = {{ ca = '{none}' }}\npassword_file = '{none}2'"),
            vec!["config.toml: 2 problems", "redis.tls.ca: ", "redis.password_file: ", "none2 cannot be read"],
        ),
    ] {
        let (code, _, err) = check(&redis);
        assert_eq!(code, 78, "{redis}: {err}");
        for part in expect {
            assert!(err.contains(part), "{redis}: {part:?} is not in {err}");
        }
    }
    let (code, out, err) = check(&format!("tls = {{ ca = '{ca}' }}"));
    assert!(code == 0 && out.contains("redis     rediss://h, prefix drip"), "{out}{err}");
}

#[test]
fn each_node_of_a_cluster_is_verified_by_the_name_that_it_was_given_under() {
    let bus = free_port().to_string();
    let cluster = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--tls-cluster", "yes"];
    let secured = Secured::with(&["localhost"], Holds::Still, &cluster);
    let mut redis = secured.server.connect();
    let _: String = redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(0).arg(16_383).query(&mut redis).expect("its slots");
    eventually("the cluster is well", || {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut redis).expect("CLUSTER INFO");
        info.contains("cluster_state:ok")
    });
    let shell = |node: &str| {
        let case = Case { redis: secured.server.connect(), prefix: "drip".to_owned() };
        let shell = Shell { case, home: tempfile::tempdir().expect("a directory") };
        let (port, ca) = (secured.port, secured.ca.display());
        shell.file(
            "config.toml",
            &format!("[redis]\ncluster = ['{node}:{port}']\npartitions = 4\ntls = {{ ca = '{ca}' }}\n"),
        );
        shell
    };
    // A node that does not know its own address gives none: it is where it was asked.
    let first = shell("localhost");
    let _daemon = Daemon::start(first.home());
    let (code, out, err) = first.run(&["push", "acme", "x"]);
    assert_eq!(code, 0, "{out}{err}");
    let (code, _, err) = shell("127.0.0.1").run(&["push", "acme", "x"]);
    assert_eq!(code, 69, "{err}");
    assert!(err.contains(&format!("127.0.0.1:{}: ", secured.port)) && err.contains("certificate"), "{err}");
}
