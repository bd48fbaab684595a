//! `dripd check` and `dripd functions`.

use super::Shell;
use crate::rig::Server;

#[test]
fn check_says_what_a_configuration_means_or_every_problem_of_it() {
    let shell = Shell::new("[defaults]\nrate = '5/s'\n[[bucket]]\nmatch = 'sms:*'\nrate = '1/10s'\n");
    let (code, out, _) = shell.run(&["check"]);
    assert_eq!(code, 0);
    assert!(out.contains("sms:*     rate 1/10s") && out.contains("(others)  rate 5/s"), "{out}");
    let bad = shell.file("bad.toml", "[defaults]\nrate = '5'\ncapacity = -1\n[redis]\ntls = true\n[htp]\n");
    let (code, out, err) = shell.run(&["check", &bad]);
    assert_eq!((code, out.as_str()), (78, ""));
    for part in [
        "4 problems",
        "defaults.rate: \"5\"",
        "defaults.capacity: -1",
        "redis.tls is not in this version",
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
fn functions_prints_the_library_as_redis_loads_it() {
    let shell = Shell::new("");
    let (code, out, _) = shell.run(&["functions"]);
    assert_eq!((code, out.as_str()), (0, dripd::store::library::SOURCE));
    let server = Server::start(&[]);
    let mut redis = server.connect();
    redis::cmd("FUNCTION").arg("LOAD").arg(out).exec(&mut redis).expect("it loads");
    let reply: Vec<i64> =
        redis::cmd("FCALL").arg(&["drip_push", "1", "drip:queue:b", "x"]).query(&mut redis).expect("FCALL");
    assert_eq!(reply, [1, 1, 1_000, -1, 0]);
}
