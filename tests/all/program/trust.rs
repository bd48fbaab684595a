//! Files that others may write or read: whether a configuration is obeyed that nobody named, and what is warned of.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use super::{Shell, said};
use crate::rig::Daemon;

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
}

#[test]
fn a_configuration_that_others_may_write_is_used_only_by_name() {
    let shell = Shell::new("[defaults]\nrate = '5/s'\n");
    let file = shell.home().join("config.toml");
    for mode in [0o664, 0o646, 0o666] {
        set_mode(&file, mode);
        for args in [&["status"][..], &["check"], &["push", "b", "x"], &["run"], &["healthcheck"], &["work", "--print"]]
        {
            let (code, out, err) = shell.run(args);
            assert_eq!((code, out.as_str()), (78, ""), "{args:?}: {err}");
            let why = format!("{} is not used: others may write it (mode {mode:o}); chmod go-w ", file.display());
            assert!(err.contains(&why) && err.contains("name it with --config or $DRIPD_CONFIG"), "{args:?}: {err}");
            assert_eq!(err.lines().count(), 1, "{err}");
        }
        let (code, out, err) = shell.run(&["--config", "config.toml", "check"]);
        assert_eq!(code, 0, "{err}");
        assert!(out.contains(&format!("warning   others may write {} (mode {mode:o})", file.display())), "{out}");
        assert_eq!(shell.run(&["check", "config.toml"]).0, 0);
        let mut named = shell.command(&["check"]);
        assert_eq!(said(&named.env("DRIPD_CONFIG", "config.toml").output().expect("it runs")).0, 0);
    }
    set_mode(&file, 0o644);
    assert_eq!(shell.run(&["check"]).0, 0);
    // What a link leads to is what counts.
    let other = shell.home().join("other.toml");
    std::fs::rename(&file, &other).expect("moved");
    symlink(&other, &file).expect("a link");
    assert_eq!(shell.run(&["check"]).0, 0);
    set_mode(&other, 0o666);
    let (code, _, err) = shell.run(&["check"]);
    assert_eq!((code, err.contains("others may write it (mode 666)")), (78, true), "{err}");
    set_mode(&other, 0o644);
    // A link of ours that leads to a link of a stranger's: only root can make one.
    let middle = shell.home().join("middle.toml");
    symlink(&other, &middle).expect("a link");
    std::fs::remove_file(&file).expect("gone");
    symlink("middle.toml", &file).expect("a link");
    assert_eq!(shell.run(&["check"]).0, 0);
    if std::os::unix::fs::lchown(&middle, Some(65_534), None).is_ok() {
        let (code, _, err) = shell.run(&["check"]);
        assert_eq!((code, err.contains("a link to it belongs to user 65534")), (78, true), "{err}");
    }
}

#[test]
fn a_secret_that_others_may_read_or_write_is_warned_of() {
    let shell = Shell::new("");
    let files = ["password", "token", "key", "sentinel", "ca", "cert"].map(|name| shell.file(name, "secret\n"));
    let [password, token, key, sentinel, ca, cert] = &files;
    let url = format!("url = 'rediss://h'\npassword_file = '{password}'");
    let sentinels = format!(
        "sentinel = {{ nodes = ['a:1'], master = 'm', password_file = '{sentinel}' }}\npassword_file = '{password}'"
    );
    let tls = format!("tls = {{ ca = '{ca}', cert = '{cert}', key = '{key}' }}");
    let tokens = format!("[[http.token]]\nname = 'a'\nfile = '{token}'\nmay = 'read'\n");
    let warnings = |place: &str| {
        let file = shell.file("given.toml", &format!("[redis]\n{place}\n{tokens}"));
        let config = dripd::config::Config::load(Some(Path::new(&file)), &dripd::config::Environment::default());
        config.unwrap_or_else(|why| panic!("{why}")).warnings()
    };
    let all = |mode| files.iter().for_each(|file| set_mode(file, mode));
    all(0o600);
    assert_eq!(warnings(&format!("{url}\n{tls}")), [""; 0]);
    all(0o644);
    let others = |verb: &str, file: &str, mode: &str| format!("others may {verb} {file} (mode {mode})");
    for (place, secret) in
        [(format!("{url}\n{tls}"), vec![password, key, token]), (sentinels, vec![password, sentinel, token])]
    {
        let said = warnings(&place);
        assert_eq!(said.len(), 3, "certificates may be read: {said:#?}");
        for (said, file) in said.iter().zip(secret) {
            assert_eq!(said, &format!("{}: chmod 600, or 640 if it is root's", others("read", file, "644")));
        }
    }
    all(0o620);
    let said = warnings(&format!("{url}\n{tls}"));
    for (said, file) in said.iter().zip([password, key, cert, ca, token]) {
        assert!(said.starts_with(&others("write", file, "620")), "{said}");
    }
    assert_eq!(said.len(), 5, "{said:#?}");
    set_mode(password, 0o604);
    let shell = Shell::new(&format!("[[http.token]]\nname = 'a'\nfile = '{token}'\nmay = 'read'\n"));
    let daemon = Daemon::start(shell.home());
    assert!(daemon.log().contains(&others("write", token, "620")), "{}", daemon.log());
    assert!(shell.run(&["check"]).1.contains(&format!("warning   {}", others("write", token, "620"))));
}
