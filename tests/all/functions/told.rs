//! What an error tells of bytes that are no text is text: many clients read no error that is none, and close the connection.

use crate::rig::Case;

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
        assert!(why.contains("retry:?:? is one of dripd's own keys"), "{why}");
    }
    let queue = case.queue("a").into_bytes();
    let why = told(&mut case, "drip_slow", &queue, &[b"PAUSE", b"5", b"IN", b"p\xff"]);
    assert!(why.starts_with(r#""p?" is no budget above a"#), "{why}");
}
