//! The tests that need a program, a package or a right that not every machine has: a browser, promtool, nginx, Sidekiq, root …
//!
//! Whether it is here is known only when a test runs (a container may forbid what a real root may do, a registry may be out of reach), and
//! `#[ignore]` of the usual harness must be known when it is compiled. There a test that lacks something can only pass, which would be a lie.
//! So these have a harness that can report a test as ignored while it runs, with the reason; otherwise it looks and is used like the usual one.
//!
//! A file lists its tests at its end, in `tests!`; one that is not listed is dead code, which is an error. `#[test]` would be left out silently
//! here, so another test looks that nobody writes it. `cargo test --test tools -- dashboard` runs those whose name has that in it.

use std::panic::{UnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// The tests of a file.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: &[(&str, fn())] = &[$((concat!(module_path!(), "::", stringify!($name)), $name)),*];
    };
}

#[path = "../all/authority.rs"]
#[allow(dead_code)] // what another program of tests uses
mod authority;
#[path = "../all/door.rs"]
#[allow(dead_code)] // the same
mod door;
#[path = "../all/rig.rs"]
#[allow(dead_code)] // the same
mod rig;
#[path = "../all/roles.rs"]
#[allow(dead_code)] // the same
mod roles;
#[path = "../all/shell.rs"]
#[allow(dead_code)] // the same
mod shell;
#[path = "../all/twin.rs"]
#[allow(dead_code)] // the same
mod twin;

mod client_faults;
mod clients;
mod dashboard;
mod examples;
mod forward;
mod free_slots;
mod kubernetes;
mod llm;
mod lost_replies;
mod needs;
mod openapi;
mod other_user;
mod promtool;
mod proxy;
mod python;
mod receivers;
mod systemd;
mod workflows;

/// How long each test took, which the harness does not say.
static TIMES: Mutex<Vec<(String, Duration)>> = Mutex::new(Vec::new());

/// Run a test: it passes, it panics, or it lacks something.
fn attempt(name: &str, test: impl FnOnce() + UnwindSafe) -> Result<Completion, Failed> {
    let began = Instant::now();
    let outcome = catch_unwind(test);
    TIMES.lock().expect("nobody panics with it").push((name.to_owned(), began.elapsed()));
    match outcome {
        Ok(()) => Ok(Completion::Completed),
        Err(payload) => match payload.downcast::<needs::Missing>() {
            Ok(missing) => Ok(Completion::ignored_with(missing.0)),
            Err(payload) => std::panic::resume_unwind(payload), // the harness takes it for what it is
        },
    }
}

fn main() {
    let files = [
        client_faults::TESTS,
        clients::TESTS,
        dashboard::actions::TESTS,
        dashboard::connection::TESTS,
        dashboard::dead_letters::TESTS,
        dashboard::pages::TESTS,
        dashboard::tokens::TESTS,
        examples::TESTS,
        forward::TESTS,
        free_slots::TESTS,
        kubernetes::TESTS,
        llm::TESTS,
        lost_replies::TESTS,
        openapi::TESTS,
        other_user::TESTS,
        promtool::TESTS,
        proxy::TESTS,
        python::TESTS,
        receivers::TESTS,
        systemd::TESTS,
        workflows::TESTS,
    ];
    let tests = files.concat().into_iter().map(|(name, test)| {
        let name = name.strip_prefix("tools::").unwrap_or(name);
        Trial::ignorable_test(name, move || attempt(name, test))
    });
    let conclusion = libtest_mimic::run(&Arguments::from_args(), tests.collect());
    for (name, took) in TIMES.lock().expect("nobody panics with it").iter() {
        println!("time {name} <{:.3}s>", took.as_secs_f64());
    }
    conclusion.exit();
}
