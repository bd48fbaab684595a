//! Every function with any number of any arguments: a documented error or a reply, never an error of Lua's own, and what is stored is as it must be.

use proptest::prelude::*;
use redis::{Connection, Value};

use super::{bytes_like, cases};
use crate::rig::{Case, Server, T0};

/// What an error may begin with: what the functions say, and Redis of a key that holds something else.
const CODES: [&str; 6] = ["BADARG", "BADBUCKET", "TOOLARGE", "TOOMANY", "WRONGTYPE", "NOPERM"];

const TOML: &str = "[defaults]\nrate = '5/s'\ncapacity = 10\nlease = '1s'\n[[budget]]\nmatch = 'a'\nrate = '50/s'\nconcurrency = 5\n\
    [[bucket]]\nmatch = 'a:*'\nwithin = 'a'\nconcurrency = 2\n[[bucket]]\nmatch = 'q'\nquota = '3/m'\n[[bucket]]\nmatch = 'o'\noverflow = 'drop-oldest'\n";

/// Keys that mean something, and some that hold something else than they should.
const KEYS: [&str; 17] = [
    "t:policy",
    "t:schedule",
    "t:queue:a:1",
    "t:queue:q",
    "t:queue:o",
    "t:queue:",
    "t:queue",
    "t:ready",
    "t:ready:r",
    "t:dead",
    "t:rejected",
    "t:settings",
    "t:retry:a:1",
    "t:limit",
    "string",
    "list",
    "",
];

/// Words that some function takes.
const WORDS: [&str; 38] = [
    "",
    "0",
    "1",
    "-1",
    "2",
    "100",
    "1000000",
    "9007199254740993",
    "1750000000000000",
    "99999999999999999999",
    "1e3",
    "0x10",
    "nan",
    "inf",
    " 5 ",
    "-0",
    "1.5",
    "0-0",
    "1-1",
    "1750000000000-0",
    "+",
    "-",
    "(",
    "*",
    "a:*",
    "a:1",
    "a",
    "q",
    "b a:1",
    "budget a",
    "{}",
    "[]",
    "null",
    "{\"rate\":{\"count\":5,\"period_us\":1000000}}",
    "replace",
    "retry",
    "drop",
    "job",
];

fn names(redis: &mut Connection) -> Vec<String> {
    let list: Vec<Vec<Value>> = redis::cmd("FUNCTION").arg("LIST").query(redis).expect("FUNCTION LIST");
    let mut names = Vec::new();
    let mut walk = list.into_iter().flatten().collect::<Vec<_>>();
    while let Some(value) = walk.pop() {
        match value {
            Value::Array(inner) => {
                let texts: Vec<String> =
                    inner.iter().filter_map(|value| redis::from_redis_value_ref(value).ok()).collect();
                if let [first, name, ..] = texts.as_slice()
                    && first == "name"
                {
                    names.push(name.clone());
                }
                walk.extend(inner);
            }
            Value::Map(pairs) => walk.extend(pairs.into_iter().flat_map(|(key, value)| [key, value])),
            _ => {}
        }
    }
    names.retain(|name| name.starts_with("drip_"));
    names.sort();
    names
}

#[derive(Clone)]
struct Call {
    function: prop::sample::Index,
    /// None: the right one.
    keys: Vec<Vec<u8>>,
    has_time: bool,
    args: Vec<Vec<u8>>,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |texts: &[Vec<u8>]| {
            texts.iter().map(|text| format!("'{}'", text.escape_ascii())).collect::<Vec<_>>().join(" ")
        };
        write!(f, "keys {} time {} args {}", shown(&self.keys), self.has_time, shown(&self.args))
    }
}

fn call() -> impl Strategy<Value = Call> {
    let key = || prop_oneof![8 => prop::sample::select(&KEYS[..]).prop_map(|key| key.as_bytes().to_vec()), 1 => bytes_like(&KEYS)];
    let arg = || prop_oneof![8 => prop::sample::select(&WORDS[..]).prop_map(|word| word.as_bytes().to_vec()), 1 => bytes_like(&WORDS)];
    let keys = prop_oneof![
        8 => Just(Vec::new()), 2 => prop::collection::vec(key(), 1..2), 1 => prop::collection::vec(key(), 2..4),
    ];
    (any::<prop::sample::Index>(), keys, prop::bool::weighted(0.8), prop::collection::vec(arg(), 0..8))
        .prop_map(|(function, keys, has_time, args)| Call { function, keys, has_time, args })
}

/// The key that a function takes, where it is not a bucket's queue.
fn key_of(function: &str) -> Option<&'static str> {
    Some(match function.trim_start_matches("drip").trim_start_matches('_') {
        "push" | "peek" | "look" | "wake" | "slow" | "told" | "purge" | "explain" | "what_if" | "front" | "drips" => {
            return None;
        }
        "drain" => "t:schedule",
        "ack" | "fail" | "route" => "t:ready",
        "beat" | "daemons" => "t:daemons",
        "dead_list" | "dead_count" | "dead_retry" | "dead_drop" => "t:dead",
        "fixed_window" | "sliding_window" | "sliding_counter" | "token_bucket" | "leaky_meter" | "throttle" => {
            "t:limit"
        }
        _ => "t:policy",
    })
}

/// What some calls are replied. Replies what is wrong with that.
fn wrong(redis: &mut Connection, names: &[String], call: &Call) -> Option<String> {
    let name = call.function.get(names);
    let mut fcall = redis::cmd("FCALL");
    match call.keys.as_slice() {
        // Most calls are nearly right: else nothing but the first check would ever be tried.
        [] => fcall.arg(name).arg(1).arg(key_of(name).unwrap_or("t:queue:a:1")),
        keys => fcall.arg(name).arg(keys.len()).arg(keys),
    };
    // A time that is none ends a call of an internal function at once.
    if call.has_time && name.starts_with("drip__") {
        fcall.arg(T0 + 1_000_000);
    }
    fcall.arg(&call.args);
    let why = fcall.query::<Value>(redis).err()?;
    let is_documented = why.code().is_some_and(|code| CODES.contains(&code));
    (!is_documented).then(|| format!("{name}, {call:?}: {why}"))
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn whatever_a_function_is_given_it_says_what_is_wrong_and_leaves_everything_as_it_must_be(
        calls in prop::collection::vec(call(), 1..100)
    ) {
        thread_local!(static SERVER: Server = Server::start(&[]));
        SERVER.with(|server| {
            redis::cmd("FLUSHALL").exec(&mut server.connect()).expect("OK");
            let mut case = Case::on(server, TOML);
            let names = names(&mut case.redis);
            prop_assert!(names.len() > 40, "{:?}", names);
            for bucket in ["a:1", "q", "o"] {
                case.push_at(T0, bucket, &["1", "2", "3"]);
            }
            case.settle_at(T0);
            case.take("ready", 2);
            let _: () = case.cmd(&["SET", "string", "x"]);
            let _: i64 = case.cmd(&["LPUSH", "list", "x"]);
            let found: Vec<String> = calls.iter().filter_map(|call| wrong(&mut case.redis, &names, call)).collect();
            prop_assert!(found.is_empty(), "{:#?}", found);
            let policies: Vec<Vec<u8>> = case.cmd(&["KEYS", "*:policy"]); // of any bytes
            for policy in policies {
                let _: Value = redis::cmd("FCALL").arg("drip__heal").arg(1).arg(&policy).arg("").query(&mut case.redis).unwrap_or(Value::Nil);
                let audit: Vec<String> = redis::cmd("FCALL").arg("drip__audit").arg(1).arg(&policy).query(&mut case.redis).expect("it runs");
                prop_assert!(audit.is_empty(), "{:?}: {:#?}", String::from_utf8_lossy(&policy), audit);
            }
            Ok(())
        })?;
    }
}
