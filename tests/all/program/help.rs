//! Help, completions and man pages, from outside.

use std::process::{Command, Stdio};

use super::said;
use crate::rig::dripd;

fn run(args: &[&str]) -> (i32, String, String) {
    said(&dripd().args(args).stdin(Stdio::null()).output().expect("it runs"))
}

fn bash(script: &str) -> (i32, String, String) {
    let script = format!("dripd={:?}\n{script}", env!("CARGO_BIN_EXE_dripd"));
    said(&Command::new("bash").args(["-c", &script]).output().expect("bash runs"))
}

#[test]
fn help_shows_arguments_in_their_order_and_ends_with_examples_and_exit_codes() {
    let (code, out, _) = run(&["push", "--help"]);
    assert_eq!(code, 0);
    assert!(out.contains("Usage: dripd push [OPTIONS] <BUCKET> <JOB>\n"), "{out}");
    assert!(out.contains("Examples:\n  One job into the bucket acme:\n      dripd push acme hello\n"), "{out}");
    assert!(out.contains("Exit codes:\n  0    all jobs were accepted\n"), "{out}");
    assert_eq!(run(&["help", "push"]).1, out, "both ways to ask");
    let (code, _, err) = run(&["push"]);
    assert!(code == 2 && err.contains("Usage: dripd push [OPTIONS] <BUCKET> <JOB>\n"), "{code} {err}");
}

#[test]
fn a_misspelt_command_or_option_is_told_what_was_meant() {
    for (args, meant) in [
        (&["stauts"][..], "'status'"),
        (&["relod"], "'reload'"),
        (&["push", "b", "--fil", "x"], "'--file'"),
        (&["work", "--concurency", "2"], "'--concurrency'"),
    ] {
        let (code, out, err) = run(args);
        assert!(code == 2 && out.is_empty() && err.contains("similar") && err.contains(meant), "{args:?}: {err}");
    }
}

#[test]
fn a_number_that_is_none_is_told_what_would_be_one() {
    for (args, right) in [
        (&["work", "--print", "--concurrency", "x"][..], "write a whole number, 1 to 1000"),
        (&["work", "--print", "--concurrency", "0"], "write a whole number, 1 to 1000"),
        (&["limit", "fixed-window", "k", "5/s", "--quantity", "x"], "write a whole number, 0 to 4294967295"),
        (&["limit", "fixed-window", "k", "5"], "write limit/period, as in 5/60s"),
        (&["work", "--print", "--timeout", "5"], "write a whole number and a unit"),
        (&["work", "--http", "localhost:80"], "write http://host/path or https://host/path"),
    ] {
        let (code, _, err) = run(args);
        assert!(code == 2 && err.contains(right) && !err.contains("invalid digit"), "{args:?}: {code} {err}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let script = "$dripd functions | head -n 1; echo ${PIPESTATUS[0]}; $dripd functions > /dev/full; echo $?";
    let said = bash(script);
    let why = "dripd functions: cannot write to standard output: No space left on device (os error 28)\n";
    assert_eq!(said, (0, "#!lua name=dripd\n0\n1\n".to_owned(), why.to_owned()));
}

#[test]
fn bash_completes_commands_and_options() {
    // As bash calls it: the words, the number of the one at hand, and the function with command, word and the word before.
    let complete = r#"
        source <("$dripd" completions bash)
        words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _dripd "$1" "${@: -1}" "${@: -2:1}"; echo "${COMPREPLY[*]}"; }
        words dripd sta; words dripd push --rej; words dripd run --log-format js; words dripd completions fi
    "#;
    let (code, out, err) = bash(complete);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "status\n--rejected\njson\nfish\n", ""));
}

#[test]
fn zsh_and_fish_have_completions_too() {
    for (shell, line) in [("zsh", "#compdef dripd"), ("fish", "complete -c dripd")] {
        let (code, out, _) = run(&["completions", shell]);
        assert!(
            code == 0 && out.contains(line) && out.contains("rejected") && out.contains("log-format"),
            "{shell}: {out}"
        );
        if Command::new(shell).arg("-c").arg("true").output().is_ok() {
            let home = tempfile::tempdir().expect("a directory");
            std::fs::write(home.path().join("it"), out).expect("written");
            let checked = Command::new(shell).arg("-n").arg(home.path().join("it")).output().expect("it runs");
            assert_eq!(said(&checked), (0, String::new(), String::new()), "{shell} reads it");
        }
    }
    assert_eq!(run(&["completions", "tcsh"]).0, 2);
}

#[test]
fn man_pages_are_written_for_every_command_and_without_a_warning_of_groff() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("new/man");
    let (code, out, err) = run(&["man", dir.to_str().expect("a path")]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    let (_, help, _) = run(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> =
        commands.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    assert!(commands.len() >= 10, "{help}");
    for page in commands.iter().map(|name| format!("dripd-{name}.1")).chain(["dripd.1".to_owned()]) {
        let path = dir.join(&page);
        let text = std::fs::read_to_string(&path).expect(&page);
        assert!(text.contains(".SH \"EXIT STATUS\"") && text.contains(".SH EXAMPLES"), "{page}: {text}");
        if Command::new("groff").arg("--version").output().is_ok() {
            let groff = Command::new("groff").args(["-man", "-ww", "-Tutf8"]).arg(&path).output().expect("it runs");
            assert_eq!((groff.status.code(), String::from_utf8_lossy(&groff.stderr).as_ref()), (Some(0), ""), "{page}");
        }
    }
    for part in ["list", "retry", "drop"] {
        assert!(dir.join(format!("dripd-dead-{part}.1")).exists(), "a command of a command has one too: {part}");
    }
    assert!(!dir.join("dripd-man.1").exists() && !dir.join("dripd-help.1").exists(), "what is not shown has none");
    let (code, _, err) = run(&["man", "/dev/null/x"]);
    assert!(code == 1 && err.starts_with("dripd man: cannot write /dev/null/x: "), "{err}");
}
