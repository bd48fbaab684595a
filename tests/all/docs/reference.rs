//! The pages that are looked up are made from the source: commands from their help, functions from the heads of their files, endpoints from
//! the `OpenAPI` document, metrics from their table. After a change write them anew: `DRIPD_BLESS=1 cargo test reference`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use dripd::http::metric::{self, Metric};
use serde_json::Value;

use crate::door::Door;
use crate::rig::dripd;

/// What `dripd <words> --help` prints.
fn help_of(words: &[&str]) -> String {
    let output =
        dripd().args(words).arg("--help").env("NO_COLOR", "1").env_remove("COLUMNS").output().expect("dripd runs");
    assert!(output.status.success(), "{words:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The commands that a help lists, except `help`.
fn listed(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

fn commands() -> String {
    let mut page = "For whoever runs dripd from a shell. Each section is what `--help` prints.\n".to_owned();
    let mut section = |title: &str, help: &str| {
        write!(page, "\n## {title}\n\n```text\n{}\n```\n", help.trim_end()).expect("a text");
    };
    let all = help_of(&[]);
    section("dripd", &all);
    for name in listed(&all) {
        let help = help_of(&[&name]);
        section(&format!("dripd {name}"), &help);
        for part in listed(&help) {
            section(&format!("dripd {name} {part}"), &help_of(&[&name, &part]));
        }
    }
    page
}

/// A section from the head of a public function: its names, what it does, and its lines of `keys`, `args`, `reply`, `errors` and `cost`.
fn function(head: &[&str]) -> String {
    let (names, about) = head[0].split_once(": ").expect("a name and what it does");
    let mut about = about[..1].to_uppercase() + &about[1..];
    let mut rows: Vec<(&str, String)> = Vec::new();
    for line in &head[1..] {
        let mut fields = ["keys", "args", "reply", "errors", "state", "cost"].into_iter();
        if let Some(field) = fields.find(|field| line.starts_with(&format!("{field} "))) {
            rows.push((field, line[field.len()..].trim().to_owned()));
        } else {
            let text = rows.last_mut().map_or(&mut about, |(_, text)| text);
            write!(text, " {}", line.trim()).expect("a text");
        }
    }
    let mut section = format!("\n## {names}\n\n{about}\n\n| | |\n|---|---|\n");
    let titles = [("keys", "key"), ("args", "arguments"), ("reply", "reply"), ("errors", "errors"), ("cost", "time")];
    for (field, title) in titles {
        for (_, text) in rows.iter().filter(|(is, _)| *is == field) {
            let text = text.replace('|', "\\|").replace('<', "&lt;");
            writeln!(section, "| {title} | {text} |").expect("a text");
        }
    }
    section
}

/// The functions in the order in which they are registered, which is that of their use.
fn functions() -> String {
    let lines: Vec<&str> = dripd::store::library::source().lines().map(str::trim).collect();
    let mut documented: Vec<(Vec<&str>, String)> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        // A head begins with the names of its function, or of two that are one.
        let Some((names, _)) = line.strip_prefix("-- ").and_then(|head| head.split_once(": ")) else { continue };
        let is_public = |name: &str| name.starts_with("drip_") && !name.starts_with("drip__") && !name.contains(' ');
        if names.split(", ").all(is_public) {
            let comment: Vec<&str> = lines[at..].iter().map_while(|line| line.strip_prefix("-- ")).collect();
            documented.push((names.split(", ").collect(), function(&comment)));
        }
    }
    let registered = lines.iter().filter_map(|line| {
        let rest = line.strip_prefix("public('").or_else(|| line.strip_prefix("limit('"))?;
        rest.split('\'').next().map(|name| format!("drip_{name}"))
    });
    let registered: Vec<String> = registered.collect();
    let named: BTreeSet<&str> = documented.iter().flat_map(|(names, _)| names).copied().collect();
    assert_eq!(named, registered.iter().map(String::as_str).collect(), "functions with a head, and public ones");
    let place = |names: &[&str]| registered.iter().position(|name| name == names[0]);
    documented.sort_by_key(|(names, _)| place(names));
    let sections: String = documented.into_iter().map(|(_, section)| section).collect();
    "For whoever calls dripd's functions in Redis: `FCALL <function> 1 <key> <argument> …`. The daemon loads them.\n\n\
     Errors begin with their word, such as `BADARG`. A time is in milliseconds unless its name says otherwise.\n"
        .to_owned()
        + &sections
}

/// The operations of the document, by the resource that their path begins with.
fn endpoints(door: &Door) -> String {
    let document = door.get("/openapi.json").json(200);
    let mut page =
        "For whoever writes a client of the HTTP server. [HTTP](http.md) says how it is used, and who may.\n\n\
                    `GET /openapi.json` of a running daemon has all of it with the schemas of bodies and answers.\n"
            .to_owned();
    let mut last = "";
    for (path, operations) in document["paths"].as_object().expect("paths") {
        let resource = path.strip_prefix("/v1/").map_or("", |rest| rest.split('/').next().unwrap_or(rest));
        if resource != last || page.matches("| request |").count() == 0 {
            let title = if resource.is_empty() { "The daemon".to_owned() } else { format!("/v1/{resource}") };
            write!(page, "\n## {title}\n\n| request | what it does | parameters |\n|---|---|---|\n").expect("a text");
            last = resource;
        }
        for (method, operation) in operations.as_object().expect("operations") {
            let of = |parameter: &Value| Some(format!("`{}`", parameter["name"].as_str()?));
            let is_asked = |parameter: &&Value| parameter["in"] != "path";
            let parameters = operation["parameters"].as_array().into_iter().flatten().filter(is_asked).filter_map(of);
            let (method, summary) = (method.to_uppercase(), operation["summary"].as_str().expect("a summary"));
            let parameters = parameters.collect::<Vec<_>>().join(", ");
            writeln!(page, "| `{method} {path}` | {summary} | {parameters} |").expect("a text");
        }
    }
    page
}

fn metrics() -> String {
    let mut page = "For whoever watches dripd with Prometheus. Each row is a metric at `/metrics`; those of single buckets are at \
                    `/metrics/buckets`.\n\n\
                    [Monitoring](monitoring.md#prometheus) has the scrape configuration, the alerts and a dashboard.\n\n\
                    | metric | type | labels | what it says |\n|---|---|---|---|\n"
        .to_owned();
    for Metric { name, kind, labels, help } in metric::ALL {
        let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        writeln!(page, "| `{name}` | {} | {labels} | {help} |", format!("{kind:?}").to_lowercase()).expect("a text");
    }
    page
}

/// Hold a page against what would be made now, or write it.
fn is_up_to_date(name: &str, title: &str, text: &str) {
    let path = format!("docs/{name}.md");
    let made = format!(
        "# {title}\n\n<!-- Made from the source by `DRIPD_BLESS=1 cargo test reference`: change that, not this page. -->\n\n{text}"
    );
    if std::env::var_os("DRIPD_BLESS").is_some() {
        return std::fs::write(&path, made).expect("written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == made, "{path} is out of date: DRIPD_BLESS=1 cargo test reference writes it anew");
}

#[test]
fn the_reference_of_commands_says_what_their_helps_say() {
    is_up_to_date("commands", "Commands", &commands());
}

#[test]
fn the_reference_of_functions_says_what_their_heads_say() {
    is_up_to_date("functions", "Functions in Redis", &functions());
}

#[test]
fn the_reference_of_endpoints_says_what_the_open_api_document_says() {
    is_up_to_date("endpoints", "HTTP endpoints", &endpoints(&Door::open("")));
}

#[test]
fn the_reference_of_metrics_says_what_their_table_says() {
    is_up_to_date("metrics", "Metrics", &metrics());
}
