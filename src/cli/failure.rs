//! Failures as the user sees them: what was tried, on what, why it failed, and the way out. The error of each call of a
//! command comes through here; `StoreError::in_words` says why it failed, for HTTP too. A log keeps the error
//! unchanged, with the name of the call.

use super::Exit;
use crate::daemon::DaemonError;
use crate::http::BadListener;
use crate::model::escape;
use crate::operate::change::ChangeError;
use crate::store::StoreError;
use crate::store::acl::Role;
use crate::system::built_in_redis::BuiltInRedisError;

/// An error as the user sees it: a message, and an exit code.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) exit: Exit,
    message: String,
    of_call: Option<OfCall>,
}

/// The kind of a failed call, which decides the wording for the user and for the log.
#[derive(Debug)]
enum OfCall {
    /// Redis refused the call: nothing was done.
    Refused { record: String },
    /// The connection was lost: the call may have been done all the same.
    Lost { record: String },
    /// The user of the connection may not make the call. The message needs the role that may, which only the caller
    /// knows.
    NotAllowed(StoreError),
}

impl Failure {
    pub(super) fn new(exit: Exit, message: impl Into<String>) -> Self {
        let message = escape::line(&message.into()).into_owned();
        Self { exit, message, of_call: None }
    }

    /// A failure whose message has a line for each problem.
    pub(super) fn of_lines(exit: Exit, message: String) -> Self {
        Self { exit, message, of_call: None }
    }

    /// This failure with `more` at the end of its message.
    pub(super) fn adding(self, more: &str) -> Self {
        Self { message: self.message + more, ..self }
    }

    /// The message for a user who tried an action in a role, as in `set rate=5/s for acme` as an operator.
    pub(super) fn said(&self, action: &str, role: Role) -> String {
        let (message, action) = (&self.message, escape::line(action));
        match &self.of_call {
            None => message.clone(),
            Some(OfCall::Refused { .. }) => format!("cannot {action}: {message}"),
            Some(OfCall::Lost { .. }) => format!("trying to {action}: {message}; it may have been done or not"),
            Some(OfCall::NotAllowed(why)) => format!("cannot {action}: {}{message}", why.in_words(role)),
        }
    }

    /// The text for the log of a role.
    pub(super) fn record(&self, role: Role) -> String {
        match &self.of_call {
            None => self.message.clone(),
            Some(OfCall::Refused { record } | OfCall::Lost { record }) => record.clone(),
            Some(OfCall::NotAllowed(why)) => why.on_record(role),
        }
    }
}

impl From<crate::config::BadConfig> for Failure {
    fn from(why: crate::config::BadConfig) -> Self {
        Self::of_lines(Exit::BadConfig, why.to_string())
    }
}

impl From<ChangeError> for Failure {
    fn from(why: ChangeError) -> Self {
        match why {
            ChangeError::Store(why) => why.into(),
            ChangeError::Spreads { .. } | ChangeError::IsCarried { .. } => Self::new(Exit::Failed, why.to_string()),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(why: StoreError) -> Self {
        let exit = if let StoreError::PartitioningMismatch { .. } = why {
            Exit::BadConfig
        } else if why.is_unusable() || why.code() == Some("WRONGTYPE") {
            Exit::Unavailable
        } else if why.passes() {
            Exit::Rejected
        } else {
            Exit::Failed
        };
        let (message, record) = (why.in_words(Role::Operator), why.to_string());
        let (message, of_call) = match &why {
            StoreError::Loading { .. }
            | StoreError::Unusable { .. }
            | StoreError::Away { .. }
            | StoreError::PartitioningMismatch { .. } => (message, None), // the message says what was tried, and where
            StoreError::Lost { .. } => (message, Some(OfCall::Lost { record })),
            _ if why.is_not_allowed() => (String::new(), Some(OfCall::NotAllowed(why))),
            _ => (message, Some(OfCall::Refused { record })),
        };
        Self { exit, message, of_call }
    }
}

impl From<BuiltInRedisError> for Failure {
    fn from(why: BuiltInRedisError) -> Self {
        match why {
            BuiltInRedisError::Address(why) => why.into(),
            why => Self::new(Exit::Unavailable, why.to_string()),
        }
    }
}

impl From<DaemonError> for Failure {
    fn from(why: DaemonError) -> Self {
        match why {
            DaemonError::Config(why) => why.into(),
            DaemonError::BuiltInRedis(why) => why.into(),
            DaemonError::Store(why @ StoreError::PartitioningMismatch { .. }) => why.into(),
            DaemonError::Store(why) => Self { exit: Exit::Unavailable, ..why.into() },
            // A restart does not help, as with a bad file.
            why @ DaemonError::Http(BadListener::OpenToAll(_)) => Self::new(Exit::BadConfig, why.to_string()),
            why @ (DaemonError::System { .. } | DaemonError::Http(_)) => Self::new(Exit::Failed, why.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(why: std::io::Error) -> Self {
        Self::new(Exit::Failed, why.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_call_names_what_was_tried_and_no_function_and_a_log_has_the_call() {
        let refused = |code: &str, message: &str| {
            let (code, message) = (code.to_owned(), message.to_owned());
            Failure::from(StoreError::Refused { call: "a call", code, message })
        };
        let set = "set rate=5/s for budget acme";
        let failure = refused("BADARG", "no [[budget]] matches acme");
        assert_eq!(
            failure.said(set, Role::Operator),
            "cannot set rate=5/s for budget acme: no [[budget]] matches acme"
        );
        assert_eq!(failure.record(Role::Operator), "a call was refused: BADARG no [[budget]] matches acme");
        let failure = failure.adding("; 3 were done by then");
        assert!(failure.said(set, Role::Operator).ends_with("matches acme; 3 were done by then"));
        let full =
            refused("OOM", "command not allowed when used memory > 'maxmemory'. script: a_call, on @user_function:9.");
        assert_eq!(full.exit, Exit::Rejected);
        assert_eq!(
            full.said("pause acme", Role::Operator),
            "cannot pause acme: redis is full; free memory or raise its maxmemory"
        );
        let wrong = refused("WRONGTYPE", "a key holds a string and must hold a stream: rename or delete it");
        assert_eq!(wrong.exit, Exit::Unavailable);
        assert!(!wrong.said("list dead letters", Role::Operator).contains("WRONGTYPE"));
        let (address, why) = ("redis://h".to_owned(), "timed out".to_owned());
        let lost = Failure::from(StoreError::Lost { address: address.clone(), call: "a call", why: why.clone() });
        assert_eq!(
            lost.said("pause acme", Role::Operator),
            "trying to pause acme: lost redis at redis://h before it answered: timed out; it may have been done or not"
        );
        assert_eq!(lost.record(Role::Operator), "lost redis at redis://h during a call: timed out");
        let unusable = Failure::from(StoreError::Unusable { address, why });
        assert_eq!(unusable.said("pause acme", Role::Operator), "cannot use redis at redis://h: timed out");
        assert_eq!(unusable.record(Role::Operator), "cannot use redis at redis://h: timed out");
    }
}
