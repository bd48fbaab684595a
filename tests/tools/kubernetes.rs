//! The manifests of `examples/kubernetes`: what Kubernetes takes, and whether a daemon that is started as they say can be probed and scraped.
//! No cluster is here, so nothing of how its controllers behave is tried.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::clients::python_with;
use crate::rig::{Daemon, Server, eventually, free_port};
use crate::shell::said;

const FOLDER: &str = "examples/kubernetes";

/// What other projects define: no package registry brings their schemas.
const CUSTOM: [&str; 2] = ["ScaledObject", "ServiceMonitor"];

fn python() -> PathBuf {
    python_with("kubernetes", "kubernetes_validate, yaml", &["kubernetes-validate"])
}

/// The resources of a file.
fn resources(path: &Path) -> Vec<Value> {
    let program = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let mut command = Command::new(python());
    let (code, out, err) = said(&command.args(["-c", program]).arg(path).output().expect("it runs"));
    assert_eq!(code, 0, "{}: {err}", path.display());
    serde_json::from_str(&out).expect("JSON")
}

/// Whether Kubernetes takes a resource, as its published schemas say: every field is known, and of its type.
fn is_valid(resource: &Value) -> Result<(), String> {
    let program =
        "import json, kubernetes_validate as k, sys; k.validate(json.load(sys.stdin), k.latest_version(), strict=True)";
    let mut command = Command::new(python());
    let input = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(input.path(), resource.to_string()).expect("written");
    command.args(["-c", program]).stdin(std::fs::File::open(input.path()).expect("a file"));
    let (code, _, err) = said(&command.output().expect("it runs"));
    if code == 0 { Ok(()) } else { Err(err) }
}

fn all_that_is_kubernetes_own_is_what_it_takes() {
    let mut tried = 0;
    for file in std::fs::read_dir(FOLDER).expect("a folder") {
        let path = file.expect("a file").path();
        for resource in resources(&path) {
            if CUSTOM.contains(&resource["kind"].as_str().expect("a kind")) {
                continue;
            }
            tried += 1;
            is_valid(&resource).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
            let mut unknown = resource.clone();
            unknown["spec"]["replica"] = 2.into();
            assert!(is_valid(&unknown).is_err(), "a field that is unknown is refused");
        }
    }
    assert!(tried >= 6, "{tried} resources");
}

/// The configuration that a comment of the manifest shows.
fn shown(manifest: &str) -> String {
    let lines = manifest.lines().skip_while(|line| !line.starts_with("#   [[http.token]]"));
    let lines = lines.take_while(|line| line.starts_with("#   ")).map(|line| &line[4..]);
    lines.fold(String::new(), |all, line| all + line + "\n")
}

/// The status of an answer of a daemon on this port of this machine, asked by another name.
fn status(port: u16, path: &str, host: &str, token: &str) -> String {
    let (host, token) = (format!("Host: {host}"), format!("Authorization: Bearer {token}"));
    let mut curl = Command::new("curl");
    curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", &host]);
    if !token.ends_with(' ') {
        curl.args(["-H", &token]);
    }
    said(&curl.arg(format!("http://127.0.0.1:{port}{path}")).output().expect("curl runs")).1
}

fn a_daemon_that_starts_as_the_manifest_says_is_probed_and_scraped_by_the_address_of_its_pod() {
    let path = Path::new(FOLDER).join("daemon.yaml");
    let container = resources(&path)[0]["spec"]["template"]["spec"]["containers"][0].clone();
    let (port, address) = (free_port(), "10.1.2.3");
    let variables: Vec<(String, String)> = container["env"]
        .as_array()
        .expect("variables")
        .iter()
        .map(|variable| {
            let value = variable["value"].as_str().unwrap_or(address); // that of the pod comes from Kubernetes
            let value = value.replace("$(POD_IP)", address).replace("0.0.0.0:7380", &format!("127.0.0.1:{port}"));
            (variable["name"].as_str().expect("a name").to_owned(), value)
        })
        .collect();
    let server = Server::start(&[]);
    let home = server.home("");
    let tokens = shown(&std::fs::read_to_string(&path).expect("a file"));
    let tokens = tokens.replace("/etc/dripd", home.path().to_str().expect("a path"));
    // Without the `[http]` of the other tests: the manifest says where it listens.
    let toml = format!("[redis]\nurl = '{}'\n{tokens}", server.url());
    std::fs::write(home.path().join("config.toml"), toml).expect("written");
    for token in ["operate.token", "read.token"] {
        std::fs::write(home.path().join(token), format!("{token}-0123456789abcdef0123456789abcdef\n"))
            .expect("written");
    }
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let _daemon = Daemon::spawn_with(home.path(), &variables);
    let (by_address, read) = (format!("{address}:{port}"), "read.token-0123456789abcdef0123456789abcdef");
    for probe in ["livenessProbe", "readinessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().expect("a path");
        eventually(probe, || status(port, path, &by_address, "") == "200");
    }
    let monitor = resources(&Path::new(FOLDER).join("servicemonitor.yaml"));
    let scraped = monitor[0]["spec"]["endpoints"][0]["path"].as_str().expect("a path");
    assert_eq!(monitor[0]["spec"]["endpoints"][0]["authorization"]["credentials"]["key"], "read.token");
    assert_eq!(status(port, scraped, &by_address, read), "200");
    assert_eq!(status(port, scraped, &by_address, ""), "401");
    assert_eq!(status(port, scraped, "dripd:7380", read), "200", "by the name of the service");
    assert_eq!(status(port, scraped, "10.1.2.4", read), "421", "another name");
}

tests! {
    a_daemon_that_starts_as_the_manifest_says_is_probed_and_scraped_by_the_address_of_its_pod,
    all_that_is_kubernetes_own_is_what_it_takes,
}
