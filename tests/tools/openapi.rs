//! The document of the HTTP server, tested against the door by a tool that makes requests of documents.

use std::process::Command;

use crate::door::{Door, TOKENS};
use crate::needs;
use crate::rig::Server;
use crate::shell::said;

fn the_door_answers_as_its_document_says_whatever_it_is_asked() {
    let server = Server::start(&[]);
    let door = Door::on(&server, &format!("[defaults]\nrate = '1000/s'\n{TOKENS}"));
    let work = concat!(env!("CARGO_TARGET_TMPDIR"), "/openapi");
    let url = format!("http://127.0.0.1:{}", door.port);
    let output = Command::new("sh").args(["tests/openapi/run.sh", work, &url, "ops-secret"]).output().expect("sh runs");
    let (code, out, err) = said(&output);
    if let Some(skipped) = out.lines().find(|line| line.starts_with("SKIPPED")) {
        needs::skipped(skipped, "apt-get install python3-venv");
    }
    assert_eq!(code, 0, "{out}{err}");
    // It has asked: each operation of the document, and a few hundred times.
    let operations = door.get("/openapi.json").json(200)["paths"].as_object().expect("paths").len();
    assert!(out.contains("Test cases:") && operations > 25, "{out}");
    assert_eq!(door.get("/readyz").status, 200, "and it is well");
}

tests! {
    the_door_answers_as_its_document_says_whatever_it_is_asked,
}
