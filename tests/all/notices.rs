//! The licences that come with the binary (`.ci/notices.sh`).

use std::process::Command;

use crate::shell::said;

fn notices() -> Command {
    let mut command = Command::new("sh");
    command.arg(".ci/notices.sh").current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

#[test]
fn each_crate_comes_with_its_own_licence() {
    let (code, out, err) = said(&notices().output().expect("a shell"));
    assert_eq!(code, 0, "{err}");
    for (name, author) in [("tokio", "Tokio Contributors"), ("hyper", "Sean McArthur")] {
        let of = out.split(&format!("\n{name} ")).nth(1).unwrap_or_else(|| panic!("{name} is not named"));
        assert!(of.split("\n----").next().is_some_and(|text| text.contains(author)), "{name}: {of:.200}");
    }
    assert!(!out.contains("The dripd"), "its own licence is no other's");
}

/// It once named the licence of dripd for every crate, where cargo would not say where they are.
#[test]
fn where_cargo_does_not_say_where_the_crates_are_there_are_no_notices() {
    let home = tempfile::tempdir().expect("a folder");
    let cargo = home.path().join("cargo");
    let real = env!("CARGO");
    std::fs::write(&cargo, format!("#!/bin/sh\n[ $1 != metadata ] && exec {real} \"$@\"\nexit 101\n"))
        .expect("written");
    std::fs::set_permissions(&cargo, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
    let path = format!("{}:{}", home.path().display(), std::env::var("PATH").expect("a path"));
    let (code, out, _) = said(&notices().env("PATH", path).output().expect("a shell"));
    assert_ne!(code, 0);
    assert_eq!(out, "");
}
