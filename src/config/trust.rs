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

/// Who this process is, where it decides whose files are obeyed.
fn caller() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a file, or a link, belongs to somebody else than the caller and root.
fn is_strangers(meta: &Metadata) -> bool {
    meta.uid() != 0 && meta.uid() != caller()
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
        if !meta.is_symlink() && meta.mode() & WRITTEN_BY_OTHERS != 0 {
            let mode = meta.mode() & 0o777;
            return Err(format!("others may write it (mode {mode:o}); chmod go-w {}, or {NAME_IT}", path.display()));
        }
        Ok(())
    };
    if let Ok(meta) = path.symlink_metadata()
        && meta.is_symlink()
    {
        refusal(&meta, "the link")?;
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
    let secret = if is_secret { ", and it is a secret" } else { "" };
    if is_strangers(&meta) {
        return Some(format!(
            "{shown} belongs to user {owner}, who can change it{secret}: chown it to root or to the user of dripd"
        ));
    }
    if mode & WRITTEN_BY_OTHERS != 0 {
        return Some(format!("others may write {shown} (mode {mode:o}){secret}: chmod 600 or 640"));
    }
    let is_shown = mode & OPEN_TO_ALL != 0 || mode & READ_BY_GROUP != 0 && owner != 0;
    (is_secret && is_shown).then(|| format!("others may read {shown} (mode {mode:o}){secret}: chmod 600"))
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
