//! Who else may read or write a file. A configuration names servers, files and logins, so one that a stranger wrote is an attack; and a
//! secret that others can read is none.

use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The bits of a mode: the group or all others may write; all others may read or write; the group may read.
const WRITTEN_BY_OTHERS: u32 = 0o022;
const OPEN_TO_ALL: u32 = 0o006;
const READ_BY_GROUP: u32 = 0o040;

/// So many links in a row Linux follows.
const LINKS_MOST: usize = 40;

/// Whether others than its owner may write a file. The group of a user's own, which many systems give to each user with the right to write
/// what he makes, is nobody else. Where a file has a list of users (an ACL), the bits of the group are what any of them may do.
fn is_written_by_others(path: &Path, meta: &Metadata) -> bool {
    let others = meta.mode() & WRITTEN_BY_OTHERS;
    let has_list = || rustix::fs::getxattr_query(path, "system.posix_acl_access").is_ok_and(|size| size > 0);
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let is_own_group = || is_own_group(meta.uid(), meta.gid(), &read("/etc/passwd"), &read("/etc/group"));
    others & 0o002 != 0 || others != 0 && (has_list() || !is_own_group())
}

/// Whether a group has the name of a user, is his first one, and has nobody else in it.
fn is_own_group(user: u32, group: u32, passwd: &str, groups: &str) -> bool {
    let lines = |text: &str| {
        text.lines().map(|line| line.split(':').map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let (user, group) = (user.to_string(), group.to_string());
    let is = |line: &Vec<String>, at: usize, id: &String| line.get(at) == Some(id);
    let in_it: Vec<_> = lines(passwd).into_iter().filter(|line| is(line, 3, &group)).collect();
    let [one] = &in_it[..] else { return false };
    let named: Vec<_> = lines(groups).into_iter().filter(|line| is(line, 2, &group)).collect();
    let [own] = &named[..] else { return false };
    let members = own.get(3).map(String::as_str).unwrap_or_default();
    user != "0" && is(one, 2, &user) && one[0] == own[0] && (members.is_empty() || members == one[0])
}

/// Who this process is, where it decides whose files are obeyed.
fn caller() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a file, or a link, belongs to somebody else than the caller and root.
fn is_strangers(meta: &Metadata) -> bool {
    meta.uid() != 0 && meta.uid() != caller()
}

/// The links that lead from a path to its file, one after the other, as far as the system follows them.
fn links_from(path: &Path) -> Vec<Metadata> {
    let (mut at, mut links) = (path.to_owned(), Vec::new());
    while let Ok(meta) = at.symlink_metadata()
        && meta.is_symlink()
        && links.len() < LINKS_MOST
        && let Ok(target) = std::fs::read_link(&at)
    {
        links.push(meta);
        at = at.parent().unwrap_or(Path::new("")).join(target);
    }
    links
}

/// Read a file that was found and not named.
///
/// # Errors
///
/// Why it is not used: somebody else than the caller and root may have written it, or have put a link there. A stranger who moves a file of
/// ours into his directory cannot change what it says, so the directory is not asked.
pub(super) fn read_found(path: &Path) -> Result<std::io::Result<String>, String> {
    let refusal = |meta: &Metadata, what: &str| {
        let owner = meta.uid();
        if is_strangers(meta) {
            return Err(format!("{what} belongs to user {owner}, and not to you or root; {NAME_IT}"));
        }
        if !meta.is_symlink() && is_written_by_others(path, meta) {
            let mode = meta.mode() & 0o777;
            return Err(format!("others may write it (mode {mode:o}); chmod go-w {}, or {NAME_IT}", path.display()));
        }
        Ok(())
    };
    for link in links_from(path) {
        refusal(&link, "a link to it")?;
    }
    // Before it is opened, which a pipe could delay for ever; and of what was opened, which is what counts.
    if let Ok(meta) = path.metadata() {
        refusal(&meta, "it")?;
    }
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(why) => return Ok(Err(why)),
    };
    if let Ok(meta) = file.metadata() {
        refusal(&meta, "it")?;
    }
    let mut text = String::new();
    Ok(file.read_to_string(&mut text).map(|_| text))
}

/// The way out of a refusal.
const NAME_IT: &str = "if you trust it, name it with --config or $DRIPD_CONFIG";

/// The warning that others may read or write a file with a secret, if that is so. A group may read what belongs to root: that is how a
/// service is let in. Only files are looked at: a pipe is between two programs.
pub fn exposed(path: &Path) -> Option<String> {
    warning(path, true)
}

/// The warning that others may write a file that is believed, such as a certificate of a CA.
fn writable(path: &Path) -> Option<String> {
    warning(path, false)
}

fn warning(path: &Path, is_secret: bool) -> Option<String> {
    let meta = path.metadata().ok().filter(Metadata::is_file)?;
    let (shown, mode, owner) = (path.display(), meta.mode() & 0o777, meta.uid());
    if let Some(link) = path.symlink_metadata().ok().filter(|link| link.is_symlink() && is_strangers(link)) {
        return Some(format!(
            "the link {shown} belongs to user {}, who can change it: chown -h it to root or to the user of dripd",
            link.uid()
        ));
    }
    if is_strangers(&meta) {
        return Some(format!(
            "{shown} belongs to user {owner}, who can change it: chown it to root or to the user of dripd"
        ));
    }
    if is_written_by_others(path, &meta) {
        return Some(format!("others may write {shown} (mode {mode:o}): chmod go-w"));
    }
    let is_shown = mode & OPEN_TO_ALL != 0 || mode & READ_BY_GROUP != 0 && owner != 0;
    (is_secret && is_shown)
        .then(|| format!("others may read {shown} (mode {mode:o}): chmod 600, or 640 if it is root's"))
}

/// The warnings about some files with secrets, and some that are believed. `kept` is a folder that systemd keeps for the service alone.
pub(super) fn warnings<'a>(
    secrets: impl Iterator<Item = &'a PathBuf>,
    believed: impl Iterator<Item = &'a PathBuf>,
    kept: Option<&Path>,
) -> Vec<String> {
    let is_ours = |path: &&PathBuf| kept.is_none_or(|kept| !path.starts_with(kept));
    let secrets = secrets.filter(is_ours).filter_map(|path| exposed(path));
    secrets.chain(believed.filter(is_ours).filter_map(|path| writable(path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_a_user_s_own_is_nobody_else() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\ncy:x:1002:100::/:/bin/sh\n";
        let groups = "root:x:0:\nann:x:1000:\nbob:x:1001:ann\nusers:x:100:\nnogroup:x:65534:\n";
        let is_own = |user, group| is_own_group(user, group, passwd, groups);
        assert!(is_own(1_000, 1_000));
        assert!(!is_own(1_001, 1_001), "ann is in it too");
        assert!(!is_own(1_002, 100), "it has another name");
        assert!(!is_own(1_000, 1_001) && !is_own(0, 0) && !is_own(65_534, 65_534) && !is_own(1_000, 7));
        assert!(
            !is_own_group(1_000, 1_000, &format!("{passwd}eve:x:1003:1000::/:/bin/sh\n"), groups),
            "eve has it too"
        );
        assert!(!is_own_group(1_000, 1_000, "", "") && !is_own_group(1_000, 1_000, "a:b", ":::"));
        assert!(is_own_group(1_000, 1_000, passwd, "ann:x:1000:ann\n"));
    }
}
