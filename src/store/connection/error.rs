//! Errors of Redis, as far as somebody acts on the difference.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::acl::Role;
use crate::model::partitioning::Partitioning;

/// The code of what the user of the connection may not do.
const NOT_ALLOWED: &str = "NOPERM";

/// The codes of calls that can be repeated: a slot is on the move, or the cluster takes no calls.
const RETRYABLE: [&str; 4] = ["TRYAGAIN", "ASK", "MOVED", "CLUSTERDOWN"];

/// Of these the ones that are answered while keys move.
const MIGRATING: [&str; 2] = ["TRYAGAIN", "ASK"];

/// The codes with which Redis refuses all writes, for as long as it lacks something.
const WRITES_REFUSED: [&str; 3] = ["NOREPLICAS", "MISCONF", "OOM"];

/// Why a server that became a replica cannot be used.
const READ_ONLY: &str = "it is a read-only replica: name the primary in redis.url, or its sentinels in redis.sentinel";

/// The beginning of the refusal of a call in a space without a record (`context.unknown`).
const NO_RECORD: &str = "no policies are stored for the prefix ";

/// Why a call or a connection failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Redis is there and still loads its data: wait.
    #[error("redis at {address} is loading its data")]
    Loading {
        /// Where it is.
        address: String,
    },
    /// Redis cannot be used as it is.
    #[error("cannot use redis at {address}: {why}")]
    Unusable {
        /// Where it is, or should be.
        address: String,
        /// The reason, and the way out.
        why: String,
    },
    /// There is no server now for one partition of several; the others go on.
    #[error(
        "partition {partition} is away, redis at {node} cannot be used: {why}; it is back when that server, or a replica in its place, is"
    )]
    Away {
        /// Its number.
        partition: u8,
        /// Where it is, or should be.
        node: String,
        /// The reason.
        why: String,
    },
    /// The connection broke or timed out: whether the call ran is not known.
    #[error("lost redis at {address} during {call}: {why}")]
    Lost {
        /// Where it is.
        address: String,
        /// The command or function.
        call: &'static str,
        /// The error of the connection.
        why: String,
    },
    /// Redis, or a function, answered with an error; nothing was changed.
    #[error("{call} was refused: {code} {message}")]
    Refused {
        /// The command or function.
        call: &'static str,
        /// The first word of the error.
        code: String,
        /// The rest of it.
        message: String,
    },
    /// The system that is stored has another partitioning.
    #[error(
        "what is stored at {address} was made with {stored}, and this configuration says {ours}: write the same; to change it, see `dripd partition --help`"
    )]
    PartitioningMismatch {
        /// Where it is.
        address: String,
        /// The partitioning of what is stored.
        stored: Partitioning,
        /// The partitioning of the configuration.
        ours: Partitioning,
    },
    /// An answer that fits nothing.
    #[error("{call} answered with something unexpected: {reply}")]
    Reply {
        /// The command or function.
        call: &'static str,
        /// The answer.
        reply: String,
    },
}

impl StoreError {
    /// Sort an error of a call by what can be done about it.
    pub(in crate::store) fn of_call(address: &str, call: &'static str, error: &RedisError) -> Self {
        if error.is_io_error()
            || error.is_timeout()
            || error.is_connection_dropped()
            || error.kind() == ErrorKind::Parse
        {
            // rustls explains at length how a server hung up, with the address of its manual.
            let why = error.to_string();
            let why = if why.contains("close_notify") { "the connection was closed".to_owned() } else { why };
            return Self::Lost { address: address.to_owned(), call, why };
        }
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::BusyLoading) => Self::Loading { address: address.to_owned() },
            // After a failover the old primary answers, but takes no writes: connect anew.
            ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => {
                Self::Unusable { address: address.to_owned(), why: READ_ONLY.to_owned() }
            }
            ErrorKind::UnexpectedReturnType => Self::Reply { call, reply: error.to_string() },
            _ => {
                // Of several commands in one round trip the first that was refused says why.
                let first = error.clone().into_server_errors().and_then(|errors| Some(errors.first()?.1.clone()));
                let (code, detail) = match &first {
                    Some(first) => (Some(first.code()), first.details()),
                    None => (error.code(), error.detail()),
                };
                let message = detail.map_or_else(|| error.to_string(), str::to_owned);
                let code = if is_forbidden_inside(&message) { NOT_ALLOWED } else { code.unwrap_or("ERR") };
                Self::Refused { call, code: code.to_owned(), message }
            }
        }
    }

    /// For a person: why, and the way out, without the names of calls and codes, which are for a log. What is not allowed needs a user of
    /// the role given.
    pub fn in_words(&self, role: Role) -> String {
        match self {
            Self::Refused { message, .. } if self.is_not_allowed() => format!(
                "redis does not allow that to the user that dripd logs in as ({}); {}",
                without_place(message),
                rights_of(role)
            ),
            Self::Refused { code, message, .. } => refused(code, without_place(message)),
            Self::Lost { address, why, .. } => format!("lost redis at {address} before it answered: {why}"),
            Self::Reply { reply, .. } => format!(
                "the answer means nothing to this version of dripd ({reply}); use the version of the daemons, which `dripd status` names"
            ),
            Self::Loading { .. } | Self::Unusable { .. } | Self::Away { .. } | Self::PartitioningMismatch { .. } => {
                self.to_string()
            }
        }
    }

    /// For a log: as it is, and of what is not allowed the way out.
    pub fn on_record(&self, role: Role) -> String {
        if self.is_not_allowed() { format!("{self}; {}", rights_of(role)) } else { self.to_string() }
    }

    /// Whether Redis itself cannot be used (exit code 69), as opposed to one call that failed.
    pub fn is_unusable(&self) -> bool {
        matches!(self, Self::Loading { .. } | Self::Unusable { .. } | Self::Away { .. })
    }

    /// Whether the call may be repeated later: the slot of its partition is on the move, or the cluster takes no calls.
    /// Nothing was done; the call is answered when that is over.
    pub fn is_retryable(&self) -> bool {
        self.code().is_some_and(|code| RETRYABLE.contains(&code))
    }

    /// Whether Redis refuses the writes of everybody now: nothing was done.
    pub fn refuses_writes(&self) -> bool {
        match self {
            Self::Unusable { why, .. } => why == READ_ONLY,
            _ => self.code().is_some_and(|code| WRITES_REFUSED.contains(&code)),
        }
    }

    /// Whether Redis lacks memory alone: then jobs go on, but none come in.
    pub fn is_full(&self) -> bool {
        self.code() == Some("OOM")
    }

    /// Whether no record is stored where the call came to.
    pub fn has_no_record(&self) -> bool {
        matches!(self, Self::Refused { code, message, .. } if code == "BADBUCKET" && message.starts_with(NO_RECORD))
    }

    /// Whether the same call may be answered later though its caller changes nothing: nothing was done.
    pub fn passes(&self) -> bool {
        self.is_retryable()
            || self.refuses_writes()
            || self.has_no_record()
            || self.code() == Some("BUSY")
            || matches!(self, Self::Loading { .. })
    }

    /// Whether the slot of its partition is on the move to another server.
    pub fn is_migrating(&self) -> bool {
        self.code().is_some_and(|code| MIGRATING.contains(&code))
    }

    /// The slot that a call was about which came to the wrong server.
    pub(in crate::store) fn slot(&self) -> Option<u16> {
        match self {
            Self::Refused { message, .. } => message.split_whitespace().next()?.parse().ok(),
            _ => None,
        }
    }

    /// Whether trying again is of no use: somebody has to change something first.
    pub fn is_final(&self) -> bool {
        self.is_not_allowed() || matches!(self, Self::PartitioningMismatch { .. })
    }

    /// Whether the user of the connection lacks a right.
    pub fn is_not_allowed(&self) -> bool {
        self.code() == Some(NOT_ALLOWED)
    }

    /// The first word of the error that a function answered with.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            _ => None,
        }
    }
}

/// Take off the name of the function, which Redis adds to an error inside it; Valkey 9.1 adds its place alone.
fn without_place(message: &str) -> &str {
    message.rfind(" script: ").filter(|at| message[*at..].contains("on @")).map_or(message, |at| &message[..at])
}

/// The way out for a user who lacks a right.
fn rights_of(role: Role) -> String {
    format!("`dripd acl {}` prints the rights that it takes", role.as_str())
}

/// Whether it is what Redis, and Valkey, say of a command within a function that the caller may not run: it comes without a code of its own.
fn is_forbidden_inside(message: &str) -> bool {
    message.starts_with("The user executing the script can't") || message.starts_with("ACL failure in script")
}

/// Whether an error that a function met and went on without is about a right that the user of the connection lacks.
pub(in crate::store) fn is_forbidden(error: &str) -> bool {
    let message = error.strip_prefix("ERR ").unwrap_or(error);
    message.starts_with(NOT_ALLOWED) || is_forbidden_inside(message)
}

/// Whether it is what Redis itself says of a key of another type.
pub(in crate::store) fn names_no_key(message: &str) -> bool {
    message.starts_with("Operation against a key")
}

/// A refusal in words. The functions say why, and the way out; what Redis says is for whoever knows Redis.
fn refused(code: &str, message: &str) -> String {
    match code {
        "OOM" => "redis is full; free memory or raise its maxmemory".to_owned(),
        "BUSY" => {
            "somebody's script keeps redis busy; try again, or end it with SCRIPT KILL or FUNCTION KILL".to_owned()
        }
        "MISCONF" => format!("redis takes no writes while it cannot save its data, see its log: {message}"),
        "NOREPLICAS" => format!("redis takes no writes without its replicas, try again when they are back: {message}"),
        "WRONGTYPE" if names_no_key(message) => {
            "a key of dripd's holds something else than it must: see the TYPE of those that belong to it, then rename or delete that one"
                .to_owned()
        }
        "ASK" | "MOVED" | "TRYAGAIN" => "its partition is on the move to another server; nothing was done, try again in a second".to_owned(),
        "CLUSTERDOWN" => format!("the cluster takes no calls now ({message}); nothing was done, try again when all its key slots are served"),
        "BADBUCKET" if message.starts_with(NO_RECORD) => {
            let prefix = message[NO_RECORD.len()..].split(", so").next().unwrap_or_default();
            format!(
                "{NO_RECORD}{prefix}: start a daemon with `dripd run`, or write the redis.prefix of the daemons; after a FLUSHALL they store them again at once: try again"
            )
        }
        "BADARG" | "BADBUCKET" | "TOOLARGE" | "TOOMANY" | "WRONGTYPE" => message.to_owned(),
        code => format!("redis answers {code} {message}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_server_that_hung_up_within_tls_is_said_without_the_manual_of_the_library() {
        let of_rustls = "peer closed connection without sending TLS close_notify: https://example.com/manual";
        let error = RedisError::from(io::Error::new(io::ErrorKind::UnexpectedEof, of_rustls));
        let said = StoreError::of_call("rediss://a", "XREADGROUP", &error).to_string();
        assert_eq!(said, "lost redis at rediss://a during XREADGROUP: the connection was closed");
    }
}
