//! Calls as the users that `dripd acl` describes: with [`as_roles`] in force, what a test calls of the functions is called by a user of the
//! role that does so in the product, and everything that Redis refuses it fails the test. So each random sequence of a model
//! shows that the rights of the roles are enough.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use dripd::config::{Config, Environment};
use dripd::model::forward::Forward;
use dripd::store::acl::Role;
use redis::{Connection, RedisError, Value};

use crate::rig::partition;

thread_local! {
    static AS_ROLES: Cell<bool> = const { Cell::new(false) };
    /// The prefixes that were called so.
    static CALLED: RefCell<HashSet<String>> = RefCell::new(HashSet::new());
    /// The routes that forward, whose keys the rights name.
    static ROUTES: RefCell<Vec<Forward>> = const { RefCell::new(Vec::new()) };
}

/// From now on the functions are called so in this test.
pub fn as_roles() {
    AS_ROLES.set(true);
}

/// From now on the users of this test that are made have the rights that these routes need, too.
pub fn forward(routes: Vec<Forward>) {
    ROUTES.set(routes);
}

/// The rights of a role under a prefix, word by word, as `ACL` takes them, for a user without a password.
pub fn rights(role: Role, user: &str, prefix: &str) -> Vec<String> {
    let cut = if partition().is_some() { "partitions = 8" } else { "" };
    let toml = format!("[redis]\nprefix = {prefix:?}\n{cut}");
    let config = Config::parse(&toml, None, &Environment::default()).unwrap_or_else(|why| panic!("{why}"));
    let line = ROUTES.with_borrow(|routes| role.set_user(user, &config.redis, routes));
    let words = line.strip_prefix("ACL ").expect("a command").replace(">PASSWORD", "nopass");
    words.split(' ').map(str::to_owned).collect()
}

/// Who calls a function in the product; nobody for the audit, which is for tests, and for limiters, whose keys here are any.
fn role_of(function: &str) -> Option<Role> {
    Some(match function.strip_prefix("drip__").or_else(|| function.strip_prefix("drip_"))? {
        "push" | "submit" | "submit_all" | "cancel" => Role::Submitter,
        "ack" | "fail" | "adjust" | "slow" | "route" => Role::Worker,
        "set" | "copy" | "slow_node" | "purge" | "dead_retry" | "dead_drop" => Role::Operator,
        "drain" | "wake" | "reap" | "heal" | "keep" | "policy" | "beat" | "walk" | "rank" | "post" => Role::Daemon,
        "peek" | "find" | "look" | "explain" | "explain_budget" | "what_if" | "settings" | "met" | "daemons"
        | "dead_list" | "dead_count" | "top" | "rows" | "budget_rows" | "front" | "drips" | "figures" | "forwards"
        | "changed" | "version" | "writes" => Role::Observer,
        _ => return None,
    })
}

/// The same rights, also for the twins of public functions that take a time.
fn with_twins(rights: Vec<String>) -> Vec<String> {
    let twin = |word: &str| {
        let (before, name) = word.split_once("|drip_").filter(|(_, name)| !name.starts_with('_'))?;
        Some(format!("{}|drip__{name}", before.trim_start_matches('(')))
    };
    rights.into_iter().flat_map(|word| [Some(word.clone()), twin(&word)]).flatten().collect()
}

/// Send a call of a function: `FCALL` in `command`, or `FCALL_RO` where the role may only read.
pub fn call(redis: &mut Connection, prefix: &str, function: &str, command: &redis::Cmd) -> Result<Value, RedisError> {
    let role = role_of(function).filter(|_| AS_ROLES.get());
    let Some(role) = role else { return command.query(redis) };
    CALLED.with_borrow_mut(|called| called.insert(prefix.to_owned()));
    let user = format!("{prefix}-{}", role.as_str());
    let login = |redis: &mut Connection| redis::cmd("AUTH").arg(&user).arg("").exec(redis);
    if login(redis).is_err() {
        let rights = with_twins(rights(role, &user, prefix));
        redis::cmd("ACL").arg(rights).exec(redis).expect("a user");
        login(redis).expect("it logs in");
    }
    let reply = if role == Role::Observer {
        let words = command.args_iter().skip(1).map(|arg| match arg {
            redis::Arg::Simple(bytes) => bytes.to_vec(),
            _ => panic!("functions take texts"),
        });
        redis::cmd("FCALL_RO").arg(words.collect::<Vec<_>>()).query(redis)
    } else {
        command.query(redis)
    };
    redis::cmd("AUTH").arg("default").arg("").exec(redis).expect("the default user logs in");
    reply
}

/// What clients tell their names with, asked for or not: Redis 7.2 and Valkey refuse it to users who lack it, and nobody needs the answer.
const TELLS_NAME: &str = "client|setinfo";

/// What Redis refused users whose names begin so, by what was not allowed.
pub fn refused(redis: &mut Connection, users: &str) -> Vec<String> {
    type Entry = std::collections::HashMap<String, Value>;
    let entries: Vec<Entry> = redis::cmd("ACL").arg("LOG").arg(128).query(redis).expect("ACL LOG");
    let text = |entry: &Entry, field: &str| match entry.get(field) {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        Some(Value::SimpleString(text)) => text.clone(),
        other => panic!("{field}: {other:?}"),
    };
    let of_them =
        entries.iter().filter(|entry| text(entry, "username").starts_with(users) && text(entry, "reason") != "auth");
    of_them
        .filter(|entry| text(entry, "object") != TELLS_NAME)
        .map(|e| format!("{} {} {}: {}", text(e, "username"), text(e, "context"), text(e, "reason"), text(e, "object")))
        .collect()
}

/// At the end of a case: nothing was refused.
pub fn check(redis: &mut Connection, prefix: &str) {
    if !std::thread::panicking() && CALLED.with_borrow_mut(|called| called.remove(prefix)) {
        let refused = refused(redis, &format!("{prefix}-"));
        assert!(refused.is_empty(), "{refused:#?}");
    }
}
