//! What a test needs besides Redis. A test that lacks it ends here, and is reported as ignored, with the reason and what brings it.

use std::path::PathBuf;
use std::process::Command;

/// Why a test is ignored. It travels as a panic: what a test needs is often found out some calls below it.
pub struct Missing(pub String);

/// End this test, as ignored: `what` is not here, and `way` brings it. Quietly: no hook is told of a panic that goes on.
pub fn missing(what: &str, way: &str) -> ! {
    std::panic::resume_unwind(Box::new(Missing(format!("needs {what}: {way}"))))
}

/// The same for what a script says behind `SKIPPED: `.
pub fn skipped(said: &str, way: &str) -> ! {
    let why = said.lines().find_map(|line| line.strip_prefix("SKIPPED: ")).unwrap_or(said.trim());
    std::panic::resume_unwind(Box::new(Missing(format!("{why}: {way}"))))
}

/// The first of these programs that is on the PATH.
pub fn one_of(names: &[&str], way: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let found = names.iter().find_map(|name| dirs.iter().map(|dir| dir.join(name)).find(|program| program.is_file()));
    found.unwrap_or_else(|| missing(names[0], way))
}

/// Root, for what only root may do.
pub fn root() {
    if !rustix::process::geteuid().is_root() {
        missing("root", "run the tests as root");
    }
}

/// How to get what comes from a package registry, where that was tried in vain.
pub fn registry(way: &str) -> String {
    format!("{way}, with a package registry in reach")
}

pub fn runs(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}
