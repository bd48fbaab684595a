//! Who changes something, as it is told with every change that people make.

use redis::Value;

use super::{Store, StoreError};

/// Who changes something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    /// As the caller says: user@host.
    pub by: String,
    /// As Redis says; empty where it does not say.
    pub user: String,
}

impl Store {
    /// Who changes something, where the caller says `by`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]. Who may not ask who they are has no name here: that is no reason to change nothing.
    pub async fn author(&mut self, by: &str) -> Result<Author, StoreError> {
        let user = match self.call("ACL WHOAMI", redis::cmd("ACL").arg("WHOAMI")).await {
            Ok(Value::BulkString(name)) => String::from_utf8_lossy(&name).into_owned(),
            Ok(Value::SimpleString(name)) => name,
            Ok(_) | Err(StoreError::Refused { .. }) => String::new(),
            Err(why) => return Err(why),
        };
        Ok(Author { by: by.to_owned(), user })
    }
}
