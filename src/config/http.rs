//! The `[http]` section: the address of the HTTP server, the other names by which it is known, and the tokens that open
//! it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use super::environment::Environment;
use super::keys;
use super::section::{Problems, Section};
use crate::model::words;

/// The port of the HTTP server unless `http.listen` says otherwise.
pub const HTTP_PORT: u16 = 7380;

/// The name of the systemd credential that holds a token for everything; the token has the same name.
const CREDENTIAL: &str = "http-token";

/// The `[http]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// The address of the HTTP server.
    pub listen: Listen,
    /// Whether the file sets `listen`. If it does not, a taken port does not keep the daemon from starting.
    pub listen_is_written: bool,
    /// Host names, with or without a port, by which others reach the server; in lower case.
    pub hosts: Vec<String>,
    /// The most bytes that all bodies and answers together hold.
    pub memory: usize,
    /// The tokens and their permissions.
    pub tokens: Vec<TokenSettings>,
}

/// The bytes of all bodies and answers together unless `http.memory` says otherwise.
const MEMORY: usize = 64 * 1_048_576;

/// The address of the HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// No address: there is no HTTP server.
    Off,
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// A token, as the file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSettings {
    /// The name of its user, in logs and events.
    pub name: String,
    /// The file whose first line is the token.
    pub file: PathBuf,
    /// The permission that it gives.
    pub may: May,
    /// The glob of the buckets that it is for; none: all buckets.
    pub only: Option<String>,
}

words! {
    /// What a token opens, each as much as the one before and more.
    pub enum May {
        /// Pushes, with their verdict.
        Push = "push",
        /// Every GET.
        Read = "read",
        /// All.
        Operate = "operate",
    }
}

impl HttpSettings {
    /// The largest body or answer for which there can be room: an eighth is left to others.
    pub fn largest(&self) -> usize {
        self.memory - self.memory / 8
    }

    /// The warning that a job may be too large for HTTP, if that is so.
    pub(super) fn warning(&self, max_job_bytes: u64) -> Option<String> {
        let largest = self.largest();
        let fits = self.listen == Listen::Off || usize::try_from(max_job_bytes).is_ok_and(|most| most <= largest);
        (!fits).then(|| {
            format!(
                "limits.max_job_bytes is {max_job_bytes}, and over HTTP a job has at most {largest} bytes, seven eighths of \
                 http.memory"
            )
        })
    }
}

impl Listen {
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::Off);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return Path::new(path).is_absolute().then(|| Self::Unix(PathBuf::from(path)));
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            return Some(Self::Tcp(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port.parse().ok()?)));
        }
        text.parse().ok().map(Self::Tcp)
    }

    /// Whether only this machine can reach the address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => is_loopback(address.ip()),
            Self::Off | Self::Unix(_) => true,
        }
    }
}

/// Display as it is written in the file.
impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => Ok(()),
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Whether an address is a loopback address. An IPv4 address may be written as IPv6.
pub fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// The reason why a server that other machines can reach is refused without a token.
pub fn open_to_all(listen: &impl fmt::Display) -> String {
    format!(
        "{listen} can be reached from other machines, and no token is named, so anybody could push; name one under \
         [[http.token]], or listen on 127.0.0.1:{HTTP_PORT}"
    )
}

/// Read the section. A systemd credential adds a token.
pub(super) fn http_settings(section: &mut Section, environment: &Environment, problems: &mut Problems) -> HttpSettings {
    let listen_is_written = section.has("listen");
    let before = problems.count();
    let listen = section.read("listen", |v| Listen::parse(v.as_str()?), problems);
    let listen = listen.unwrap_or(Listen::Tcp(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), HTTP_PORT)));
    let hosts = section.read("hosts", |v| v.as_array()?.iter().map(host_of).collect::<Option<Vec<_>>>(), problems);
    let memory = section.number("memory", problems).unwrap_or(MEMORY);
    let entries = section.sections("token", &[keys::HTTP_TOKEN], problems);
    let mut tokens: Vec<TokenSettings> =
        entries.into_iter().filter_map(|mut entry| token(&mut entry, environment, problems)).collect();
    section.finish(problems);
    for (at, one) in tokens.iter().enumerate() {
        if tokens[..at].iter().any(|other| other.name == one.name) {
            problems.add(format!("http.token[{}].name: another token is named {:?} too", at + 1, one.name));
        }
    }
    if let Some(file) = environment.credential(CREDENTIAL) {
        tokens.push(TokenSettings { name: CREDENTIAL.to_owned(), file, may: May::Operate, only: None });
    }
    if !listen.is_local() && tokens.is_empty() && problems.count() == before {
        problems.add(format!("http.listen: {}", open_to_all(&listen)));
    }
    HttpSettings { listen, listen_is_written, hosts: hosts.unwrap_or_default(), memory, tokens }
}

/// A host name or an address, with or without a port, in lower case; `None` for anything else. An IPv6 address gets its brackets, which
/// it has in requests: Kubernetes gives that of a pod without them.
fn host_of(value: &toml::Value) -> Option<String> {
    let text = value.as_str()?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some(format!("[{}]", text.to_ascii_lowercase()));
    }
    (!text.is_empty() && text.chars().all(is_part)).then(|| text.to_ascii_lowercase())
}

fn token(entry: &mut Section, environment: &Environment, problems: &mut Problems) -> Option<TokenSettings> {
    let text = |v: &toml::Value| v.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let is_name = |name: &String| name.len() <= 100 && !name.chars().any(char::is_control);
    let name = entry.must_read("name", |v| text(v).filter(is_name), problems);
    let file = entry.must_read("file", text, problems).map(|file| environment.file(file));
    let may = entry.must_read("may", |v| May::parse(v.as_str()?), problems);
    let only = entry.read("match", text, problems);
    entry.finish(problems);
    Some(TokenSettings { name: name?, file: file?, may: may?, only: only.filter(|glob| glob != "*") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(text: &str) -> Result<HttpSettings, String> {
        let config = Config::parse(text, None, &Environment::default());
        config.map(|config| config.http).map_err(|why| why.to_string())
    }

    #[test]
    fn without_a_word_it_listens_on_loopback_and_knows_no_token() {
        let http = read("").expect("the default");
        assert_eq!(http.listen.to_string(), "127.0.0.1:7380");
        assert!(!http.listen_is_written && http.tokens.is_empty() && http.listen.is_local());
    }

    #[test]
    fn it_listens_at_an_address_at_a_path_or_nowhere() {
        let listen = |text: &str| read(&format!("[http]\nlisten = {text:?}\n")).map(|http| http.listen);
        assert_eq!(listen(""), Ok(Listen::Off));
        assert_eq!(listen("unix:/run/x.sock"), Ok(Listen::Unix("/run/x.sock".into())));
        assert_eq!(listen("localhost:80").map(|it| it.to_string()), Ok("127.0.0.1:80".to_owned()));
        assert_eq!(listen("[::1]:80").map(|it| it.is_local()), Ok(true));
        for bad in ["7380", "unix:x.sock", "http://127.0.0.1:1", "example.com:80", "127.0.0.1"] {
            let why = listen(bad).expect_err(bad);
            assert!(why.contains("http.listen: ") && why.contains("unix:/path"), "{why}");
        }
    }

    #[test]
    fn the_memory_has_a_bound_and_a_job_that_does_not_fit_is_warned_of() {
        assert_eq!(read("").expect("the default").memory, 67_108_864);
        assert_eq!(read("[http]\nmemory = 16777216\n").expect("good").memory, 16_777_216);
        for bad in ["16777215", "2147483649", "'64MiB'"] {
            let why = read(&format!("[http]\nmemory = {bad}\n")).expect_err(bad);
            assert!(why.contains("http.memory: ") && why.contains("16777216 to 2147483648"), "{why}");
        }
        let warnings = |text: &str| Config::parse(text, None, &Environment::default()).expect("good").warnings();
        let large = "[limits]\nmax_job_bytes = 58720257\n";
        let why = warnings(large).join("");
        assert!(why.contains("http.memory") && why.contains("58720256 bytes"), "{why}");
        assert_eq!(warnings(&large.replace("257", "256")), [""; 0]);
        assert_eq!(warnings(&(large.to_owned() + "[http]\nlisten = ''\n")), [""; 0]);
    }

    #[test]
    fn others_reach_it_only_where_a_token_is_named() {
        for open in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            let text = format!("[http]\nlisten = {open:?}\n");
            assert!(read(&text).expect_err(open).contains("can be reached from other machines"), "{open}");
            let token = "[[http.token]]\nname = 'a'\nfile = '/a'\nmay = 'read'\n";
            assert!(read(&(text + token)).is_ok(), "{open}");
        }
        assert!(read("[http]\nlisten = '[::ffff:127.0.0.1]:1'\n").is_ok());
    }

    #[test]
    fn a_token_says_who_what_and_for_which_buckets() {
        let text = "[http]\nhosts = ['Drip.example.com', '10.0.0.1:8443', 'FD00::5', '[fd00::6]']\n[[http.token]]\nname = 'billing'\n\
                    file = '/etc/dripd/billing'\nmay = 'push'\nmatch = 'billing:*'\n";
        let http = read(text).expect("good");
        assert_eq!(http.hosts, ["drip.example.com", "10.0.0.1:8443", "[fd00::5]", "[fd00::6]"]);
        let expected = TokenSettings {
            name: "billing".to_owned(),
            file: "/etc/dripd/billing".into(),
            may: May::Push,
            only: Some("billing:*".to_owned()),
        };
        assert_eq!(http.tokens, [expected]);
        let twice = text.to_owned() + "[[http.token]]\nname = 'billing'\nfile = '/b'\nmay = 'all'\n";
        let why = read(&twice).expect_err("it may not");
        assert!(why.contains("http.token[2].may: \"all\" is not allowed; write push, read or operate"), "{why}");
        let twice = twice.replace("'all'", "'read'");
        assert!(read(&twice).expect_err("twice").contains("another token is named \"billing\" too"));
        let why = read("[http]\nhosts = ['http://x']\n[[http.token]]\n").expect_err("nothing is there");
        for part in ["http.hosts", "http.token[1].name: missing", "http.token[1].file: missing"] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn a_credential_of_systemd_is_a_token() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("http-token"), "secret\n").expect("written");
        std::fs::write(dir.path().join("billing"), "other\n").expect("written");
        let environment = Environment { credentials_directory: Some(dir.path().to_owned()), ..Environment::default() };
        let text = "[[http.token]]\nname = 'b'\nfile = 'billing'\nmay = 'push'\n";
        let http = Config::parse(text, None, &environment).expect("good").http;
        let found: Vec<_> = http.tokens.iter().map(|one| (one.name.as_str(), one.file.clone(), one.may)).collect();
        let file = |name| dir.path().join(name);
        assert_eq!(found, [("b", file("billing"), May::Push), ("http-token", file("http-token"), May::Operate)]);
    }
}
