//! Logging in: the user, the database, and the password, which may be in a file.

use std::fmt;
use std::path::PathBuf;

use redis::{ProtocolVersion, RedisConnectionInfo};

/// Who logs in, and into which database.
#[derive(Debug, Clone)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Password,
    pub(super) database: i64,
}

/// Where a password is. What a file holds is read at every connect, and kept nowhere.
#[derive(Clone)]
pub(super) enum Password {
    None,
    Written(String),
    File(PathBuf),
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Written(_) => f.write_str("***"),
            Self::File(path) => path.fmt(f),
        }
    }
}

impl Password {
    pub(super) fn in_file(path: Option<&PathBuf>) -> Self {
        path.cloned().map_or(Self::None, Self::File)
    }

    /// Read it now.
    pub(super) fn read(&self) -> Result<Option<String>, String> {
        match self {
            Self::None => Ok(None),
            Self::Written(password) => Ok(Some(password.clone())),
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(password) => Ok(Some(password.trim_end_matches(['\r', '\n']).to_owned())),
                Err(why) => Err(format!("the password file {} cannot be read: {why}", path.display())),
            },
        }
    }
}

impl Login {
    /// The login of the redis crate, with the password of this moment.
    pub(super) fn now(&self) -> Result<RedisConnectionInfo, String> {
        let mut login = RedisConnectionInfo::default()
            .set_db(self.database)
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("dripd", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &self.user {
            login = login.set_username(user.as_str());
        }
        if let Some(password) = self.password.read()? {
            login = login.set_password(password);
        }
        Ok(login)
    }
}
