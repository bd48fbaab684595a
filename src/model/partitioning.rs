//! Partitioning: how many partitions a system has, and in which of them a name lives.
//!
//! The partition of a name is the key slot of its tag, as Redis Cluster computes it, modulo the number of partitions.
//! `CLUSTER KEYSLOT` of any server shows the slot. The tag is the whole name, or its first parts.

use std::fmt;

use serde::Serialize;

/// The largest number of partitions of a system.
pub const MAX_PARTITIONS: u8 = 64;

/// The number of key slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// The number of partitions, and which part of a name chooses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Partitioning {
    /// The number of partitions, a power of two. Where it is 1, no key carries a tag.
    pub partitions: u8,
    /// How many of the first parts of a name, split at `:`, are its tag; 0: the whole name is.
    #[serde(rename = "partition_by")]
    pub by: u8,
}

impl Default for Partitioning {
    fn default() -> Self {
        Self { partitions: 1, by: 0 }
    }
}

impl Partitioning {
    /// Whether there is a single partition, whose keys carry no tag.
    pub fn is_single(&self) -> bool {
        self.partitions == 1
    }

    /// The tag of a name, which decides where the name lives. A name with too few parts is its own tag.
    pub fn tag<'a>(&self, name: &'a str) -> &'a str {
        let end = match self.by {
            0 => None,
            n => name.match_indices(':').nth(usize::from(n) - 1).map(|(at, _)| at),
        };
        end.map_or(name, |end| &name[..end])
    }

    /// The number of the partition in which a name lives.
    pub fn number_of(&self, name: &str) -> u8 {
        let number = slot(self.tag(name).as_bytes()) % u16::from(self.partitions);
        u8::try_from(number).expect("less than 64")
    }
}

impl fmt::Display for Partitioning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            0 => write!(f, "redis.partitions = {} without redis.partition_by", self.partitions),
            by => write!(f, "redis.partitions = {} and redis.partition_by = {by}", self.partitions),
        }
    }
}

/// The key slot of a tag: its CRC16 (XMODEM) modulo 16,384.
pub fn slot(tag: &[u8]) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(tag) % SLOTS
}

/// The key slot of a key: that of the text in its first braces, or of the whole key where they are missing or empty.
pub fn key_slot(key: &[u8]) -> u16 {
    let open = key.iter().position(|byte| *byte == b'{').map(|at| &key[at + 1..]);
    let tag = open.and_then(|rest| Some(&rest[..rest.iter().position(|byte| *byte == b'}')?]));
    slot(tag.filter(|tag| !tag.is_empty()).unwrap_or(key))
}

/// Partition numbers, in ascending order, as people write them: `0-3, 7`; `none` where there are none.
pub fn ranges(numbers: &[u8]) -> String {
    let mut ranges: Vec<(u8, u8)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let shown = ranges.iter().map(|(from, to)| if from == to { from.to_string() } else { format!("{from}-{to}") });
    if numbers.is_empty() { "none".to_owned() } else { shown.collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_slot_is_that_of_the_specification_of_redis_cluster() {
        assert_eq!(slot(b"123456789"), 0x31C3 % SLOTS);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(key_slot(b"{user}.a"), slot(b"user"));
        assert_eq!(key_slot(b"a{}{b}"), slot(b"a{}{b}"), "empty braces count for nothing");
        assert_eq!((key_slot(b"a{b"), key_slot(b"a{{b}}c")), (slot(b"a{b"), slot(b"{b")));
    }

    #[test]
    fn a_tag_is_the_whole_name_or_its_first_parts_or_all_of_it_where_it_has_fewer() {
        let by = |by| Partitioning { partitions: 8, by };
        assert_eq!(by(0).tag("twilio:acme:1"), "twilio:acme:1");
        assert_eq!(by(1).tag("twilio:acme:1"), "twilio");
        assert_eq!(by(2).tag("twilio:acme:1"), "twilio:acme");
        assert_eq!(by(3).tag("twilio:acme:1"), "twilio:acme:1");
        assert_eq!(by(2).tag("twilio"), "twilio");
        assert_eq!(by(1).tag(":x"), "");
        assert_eq!(by(1).number_of("twilio:a"), by(1).number_of("twilio:b"));
    }

    #[test]
    fn numbers_in_a_row_are_a_range() {
        assert_eq!(ranges(&[0, 1, 2, 3, 7, 9, 10]), "0-3, 7, 9-10");
        assert_eq!(ranges(&[]), "none");
    }
}
