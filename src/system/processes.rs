//! Processes: the daemons in this machine's process table, including those that this user may not ask; and a unique
//! name for this process.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The name of this machine.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A name that no other process has. Containers may share both the host's name and the process id, so a random part
/// follows.
pub fn unique_name() -> String {
    format!("{}-{}-{:08x}", host(), std::process::id(), fastrand::u32(..))
}

/// A running daemon (`dripd run`) of any user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// The process id.
    pub pid: u32,
    /// The user who runs it.
    pub user: User,
    /// The systemd system service to which the process belongs, if any.
    pub unit: Option<String>,
}

/// A user, with a name where `/etc/passwd` has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    uid: u32,
    name: Option<String>,
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "user {}", self.uid),
        }
    }
}

/// Every daemon that the process table shows, in the order of process ids.
pub fn daemons() -> Vec<Running> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut daemons: Vec<Running> = pids.filter_map(daemon).collect();
    daemons.sort_by_key(|daemon| daemon.pid);
    daemons
}

/// Whether this user runs the daemon.
pub fn is_mine(daemon: &Running) -> bool {
    daemon.user.uid == rustix::process::getuid().as_raw()
}

/// Whether this user can see the processes of other users: a machine may hide them.
pub fn are_all_seen() -> bool {
    Path::new("/proc/1/comm").exists()
}

/// Read a process from the process table. `None` if it is no daemon, or has ended meanwhile.
fn daemon(pid: u32) -> Option<Running> {
    let dir = Path::new("/proc").join(pid.to_string());
    let comm = fs::read_to_string(dir.join("comm")).ok()?;
    if comm.trim_end() != "dripd" || !runs_a_daemon(&fs::read(dir.join("cmdline")).ok()?) {
        return None;
    }
    let uid = fs::metadata(&dir).ok()?.uid();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let groups = fs::read_to_string(dir.join("cgroup")).unwrap_or_default();
    Some(Running { pid, user: User { uid, name: name_of(uid, &users) }, unit: unit_of(&groups) })
}

/// Whether a command line, words that end in a zero byte, is `dripd [--config FILE] run ...`.
fn runs_a_daemon(cmdline: &[u8]) -> bool {
    let mut words = cmdline.split(|byte| *byte == 0).skip(1);
    while let Some(word) = words.next() {
        match word {
            b"--config" => drop(words.next()),
            word if word.starts_with(b"-") => {}
            word => return word == b"run",
        }
    }
    false
}

/// The name of a user in the text of `/etc/passwd`.
fn name_of(uid: u32, users: &str) -> Option<String> {
    let uid = uid.to_string();
    let line = users.lines().find(|line| line.split(':').nth(2) == Some(&uid))?;
    line.split(':').next().map(str::to_owned)
}

/// The service of the system (not of a user's session) in the text of `/proc/<pid>/cgroup`.
fn unit_of(groups: &str) -> Option<String> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let unit = path.strip_prefix("system.slice/")?.split('/').next()?;
    unit.ends_with(".service").then(|| unit.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_known_by_its_command_line() {
        for yes in
            ["dripd\0run\0", "./dripd\0--config\0run.toml\0run\0", "dripd\0--config=x\0run\0--log-format\0json\0"]
        {
            assert!(runs_a_daemon(yes.as_bytes()), "{yes:?}");
        }
        for no in ["", "dripd\0", "dripd\0--config\0run\0", "dripd\0push\0run\0x\0"] {
            assert!(!runs_a_daemon(no.as_bytes()), "{no:?}");
        }
    }

    #[test]
    fn a_user_and_a_service_have_names() {
        let users = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!((name_of(1_000, users).as_deref(), name_of(100, users)), (Some("ann"), None));
        assert_eq!(unit_of("0::/system.slice/dripd.service\n").as_deref(), Some("dripd.service"));
        assert_eq!(unit_of("1:name=systemd:/x\n0::/system.slice/a.service/sub\n").as_deref(), Some("a.service"));
        for none in
            ["", "0::/\n", "0::/user.slice/user-1000.slice/session-1.scope\n", "0::/user.slice/user@1000.service/x\n"]
        {
            assert_eq!(unit_of(none), None, "{none}");
        }
    }
}
