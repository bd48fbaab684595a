//! What an error tells of bytes that are no text is text: many clients read no error that is none, and close the connection.

use crate::rig::{Case, T0};

/// What a call is refused with.
fn told(case: &mut Case, function: &str, key: &[u8], args: &[&[u8]]) -> String {
    let mut cmd = redis::cmd("FCALL");
    let why = cmd.arg(function).arg(1).arg(key).arg(args).query::<redis::Value>(&mut case.redis).expect_err(function);
    assert_eq!(why.code(), Some("BADARG"), "{function}: {why}");
    why.detail().expect("an explanation").to_owned()
}

#[test]
fn an_argument_that_is_no_text_is_told_as_text() {
    let mut case = Case::with("[[budget]]\nmatch = 'p'\nrate = '5/s'\n[[bucket]]\nmatch = 'a'\nwithin = 'p'\n");
    let limiters = ["fixed_window", "sliding_window", "sliding_counter", "token_bucket", "leaky_meter", "throttle"];
    let key = case.key("limit").into_bytes();
    let ours = [case.key("retry:").as_bytes(), b"\xe7:\xff"].concat();
    for name in limiters {
        let why = told(&mut case, &format!("drip_{name}"), &key, &["\u{e9}".as_bytes(), b"1", b"1"]);
        assert!(why.ends_with(r#", not "é""#), "{why}");
        let why = told(&mut case, &format!("drip_{name}"), &key, &[b"\xe7x\xff", b"1", b"1"]);
        assert!(why.ends_with(r#", not "?x?""#), "{why}");
        let why = told(&mut case, &format!("drip_{name}"), &ours, &[b"1", b"1", b"1"]);
        assert!(why.contains(":?:? is one of dripd's own keys"), "{why}");
    }
    let queue = case.queue("a").into_bytes();
    let why = told(&mut case, "drip_slow", &queue, &[b"PAUSE", b"5", b"IN", b"p\xff"]);
    assert!(why.starts_with(r#""p?" is no budget above a"#), "{why}");
}

#[test]
fn a_time_or_a_cursor_that_is_none_is_refused_before_anything_is_written() {
    let mut case = Case::with("");
    case.push_at(T0, "a", &["x"]);
    let before = case.keys();
    for now in ["x", "-1", "1.5", "99999999999999999999"] {
        assert_eq!(case.refusal("drip__drain", &["schedule"], &[now]), "BADARG");
        assert_eq!(case.refusal("drip__look", &["queue:a"], &[now]), "BADARG");
        assert_eq!(case.refusal("drip__push", &["queue:a"], &[now, "y"]), "BADARG");
    }
    for cursor in ["x", "s", "sx", "-1", "99999999999999999999", "s99999999999999999999"] {
        assert_eq!(case.refusal("drip__settings", &["policy"], &["", cursor]), "BADARG");
    }
    assert_eq!(case.keys(), before);
    assert_eq!(case.waiting("a"), ["x"]);
}

/// Whichever key holds something else, an error that comes from that names it, and says what it must hold.
#[test]
fn an_error_of_a_wrong_type_names_the_key() {
    crate::roles::as_roles();
    let words = "ready schedule rest level retries policy reached routes stats rejected dead wake daemons paused settings globs ends events \
        refused waiting budgets full slots inflight slow windows over changed unset turns delays paid adjusted told uncounted \
        queue:a retry:a delayed:a jobs:a ids:a";
    let (mut told, mut other) = (0, Case::with(""));
    for word in words.split_whitespace() {
        let toml = "[defaults]\nrate = '1/s'\nconcurrency = 3\nquota = '9/d'\nwithin = 'p'\n[[budget]]\nmatch = 'p'\nrate = '5/s'\n";
        let mut case = Case::with(toml);
        case.submit_at(T0, "a", "one", &["ID", "i", "COST", "2"]);
        case.settle_at(T0);
        let key = case.key(word);
        let _: redis::Value = case.cmd(&["DEL", &key]);
        let as_hash = ["HSET", &key, "f", "v"];
        let _: redis::Value = if ["wake", "globs", "delays"].contains(&word) {
            case.cmd(&as_hash)
        } else {
            case.cmd(&["SET", &key, "x"])
        };
        let (now, at) = (T0.to_string(), (T0 + 1).to_string());
        let calls: [(&str, &str, &[&str]); 8] = [
            ("drip__push", "queue:a", &[&now, "job"]),
            ("drip__peek", "queue:a", &[&now]),
            ("drip__submit", "queue:a", &[&now, "job", "ID", "j", "DELAY", "5000", "COST", "2"]),
            ("drip__cancel", "queue:a", &[&now, "i"]),
            ("drip__find", "queue:a", &[&now, "i"]),
            ("drip__slow", "queue:a", &[&now, "PAUSE", "5"]),
            ("drip__told", "queue:a", &[&now, "REMAINING", "5", "RESET", "5000"]),
            ("drip__drain", "schedule", &[&at]),
        ];
        for (function, of, args) in calls {
            other.peek_at(T0, "a"); // this space is opened anew
            let Err(why) = case.try_fcall::<redis::Value>(function, &[of], args) else { continue };
            let why = why.to_string();
            if why.contains("WRONGTYPE") {
                told += 1;
                assert!(why.contains(&key) && why.contains("must hold a"), "{word}, {function}: {why}");
            }
        }
    }
    assert!(told > 20, "{told}");
}
