//! Ids of stream entries: `<ms>-<seq>`.

use std::fmt;

/// The id of a stream entry: the time at which Redis added it, and a number that orders the entries of that
/// millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Milliseconds since the epoch, on the server's clock.
    pub ms: u64,
    /// The position among the entries of the same millisecond, from 0.
    pub seq: u64,
}

/// The error for a text that is not an entry id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no entry id: write <ms>-<seq>, as in 1750000000000-0")]
pub struct BadEntryId(String);

impl EntryId {
    /// The largest id before `ms`, a time in milliseconds since the epoch; `0-0` for 0.
    pub fn before(ms: u64) -> Self {
        ms.checked_sub(1).map_or(Self { ms: 0, seq: 0 }, |ms| Self { ms, seq: u64::MAX })
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl std::str::FromStr for EntryId {
    type Err = BadEntryId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse::<u64>().ok()).flatten()
        };
        let id = text.split_once('-').and_then(|(ms, seq)| Some(Self { ms: number(ms)?, seq: number(seq)? }));
        id.ok_or_else(|| BadEntryId(text.chars().take(64).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_id_is_two_whole_numbers() {
        let id: EntryId = "1750000000000-3".parse().expect("an id");
        assert_eq!((id.ms, id.seq, id.to_string()), (1_750_000_000_000, 3, "1750000000000-3".to_owned()));
        for bad in ["", "5", "-", "5-", "-5", "+5-1", "5-1-1", "5 -1", "18446744073709551616-0"] {
            assert!(bad.parse::<EntryId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_comes_before_a_time_ends_with_the_millisecond_before_it() {
        assert_eq!(EntryId::before(5), EntryId { ms: 4, seq: u64::MAX });
        assert_eq!(EntryId::before(0), EntryId { ms: 0, seq: 0 });
    }
}
