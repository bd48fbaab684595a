//! What another user of the machine is told.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::needs;
use crate::rig::Daemon;
use crate::shell::{Shell, said};

fn a_daemon_of_another_user_is_named_with_what_reaches_it() {
    needs::root();
    needs::one_of(&["setpriv"], "apt-get install util-linux");
    let shell = Shell::new("");
    let daemon = Daemon::start(shell.home());
    let program = shell.home().join("dripd"); // whose directory others may look into
    std::fs::copy(env!("CARGO_BIN_EXE_dripd"), &program).expect("copied");
    std::fs::set_permissions(shell.home(), std::fs::Permissions::from_mode(0o755)).expect("set");
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program).arg("reload").current_dir("/");
    let (code, _, err) = said(&other.env_remove("RUNTIME_DIRECTORY").output().expect("setpriv runs"));
    assert_eq!(code, 1, "{err}");
    // Other tests run daemons of their own, and not all are named.
    let pid = daemon.child.id();
    let named = format!("process {pid} is run by root: as that user or as root, kill -HUP {pid}");
    assert!(err.contains(&named) || err.contains(" more\n"), "{err}");
}

/// The user whose directory it is.
const STRANGER: u32 = 65_534;

fn a_configuration_of_a_stranger_is_used_only_by_name() {
    needs::root();
    needs::one_of(&["setpriv"], "apt-get install util-linux");
    let shell = Shell::new("");
    std::fs::set_permissions(shell.home(), std::fs::Permissions::from_mode(0o755)).expect("set");
    let file = shell.home().join("config.toml");
    let program = shell.home().join("dripd");
    std::fs::copy(env!("CARGO_BIN_EXE_dripd"), &program).expect("copied");
    let as_user = |user: u32, args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()]);
        command.arg(&program).args(args).current_dir(shell.home()).env_remove("RUNTIME_DIRECTORY");
        said(&command.output().expect("setpriv runs"))
    };
    // Root's own is good for everybody, and so is one's own.
    assert_eq!((shell.run(&["check"]).0, as_user(STRANGER, &["check"]).0), (0, 0));
    std::os::unix::fs::chown(&file, Some(STRANGER), Some(STRANGER)).expect("given away");
    let refused = |(code, out, err): (i32, String, String), what: &str| {
        let words =
            format!("{} is not used: {what} belongs to user {STRANGER}, and not to you or root", file.display());
        assert!(err.contains(&words) && err.lines().count() == 1, "{err}");
        assert_eq!((code, out.as_str()), (78, ""));
    };
    refused(shell.run(&["status"]), "it");
    refused(as_user(65_533, &["status"]), "it");
    assert_eq!(as_user(STRANGER, &["check"]).0, 0, "it is his own");
    let (code, out, _) = shell.run(&["check", "config.toml"]);
    assert_eq!((code, out.contains(&format!("belongs to user {STRANGER}, who can change it"))), (0, true), "{out}");
    // A link of his to a file of ours, and a pipe that would keep us waiting.
    std::os::unix::fs::chown(&file, Some(0), Some(0)).expect("taken back");
    std::fs::rename(&file, shell.home().join("ours.toml")).expect("moved");
    std::os::unix::fs::symlink("ours.toml", &file).expect("a link");
    assert_eq!(shell.run(&["check"]).0, 0, "our own link");
    std::os::unix::fs::lchown(&file, Some(STRANGER), None).expect("given away");
    refused(shell.run(&["status"]), "a link to it");
    std::fs::remove_file(&file).expect("removed");
    assert!(needs::runs(Command::new("mkfifo").arg(&file)));
    std::os::unix::fs::chown(&file, Some(STRANGER), None).expect("given away");
    refused(shell.run(&["status"]), "it");
}

tests! {
    a_configuration_of_a_stranger_is_used_only_by_name,
    a_daemon_of_another_user_is_named_with_what_reaches_it,
}
