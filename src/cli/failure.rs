//! Failures as the user sees them: what was tried, on what, why it failed, and the way out. Every command's error of a call comes through
//! here; why is said by `StoreError::in_words`, for HTTP too. A log keeps the error as it is, with the name of the call.

use super::Exit;
use crate::daemon::DaemonError;
use crate::http::BadListener;
use crate::operate::change::ChangeError;
use crate::store::StoreError;
use crate::system::built_in_redis::BuiltInRedisError;
use crate::words::shown::shown;

/// An error as the user sees it: a line, and an exit code.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) exit: Exit,
    message: String,
    of_call: Option<OfCall>,
}

/// What is known of a call that failed.
#[derive(Debug)]
struct OfCall {
    /// The error as a log has it.
    record: String,
    /// Whether it may have been done all the same.
    is_lost: bool,
}

impl Failure {
    pub(super) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), of_call: None }
    }

    /// The same with more behind it.
    pub(super) fn adding(self, more: &str) -> Self {
        Self { message: self.message + more, ..self }
    }

    /// For the user, who tried something: `set rate=5/s for acme`.
    pub(super) fn said(&self, tried: &str) -> String {
        let (message, tried) = (&self.message, shown(tried.as_bytes()));
        match &self.of_call {
            None => message.clone(),
            Some(OfCall { is_lost: false, .. }) => format!("cannot {tried}: {message}"),
            Some(_) => format!("trying to {tried}: {message}; it may have been done or not"),
        }
    }

    /// For a log.
    pub(super) fn record(&self) -> &str {
        self.of_call.as_ref().map_or(&self.message, |call| &call.record)
    }
}

impl From<crate::config::BadConfig> for Failure {
    fn from(why: crate::config::BadConfig) -> Self {
        Self::new(Exit::BadConfig, why.to_string())
    }
}

impl From<ChangeError> for Failure {
    fn from(why: ChangeError) -> Self {
        match why {
            ChangeError::Store(why) => why.into(),
            ChangeError::Spreads { .. } => Self::new(Exit::Failed, why.to_string()),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(why: StoreError) -> Self {
        let exit = if why.is_unusable() || why.code() == Some("WRONGTYPE") { Exit::Unavailable } else { Exit::Failed };
        // One that cannot be used says what was tried, on which server.
        let of_call = (!why.is_unusable())
            .then(|| OfCall { record: why.to_string(), is_lost: matches!(why, StoreError::Lost { .. }) });
        Self { exit, message: why.in_words(), of_call }
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
            DaemonError::Store(why) => Self { exit: Exit::Unavailable, ..why.into() },
            // Starting again mends it as little as a bad file.
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
        assert_eq!(failure.said(set), "cannot set rate=5/s for budget acme: no [[budget]] matches acme");
        assert_eq!(failure.record(), "a call was refused: BADARG no [[budget]] matches acme");
        let failure = failure.adding("; 3 were done by then");
        assert!(failure.said(set).ends_with("matches acme; 3 were done by then"));
        let full =
            refused("OOM", "command not allowed when used memory > 'maxmemory'. script: a_call, on @user_function:9.");
        assert_eq!(full.said("pause acme"), "cannot pause acme: redis is full; free memory or raise its maxmemory");
        let wrong = refused("WRONGTYPE", "a key holds a string and must hold a stream: rename or delete it");
        assert_eq!(wrong.exit, Exit::Unavailable);
        assert!(!wrong.said("list dead letters").contains("WRONGTYPE"));
        let (address, why) = ("redis://h".to_owned(), "timed out".to_owned());
        let lost = Failure::from(StoreError::Lost { address: address.clone(), call: "a call", why: why.clone() });
        assert_eq!(
            lost.said("pause acme"),
            "trying to pause acme: lost redis at redis://h before it answered: timed out; it may have been done or not"
        );
        assert_eq!(lost.record(), "lost redis at redis://h during a call: timed out");
        let unusable = Failure::from(StoreError::Unusable { address, why });
        assert_eq!(unusable.said("pause acme"), "cannot use redis at redis://h: timed out");
        assert_eq!(unusable.record(), "cannot use redis at redis://h: timed out");
    }
}
