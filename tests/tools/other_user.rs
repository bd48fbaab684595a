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

tests! {
    a_daemon_of_another_user_is_named_with_what_reaches_it,
}
