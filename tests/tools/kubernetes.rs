//! The manifests and the Helm chart of `examples/kubernetes`: what Kubernetes takes, and whether a daemon that is started as they say can be probed and scraped.
//! No cluster is here, so nothing of how its controllers behave is tried.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::clients::python_with;
use crate::rig::{Daemon, Server, dripd, eventually, free_port};
use crate::shell::{Running, said};

const FOLDER: &str = "examples/kubernetes";

/// What other projects define: no package registry brings their schemas.
const CUSTOM: [&str; 2] = ["ScaledObject", "ServiceMonitor"];

fn python() -> PathBuf {
    python_with("kubernetes", "kubernetes_validate, yaml", &["kubernetes-validate"])
}

/// The plain manifests.
fn manifests() -> Vec<PathBuf> {
    let files = std::fs::read_dir(FOLDER).expect("a folder").map(|file| file.expect("a file").path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
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
    for path in manifests() {
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

/// What Helm makes of the chart with these values, or what it says.
fn rendered(values: &str) -> Result<Vec<Value>, String> {
    let helm = python_with("helm", "os", &["helm-binary"]).with_file_name("helm");
    let given = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(given.path(), values).expect("written");
    let mut command = Command::new(helm);
    command.args(["template", "dripd"]).arg(Path::new(FOLDER).join("chart")).arg("--values").arg(given.path());
    let (code, out, err) = said(&command.output().expect("helm runs"));
    let made = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(made.path(), out).expect("written");
    if code == 0 { Ok(resources(made.path())) } else { Err(err) }
}

/// A resource without the labels that say that Helm made it, by its kind and its name.
fn plain(mut resource: Value) -> (String, Value) {
    let metadata = resource["metadata"].as_object_mut().expect("an object");
    if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
        labels.retain(|name, _| !name.contains('/'));
        if labels.is_empty() {
            metadata.remove("labels");
        }
    }
    let name = |value: &Value| value.as_str().expect("a name").to_owned();
    (name(&resource["kind"]) + " " + &name(&resource["metadata"]["name"]), resource)
}

fn the_chart_makes_the_manifests() {
    let values = "serviceMonitor: { enabled: true }\nworkers: [{ name: worker, run: [--http, 'http://api/jobs'] }]\n";
    let made: BTreeMap<_, _> = rendered(values).expect("it renders").into_iter().map(plain).collect();
    let by_keda = manifests().into_iter().filter(|path| !path.ends_with("hpa.yaml"));
    let written: BTreeMap<_, _> = by_keda.flat_map(|path| resources(&path)).map(plain).collect();
    assert_eq!(made.keys().collect::<Vec<_>>(), written.keys().collect::<Vec<_>>());
    for (what, resource) in &written {
        assert_eq!(&made[what], resource, "{what}");
    }
}

fn a_chart_with_other_values_is_what_kubernetes_takes() {
    let values = "config: |\n  [defaults]\n  rate = '5/s'\nreplicas: 3\nimage: { repository: example.com/d, tag: '2', pullSecrets: [{ name: mine }] }\nhosts: [d.example.com]\n\
                  networkPolicy: { enabled: false }\nserviceMonitor: { enabled: true, labels: { release: p } }\nworkers:\n- { name: a, route: sms, run: [--exec, ./send], replicas: 0 }\n\
                  - { name: b, route: mail, run: [--exec, ./send], concurrency: 5, min: 0, max: 4, env: [{ name: A, value: b }] }\n";
    let made = rendered(values).expect("it renders");
    for resource in made.iter().filter(|one| !CUSTOM.contains(&one["kind"].as_str().expect("a kind"))) {
        is_valid(resource).unwrap_or_else(|why| panic!("{resource}: {why}"));
    }
    let made: BTreeMap<_, _> = made.into_iter().map(plain).collect();
    let kinds: Vec<_> = made.keys().map(String::as_str).collect();
    let daemons = ["Deployment dripd", "Deployment dripd-a", "Deployment dripd-b", "PodDisruptionBudget dripd"];
    assert_eq!(
        kinds,
        [&daemons[..], &["ScaledObject dripd-b", "Secret dripd-config", "Service dripd", "ServiceMonitor dripd"]]
            .concat()
    );
    assert_eq!(made["ServiceMonitor dripd"]["metadata"]["labels"]["release"], "p");
    for name in ["dripd", "dripd-a"] {
        let pod = &made[&format!("Deployment {name}")]["spec"]["template"]["spec"];
        assert_eq!(pod["imagePullSecrets"], json!([{ "name": "mine" }]), "{name}");
    }
    assert_eq!(made["Secret dripd-config"]["stringData"]["config.toml"], "[defaults]\nrate = '5/s'\n");
    let daemon = &made["Deployment dripd"]["spec"];
    let sources = &daemon["template"]["spec"]["volumes"][0]["projected"]["sources"];
    assert_eq!(sources[1]["secret"]["name"], "dripd-config", "its config.toml counts");
    assert_eq!((&daemon["replicas"], &made["Deployment dripd-a"]["spec"]["replicas"]), (&3.into(), &0.into()));
    let hosts = &daemon["template"]["spec"]["containers"][0]["env"][2]["value"];
    assert_eq!(hosts, r#"["$(POD_IP)","dripd","d.example.com"]"#);
    let container = &made["Deployment dripd-b"]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        (&container["image"], &container["env"][0]),
        (&"example.com/d:2".into(), &json!({ "name": "A", "value": "b" }))
    );
    assert_eq!(container["args"], json!(["work", "--route", "mail", "--concurrency", "5", "--exec", "./send"]));
    let scaled = &made["ScaledObject dripd-b"]["spec"];
    assert_eq!((&scaled["minReplicaCount"], &scaled["maxReplicaCount"]), (&0.into(), &4.into()));
    assert_eq!(scaled["triggers"][0]["metadata"]["threshold"], "3.5");
    let sum = |values: &str| {
        let made: BTreeMap<_, _> = rendered(values).expect("it renders").into_iter().map(plain).collect();
        made["Deployment dripd"]["spec"]["template"]["metadata"]["annotations"]["checksum/config"].clone()
    };
    assert_ne!(sum("config: a"), sum("config: b"), "a change starts the daemons anew");
}

fn values_that_mean_nothing_are_refused() {
    for (values, why) in [
        ("replicas: 0", "replicas"),
        ("replica: 2", "replica"),
        ("workers: [{ name: a }]", "run"),
        ("workers: [{ name: A b, run: [--print] }]", "name"),
        ("workers: [{ name: a, run: [--print], concurrency: 0 }]", "concurrency"),
        ("image: { repository: '' }", "repository"),
    ] {
        let said = rendered(values).expect_err(values);
        assert!(said.contains(why), "{values}: {said}");
    }
}

/// What a pod finds in the secrets that the first lines of a manifest make, a directory each. In place of kubectl comes a script that
/// reads the files as it does, and refuses a secret that is there.
fn secrets(manifest: &str, home: &Path) {
    const KUBECTL: &str = r#"#!/bin/sh -e
[ "$1 $2 $3" = "create secret generic" ] || exit 0
mkdir "$SECRETS/$4"
secret=$SECRETS/$4 && shift 4
for file; do file=${file#--from-file=}; cp "${file#*=}" "$secret/${file%%=*}"; done
"#;
    let text = std::fs::read_to_string(Path::new(FOLDER).join(manifest)).expect("a file");
    let head = text.lines().take_while(|line| line.starts_with('#'));
    let lines: Vec<_> = head.filter_map(|line| line.strip_prefix("#   ")).collect();
    assert!(lines.len() >= 3, "{lines:?}");
    let kubectl = home.join("kubectl");
    std::fs::write(&kubectl, KUBECTL).expect("written");
    std::fs::set_permissions(&kubectl, std::fs::Permissions::from_mode(0o755)).expect("its owner");
    for file in ["daemon.toml", "worker.toml"] {
        std::fs::copy(Path::new(FOLDER).join(file), home.join(file)).expect("copied");
    }
    let path = format!("{}:{}", home.display(), std::env::var("PATH").expect("a path"));
    let mut shell = Command::new("sh");
    shell.args(["-ec", &lines.join("\n")]).current_dir(home).env("PATH", path).env("SECRETS", home);
    let (code, out, err) = said(&shell.output().expect("sh runs"));
    assert_eq!(code, 0, "{manifest}: {out}{err}");
}

/// The directory of a secret, with a configuration for this server, which knows the user of a role by the password in it.
fn pod(home: &Path, secret: &str, server: &Server, role: &[&str]) -> PathBuf {
    let dir = home.join(secret);
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).expect("a file");
    let config = read("config.toml").replace("rediss://valkey:6379", &server.url());
    std::fs::write(dir.join("config.toml"), config.replace("/etc/dripd", dir.to_str().expect("a path")))
        .expect("written");
    let (code, line, err) = said(&dripd().arg("acl").args(role).current_dir(&dir).output().expect("it runs"));
    assert_eq!(code, 0, "{err}");
    let line = line.trim_end().replace(">PASSWORD", &format!(">{}", read("redis-password")));
    let words: Vec<_> = line.split(' ').collect();
    let _: redis::Value = redis::cmd(words[0]).arg(&words[1..]).query(&mut server.connect()).expect("a user");
    dir
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
    let (server, home) = (Server::start(&[]), tempfile::tempdir().expect("a directory"));
    for manifest in ["daemon.yaml", "worker-deployment.yaml"] {
        secrets(manifest, home.path());
    }
    let daemon = pod(home.path(), "dripd", &server, &["daemon", "--user", "dripd"]);
    let worker = pod(home.path(), "dripd-worker", &server, &["worker"]);
    for secret in ["redis-password", "operate.token", "read.token"] {
        let text = std::fs::read_to_string(daemon.join(secret)).expect("a file");
        assert!(!text.ends_with('\n'), "Prometheus sends a token as it is");
    }
    let read = std::fs::read_to_string(daemon.join("read.token")).expect("a file");
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let _daemon = Daemon::spawn_with(&daemon, &variables);
    let by_address = format!("{address}:{port}");
    for probe in ["livenessProbe", "readinessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().expect("a path");
        eventually(probe, || status(port, path, &by_address, "") == "200");
    }
    let monitor = resources(&Path::new(FOLDER).join("servicemonitor.yaml"));
    let scraped = monitor[0]["spec"]["endpoints"][0]["path"].as_str().expect("a path");
    assert_eq!(monitor[0]["spec"]["endpoints"][0]["authorization"]["credentials"]["key"], "read.token");
    assert_eq!(status(port, scraped, &by_address, &read), "200");
    assert_eq!(status(port, scraped, &by_address, ""), "401");
    assert_eq!(status(port, scraped, "dripd:7380", &read), "200", "by the name of the service");
    assert_eq!(status(port, scraped, "10.1.2.4", &read), "421", "another name");

    // A worker takes a job with what its own secret holds.
    let _: i64 = redis::cmd("LPUSH").arg("drip:queue:acme").arg("hello").query(&mut server.connect()).expect("pushed");
    let jobs = worker.join("jobs");
    let mut work = dripd();
    work.args(["work", "--print"]).current_dir(&worker).env("DRIPD_CONFIG", worker.join("config.toml"));
    work.stdin(Stdio::null()).stdout(std::fs::File::create(&jobs).expect("a file"));
    let _work = Running(Some(work.spawn().expect("it runs")));
    eventually("a job is taken", || std::fs::read_to_string(&jobs).expect("a file").contains("hello"));
}

tests! {
    a_chart_with_other_values_is_what_kubernetes_takes,
    a_daemon_that_starts_as_the_manifest_says_is_probed_and_scraped_by_the_address_of_its_pod,
    all_that_is_kubernetes_own_is_what_it_takes,
    the_chart_makes_the_manifests,
    values_that_mean_nothing_are_refused,
}
