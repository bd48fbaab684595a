//! The recipes for other machines, run as they stand in the documents: reverse proxies with TLS outside, names and hosts as the client sent
//! them; and a Prometheus that comes from elsewhere.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::door::{Door, EYES, TOKENS};
use crate::needs;
use crate::rig::{eventually, free_port};
use crate::shell::{Shell, said};

const HOST: &str = "drip.example.com";
const PAGE: &str = "docs/http.md";

/// The first block of a page that contains this.
fn recipe(page: &str, contains: &str) -> String {
    let page = std::fs::read_to_string(page).expect("the page");
    let mut blocks = page.split("```").skip(1).step_by(2);
    let block = blocks.find(|block| block.contains(contains)).unwrap_or_else(|| panic!("no block has {contains}"));
    block.split_once('\n').expect("a language").1.to_owned()
}

/// Replace something that must be there.
#[track_caller]
fn with(recipe: &str, here: &str, there: &str) -> String {
    assert!(recipe.contains(here), "{here:?} is not in {recipe}");
    recipe.replace(here, there)
}

/// A certificate for the host, and its key, in a directory.
fn certify(dir: &Path) {
    let (subject, name) = (format!("/CN={HOST}"), format!("subjectAltName=DNS:{HOST}"));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]);
    command.args(["-subj", &subject, "-addext", &name, "-keyout", "key.pem", "-out", "cert.pem"]).current_dir(dir);
    let made = command.output().expect("openssl runs");
    assert!(made.status.success(), "{made:?}");
}

/// A proxy before a door, and what a client is told through it.
struct Proxied {
    door: Door,
    port: u16,
    proxy: Child,
}

impl Drop for Proxied {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

impl Proxied {
    /// `start` writes the proxy's configuration and runs it, given where the door is and where it is to listen.
    fn start(start: impl FnOnce(&Path, u16, u16) -> Child) -> Self {
        let toml = format!("[defaults]\nrate = '1/h'\n[http]\nlisten = '127.0.0.1:0'\nhosts = ['{HOST}']\n{TOKENS}");
        let (door, port) = (Door::of(Shell::new(&toml)), free_port());
        certify(door.shell.home());
        let proxy = start(door.shell.home(), door.port, port);
        let this = Self { door, port, proxy };
        eventually("the proxy answers", || this.ask(&[], "GET", "/healthz") == "200");
        this
    }

    /// The status of an answer.
    fn ask(&self, headers: &[&str], method: &str, path: &str) -> String {
        let to = format!("{HOST}:{}:127.0.0.1", self.port);
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "answer", "-w", "%{http_code}", "--cacert", "cert.pem", "--resolve", &to, "-X", method]);
        curl.args(["--path-as-is", "--max-time", "10"]).current_dir(self.door.shell.home());
        if method == "POST" {
            curl.args(["--data-binary", "", "-H", "Content-Type:"]);
        }
        for header in headers {
            curl.args(["-H", header]);
        }
        let (_, status, _) =
            said(&curl.arg(format!("https://{HOST}:{}{path}", self.port)).output().expect("curl runs"));
        status
    }

    /// What a page, a producer and a stranger are told.
    fn check(mut self) {
        let ops = "Authorization: Bearer ops-secret";
        let page = format!("Origin: https://{HOST}:{}", self.port);
        assert_eq!(self.ask(&[], "GET", "/v1/status"), "401", "nobody is local here");
        assert_eq!(self.ask(&[ops], "GET", "/v1/status"), "200");
        assert_eq!(
            self.ask(&[ops, &page], "POST", "/v1/buckets/a%2Fb/pause"),
            "200",
            "a page of this site, at this port"
        );
        assert_eq!(self.ask(&[ops, "Origin: https://evil.example"], "POST", "/v1/buckets/a/pause"), "403");
        assert_eq!(self.ask(&[ops], "POST", "/v1/buckets/a%2Fb/jobs"), "202");
        assert_eq!(self.door.shell.case.waiting("a/b").len(), 1, "the name came as it was sent");
    }
}

fn the_recipe_for_nginx_works_at_any_port() {
    for name in ["nginx", "openssl", "curl"] {
        needs::one_of(&[name], &format!("apt-get install {name}"));
    }
    let proxied = Proxied::start(|dir, door, port| {
        let server = recipe(PAGE, "proxy_pass http://127.0.0.1:7380");
        let server = with(&server, "listen 443 ssl", &format!("listen 127.0.0.1:{port} ssl"));
        let server = with(&server, "127.0.0.1:7380", &format!("127.0.0.1:{door}"));
        let server = with(&server, "/etc/ssl/drip.example.com.pem", "cert.pem");
        let server = with(&server, "/etc/ssl/private/drip.example.com.key", "key.pem");
        let temporary =
            ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path .;\n"));
        let text = format!(
            "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{}{server}\n}}\n",
            temporary.concat()
        );
        std::fs::write(dir.join("nginx.conf"), text).expect("written");
        let mut nginx = Command::new("nginx");
        nginx.arg("-p").arg(dir).arg("-c").arg(dir.join("nginx.conf")).args(["-e", "stderr"]);
        nginx.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs")
    });
    proxied.check();
}

fn the_recipe_for_caddy_works_at_any_port() {
    for name in ["caddy", "openssl", "curl"] {
        needs::one_of(&[name], &format!("apt-get install {name}"));
    }
    let proxied = Proxied::start(|dir, door, port| {
        let site = recipe(PAGE, "reverse_proxy 127.0.0.1:7380");
        let site = with(&site, "127.0.0.1:7380", &format!("127.0.0.1:{door}"));
        // It would ask for a certificate, at a name that is not ours.
        let site = with(&site, "drip.example.com {", &format!("drip.example.com:{port} {{\ntls cert.pem key.pem"));
        let text = format!("{{\nadmin off\nauto_https disable_redirects\ndefault_bind 127.0.0.1\n}}\n{site}");
        std::fs::write(dir.join("Caddyfile"), text).expect("written");
        let mut caddy = Command::new("caddy");
        caddy.args(["run", "--config", "Caddyfile"]).current_dir(dir).env("HOME", dir);
        caddy.env("XDG_DATA_HOME", dir).env("XDG_CONFIG_HOME", dir);
        caddy.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs")
    });
    proxied.check();
}

fn the_recipe_for_a_prometheus_on_another_machine_answers_it_by_the_names_that_are_listed() {
    let page = "docs/monitoring.md";
    let door = with(&recipe(page, "hosts = [\"web1\""), "0.0.0.0:7380", "127.0.0.1:0");
    let door = Door::of(Shell::new(&with(&door, "/etc/dripd/prometheus.token", "eyes")));
    let scrape = recipe(page, "credentials_file");
    let target = scrape.split(['"', ':']).find(|word| *word == "web1").expect("it asks for the name that is listed");
    let status = |path: &str, host: &str, headers: &[(&str, &str)]| {
        let host = format!("{host}:{}", door.port);
        door.ask(&format!("GET {path}"), &[&[("Host", host.as_str())], headers].concat(), b"").status
    };
    assert_eq!(status("/metrics", target, &[EYES]), 200);
    assert_eq!(status("/metrics", "10.0.0.5", &[EYES]), 200);
    assert_eq!(status("/metrics", target, &[]), 401, "without its token");
    for path in ["/metrics", "/healthz"] {
        assert_eq!(status(path, "10.0.0.6", &[EYES]), 421, "{path} by an address that is not listed");
    }
    assert_eq!(status("/healthz", target, &[]), 200);
}

tests! {
    the_recipe_for_nginx_works_at_any_port,
    the_recipe_for_caddy_works_at_any_port,
    the_recipe_for_a_prometheus_on_another_machine_answers_it_by_the_names_that_are_listed,
}
