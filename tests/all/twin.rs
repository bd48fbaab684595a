//! A second server that gets every command of a test's cases, too, with a library in which one thing is otherwise: what both reply and what both
//! hold must be the same, byte for byte. So each random sequence of a model is a differential test (W. M. `McKeeman`, 1998).
//!
//! Only what the servers choose themselves differs, and is translated: the ids of stream entries, which have the time in them, and the magic of
//! submitted jobs, which is random.

use std::cell::RefCell;
use std::collections::HashMap;

use redis::{Cmd, Connection, RedisError, Value};

use crate::rig::{Server, load_source};

thread_local! {
    static TWIN: RefCell<Option<Twin>> = const { RefCell::new(None) };
}

/// Everything below a prefix, sorted, with what is in streams, their groups and what is pending there.
const KEYSPACE: &str = r"
local all = {}
local keys = redis.call('KEYS', ARGV[1])
table.sort(keys)
for _, key in ipairs(keys) do
  local kind = redis.call('TYPE', key).ok
  local held = {}
  if kind == 'string' then held = { redis.call('GET', key) }
  elseif kind == 'list' then held = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'zset' then held = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then
    held = redis.call('SMEMBERS', key)
    table.sort(held)
  elseif kind == 'hash' then
    local flat = redis.call('HGETALL', key)
    local lines = {}
    for i = 1, #flat, 2 do lines[#lines + 1] = { flat[i], flat[i + 1] } end
    table.sort(lines, function(a, b) return a[1] < b[1] end)
    held = lines
  elseif kind == 'stream' then
    held = { redis.call('XRANGE', key, '-', '+') }
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
      local pending = redis.call('XPENDING', key, group[2], '-', '+', 1000)
      for _, row in ipairs(pending) do row[3] = nil end
      held[#held + 1] = { group[2], group[8], pending }
    end
  end
  all[#all + 1] = { key, kind, held }
end
return all";

struct Twin {
    /// The one that cases are on, and the second one.
    here: Server,
    _there: Server,
    redis: Connection,
    source: String,
    /// What the servers chose themselves, of the test's own server and here: the ids of entries, and magics.
    ids: HashMap<(u64, u64), Vec<Learnt>>,
    magics: HashMap<Vec<u8>, Vec<u8>>,
    calls: u64,
}

/// The id of an entry of a stream there. Two streams may have the same one here and two others there.
struct Learnt {
    stream: Vec<u8>,
    there: (u64, u64),
}

/// Ends with the value.
pub struct Mirror(());

impl Drop for Mirror {
    fn drop(&mut self) {
        TWIN.take();
    }
}

/// From now on all that the cases of this test say is said to a second server as well, whose library is this one.
#[must_use]
pub fn mirror(source: String) -> Mirror {
    let (here, there) = (Server::start(&[]), Server::start(&[]));
    load_source(&mut here.connect(), dripd::store::library::source());
    let mut redis = there.connect();
    load_source(&mut redis, &source);
    let (ids, magics) = (HashMap::new(), HashMap::new());
    TWIN.set(Some(Twin { here, _there: there, redis, source, ids, magics, calls: 0 }));
    Mirror(())
}

/// The name of a server, which is part of what it writes.
fn run_id(redis: &mut Connection) -> Vec<u8> {
    let info: String = redis::cmd("INFO").arg("server").query(redis).expect("INFO");
    let line = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    line.expect("its name").trim().as_bytes().to_vec()
}

/// How many functions were called twice so far.
pub fn calls() -> u64 {
    TWIN.with_borrow(|twin| twin.as_ref().map_or(0, |twin| twin.calls))
}

/// A connection to the server of mirrored cases, which no other test uses: what both have done so far is the same.
pub fn connect() -> Option<Connection> {
    TWIN.with_borrow(|twin| twin.as_ref().map(|twin| twin.here.connect()))
}

/// The library was loaded again.
pub fn reload() {
    TWIN.with_borrow_mut(|twin| {
        if let Some(twin) = twin {
            load_source(&mut twin.redis, &twin.source);
        }
    });
}

/// A test's own server got this command and replied so. A function that may write is followed by a look at everything below the prefix.
pub fn also(redis: &mut Connection, prefix: &str, command: &Cmd, reply: Result<&Value, &RedisError>) {
    TWIN.with_borrow_mut(|twin| {
        if let Some(twin) = twin {
            twin.also(redis, prefix, command, reply);
        }
    });
}

/// Everything below a prefix: of each key its name, its type and what it holds.
pub fn everything(redis: &mut Connection, prefix: &str) -> Vec<(String, String, Value)> {
    redis::cmd("EVAL").arg(KEYSPACE).arg(0).arg(format!("{prefix}:*")).query(redis).expect("everything")
}

impl Twin {
    fn also(&mut self, redis: &mut Connection, prefix: &str, command: &Cmd, reply: Result<&Value, &RedisError>) {
        let words: Vec<Vec<u8>> = command
            .args_iter()
            .map(|arg| match arg {
                redis::Arg::Simple(bytes) => bytes.to_vec(),
                _ => panic!("commands are of texts"),
            })
            .collect();
        let name = String::from_utf8_lossy(&words[0]).into_owned();
        // What has no order of its own, or is of a server; what they read is compared after each call.
        if ["TIME", "ACL", "AUTH", "CONFIG", "KEYS", "HGETALL", "SMEMBERS", "HKEYS", "SCAN", "INFO"]
            .contains(&name.as_str())
        {
            return;
        }
        let mut mirrored = redis::Cmd::new();
        for word in &words {
            mirrored.arg(self.translate(word, &words));
        }
        let told = mirrored.query::<Value>(&mut self.redis);
        let shown = || words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ");
        match name.as_str() {
            // The reply may have ids in it that are learnt from the streams.
            "FCALL" => {
                self.calls += 1;
                self.magics.insert(run_id(redis), run_id(&mut self.redis));
                self.compare(redis, prefix, &shown());
            }
            "XADD" => {
                if let (Ok(Value::BulkString(here)), Ok(Value::BulkString(there))) = (reply, &told) {
                    self.learn(&words[1], here, there);
                }
            }
            _ => {}
        }
        match (reply, &told) {
            (Ok(here), Ok(there)) => {
                if let Err(why) = self.same(here, there) {
                    assert!(is_of_the_clock(&words), "{}\n  {why}\n  here  {here:?}\n  there {there:?}", shown());
                }
            }
            (Err(here), Err(there)) => assert_eq!(here.code(), there.code(), "{}", shown()),
            (here, there) => panic!("{}\n  here  {here:?}\n  there {there:?}", shown()),
        }
    }

    fn compare(&mut self, redis: &mut Connection, prefix: &str, after: &str) {
        let (here, there) = (everything(redis, prefix), everything(&mut self.redis, prefix));
        let names = |all: &[(String, String, Value)]| {
            all.iter().map(|(key, kind, _)| format!("{kind} {key}")).collect::<Vec<_>>()
        };
        assert_eq!(names(&here), names(&there), "the keys after {after}");
        let both = || here.iter().zip(&there);
        for ((key, kind, here), (.., there)) in both() {
            match (kind.as_str(), here, there) {
                ("stream", Value::Array(here), Value::Array(there)) => {
                    self.learn_entries(key.as_bytes(), &here[0], &there[0]);
                }
                ("hash", Value::Array(here), Value::Array(there)) if key.ends_with(":policy") => {
                    self.learn_magic(here, there);
                }
                _ => {}
            }
        }
        for ((key, kind, here), (.., there)) in both() {
            let is_policy = kind == "hash" && key.ends_with(":policy");
            let [here, there] =
                [here, there].map(|value| if is_policy { without_positions(value) } else { value.clone() });
            if let Err(why) = self.same(&here, &there) {
                panic!("{key} after {after}\n  {why}\n  here  {here:?}\n  there {there:?}");
            }
        }
    }

    /// The entries of a stream, one after the other.
    fn learn_entries(&mut self, stream: &[u8], here: &Value, there: &Value) {
        let (Value::Array(here), Value::Array(there)) = (here, there) else { return };
        for entries in here.iter().zip(there) {
            let (Value::Array(here), Value::Array(there)) = entries else { continue };
            if let (Some(Value::BulkString(here)), Some(Value::BulkString(there))) = (here.first(), there.first()) {
                self.learn(stream, here, there);
            }
        }
    }

    fn learn(&mut self, stream: &[u8], here: &[u8], there: &[u8]) {
        let (here, there) = (ids(here), ids(there));
        if let ([here], [there]) = (&here[..], &there[..]) {
            let known = self.ids.entry(here.numbers).or_default();
            if known.iter().all(|one| one.stream != stream) {
                known.push(Learnt { stream: stream.to_vec(), there: there.numbers });
            }
        }
    }

    fn learn_magic(&mut self, here: &[Value], there: &[Value]) {
        let magic = |fields: &[Value]| {
            fields.iter().find_map(|field| match field {
                Value::Array(pair) => match &pair[..] {
                    [Value::BulkString(name), Value::BulkString(magic)] if name == b"mark" => Some(magic.clone()),
                    _ => None,
                },
                _ => None,
            })
        };
        if let (Some(here), Some(there)) = (magic(here), magic(there)) {
            self.magics.insert(here, there);
        }
    }

    /// Whether two replies are the same but for what the servers chose.
    fn same(&self, here: &Value, there: &Value) -> Result<(), String> {
        match (here, there) {
            (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
                a.iter().zip(b).try_for_each(|(a, b)| self.same(a, b))
            }
            (Value::BulkString(a), Value::BulkString(b)) => self.same_text(a, b),
            (Value::SimpleString(a), Value::SimpleString(b)) => self.same_text(a.as_bytes(), b.as_bytes()),
            (a, b) if a == b => Ok(()),
            (a, b) => Err(format!("{a:?} is not {b:?}")),
        }
    }

    fn same_text(&self, here: &[u8], there: &[u8]) -> Result<(), String> {
        let (a, b) = (ids(here), ids(there));
        let is_one = |a: &Id, b: &Id| match self.ids.get(&a.numbers) {
            Some(known) => known.iter().any(|one| one.there == b.numbers),
            None => a.numbers == b.numbers,
        };
        let same_ids = a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| is_one(a, b) && a.digits == b.digits);
        if same_ids && self.with_magic(without(here, &a)) == without(there, &b) {
            return Ok(());
        }
        Err(format!("{} is not {}", String::from_utf8_lossy(here), String::from_utf8_lossy(there)))
    }

    /// A word of a command to the test's own server in the words of this one. An id that is known of several streams is that of the one which
    /// the command names.
    fn translate(&self, word: &[u8], command: &[Vec<u8>]) -> Vec<u8> {
        let (mut out, mut from) = (Vec::with_capacity(word.len()), 0);
        for id in ids(word) {
            let known = self.ids.get(&id.numbers).map_or(&[][..], Vec::as_slice);
            let named = known.iter().find(|one| command.contains(&one.stream)).or(known.first());
            let (ms, n) = named.map_or(id.numbers, |one| one.there);
            out.extend_from_slice(&word[from..id.at.start]);
            out.extend_from_slice(format!("{ms:0digits$}-{n:0digits$}", digits = id.digits).as_bytes());
            from = id.at.end;
        }
        out.extend_from_slice(&word[from..]);
        self.with_magic(out)
    }

    fn with_magic(&self, mut text: Vec<u8>) -> Vec<u8> {
        for (here, there) in &self.magics {
            if let Some(at) = text.windows(here.len()).position(|part| part == here) {
                text.splice(at..at + here.len(), there.iter().copied());
            }
        }
        text
    }
}

/// The fields of a policy key without the positions of groups: those have the id of the server's process.
fn without_positions(fields: &Value) -> Value {
    let is_position = |field: &Value| matches!(field, Value::Array(pair) if matches!(&pair[..], [Value::BulkString(name), _] if name.starts_with(b"\"group:")));
    match fields {
        Value::Array(fields) => Value::Array(fields.iter().filter(|field| !is_position(field)).cloned().collect()),
        other => other.clone(),
    }
}

/// A text without the ids in it.
fn without(text: &[u8], ids: &[Id]) -> Vec<u8> {
    let ends = ids.iter().map(|id| id.at.start).chain([text.len()]);
    let starts = [0].into_iter().chain(ids.iter().map(|id| id.at.end));
    starts.zip(ends).flat_map(|(from, to)| text[from..to].iter().copied().chain([b'\n'])).collect()
}

/// An id of a stream entry in a text: where it stands, its two numbers, and to how many digits they are filled up with zeros.
struct Id {
    at: std::ops::Range<usize>,
    numbers: (u64, u64),
    digits: usize,
}

/// The ids in a text: the milliseconds of our time, plain or of twenty digits, a dash, and digits.
fn ids(text: &[u8]) -> Vec<Id> {
    let digits = |from: usize| text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = |at: std::ops::Range<usize>| std::str::from_utf8(&text[at]).ok()?.parse::<u64>().ok();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let dash = at + digits(at);
        if [13, 20].contains(&(dash - at)) && text.get(dash) == Some(&b'-') {
            let end = dash + 1 + digits(dash + 1);
            if let (Some(ms), Some(n)) = (number(at..dash), number(dash + 1..end)) {
                let digits = if dash - at == 20 { 20 } else { 0 };
                found.push(Id { at: at..end, numbers: (ms, n), digits });
                at = end;
                continue;
            }
        }
        at = dash.max(at + 1);
    }
    found
}

/// What says how long ago something was by the servers' own clocks.
fn is_of_the_clock(words: &[Vec<u8>]) -> bool {
    words.iter().take(2).any(|word| [&b"drip__reap"[..], b"XINFO", b"XPENDING", b"PTTL"].contains(&word.as_slice()))
}
