//! Who runs this command, as it is told with what they change.

/// `user@host`, by the process's user; a user without a name is told by its number.
pub(super) fn by() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let user = whoami::username().unwrap_or_else(|_| format!("uid {}", rustix::process::getuid().as_raw()));
    format!("{user}@{host}")
}
