//! Unix sockets that nobody can reach before they have their mode.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Whether a file that is at the path already gives way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replace {
    /// It is replaced.
    Yes,
    /// It stays, and the error is [`io::ErrorKind::AddrInUse`].
    No,
}

/// Bind a socket with a mode. `bind` gives a socket the mode that the umask of the process leaves. So it is bound in a
/// directory that only its owner can enter, and comes to its path with its own mode.
///
/// # Errors
///
/// The path, or its directory, cannot be used.
pub fn bind(path: &Path, mode: u32, replace: Replace) -> io::Result<UnixListener> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let private = tempfile::Builder::new().prefix(".").rand_bytes(4).tempdir_in(parent)?; // its mode is 0700
    let bound = private.path().join("s");
    let listener = UnixListener::bind(&bound)?;
    fs::set_permissions(&bound, Permissions::from_mode(mode))?;
    let flags = if replace == Replace::Yes { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    match renameat_with(CWD, &bound, CWD, path, flags) {
        Ok(()) => Ok(listener),
        Err(rustix::io::Errno::EXIST) => Err(io::ErrorKind::AddrInUse.into()),
        Err(why) => Err(why.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_comes_to_its_path_with_its_mode_and_leaves_nothing_beside_it() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("x.sock");
        let listener = bind(&path, 0o600, Replace::No).expect("bound");
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(home.path()).expect("a directory").count(), 1);
        let mut client = UnixStream::connect(&path).expect("it listens");
        let (mut accepted, _) = listener.accept().expect("accepted");
        io::Write::write_all(&mut client, b"x").expect("sent");
        io::Read::read_exact(&mut accepted, &mut [0]).expect("it is the same socket");
        assert_eq!(bind(&path, 0o600, Replace::No).expect_err("taken").kind(), ErrorKind::AddrInUse);
        bind(&path, 0o660, Replace::Yes).expect("replaced");
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o660);
        assert_eq!(
            bind(&home.path().join("no/x"), 0o600, Replace::No).expect_err("nowhere").kind(),
            ErrorKind::NotFound
        );
    }
}
