//! Which keys: the partitions of a system, and the keys of each. What of a name decides where it lives is `model::partitioning`'s
//! business; here is what follows for keys. No other file knows how many partitions there are.

use crate::config::RedisSettings;
use crate::model::bucket::BucketName;
use crate::model::partitioning::Partitioning;
use crate::model::subject::Subject;

/// The number of the partition that says what holds in all of them.
pub const AUTHORITY: u8 = 0;

/// A system: the prefix of its keys, and its partitioning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    prefix: String,
    partitioning: Partitioning,
    /// Kept, because it is asked for with each report.
    queues: String,
}

/// One self-contained set of keys; their names are its methods, spelled in [`super`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    prefix: String,
    number: u8,
    /// The tag behind the first word of every key: a colon and the number in braces, or nothing where there is one partition.
    tag: String,
    /// Kept, because it is asked for with each report and each call.
    queues: String,
}

/// A key of a queue, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueKey {
    /// The queue of a bucket, in the partition of this number.
    Of(u8, BucketName),
    /// The key names a bucket that lives in another partition: its jobs belong under the other key.
    Misplaced {
        /// As it is.
        key: String,
        /// As it should be.
        right: String,
    },
    /// The key names no bucket: why.
    NoBucket(String),
}

impl Layout {
    /// The layout of the configuration.
    pub fn of(settings: &RedisSettings) -> Self {
        Self::new(&settings.prefix, settings.partitioning)
    }

    /// The keys under `prefix`, partitioned in such a way.
    pub fn new(prefix: &str, partitioning: Partitioning) -> Self {
        Self { prefix: prefix.to_owned(), partitioning, queues: format!("{prefix}:queue:") }
    }

    /// The prefix of every key.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The prefix of the keys of all queues, of whatever partition.
    pub(in crate::store) fn queues(&self) -> &str {
        &self.queues
    }

    /// Its partitioning.
    pub fn partitioning(&self) -> Partitioning {
        self.partitioning
    }

    /// The keys of a partition.
    pub fn partition(&self, number: u8) -> Partition {
        let tag = if self.partitioning.is_single() { String::new() } else { format!(":{{{number}}}") };
        let queues =
            format!("{}{}", self.queues(), tag.strip_prefix(':').map(|tag| format!("{tag}:")).unwrap_or_default());
        Partition { prefix: self.prefix.clone(), number, tag, queues }
    }

    /// The keys of the one that says what holds in all of them.
    pub fn authority(&self) -> Partition {
        self.partition(AUTHORITY)
    }

    /// All of them, by number.
    pub fn all(&self) -> impl Iterator<Item = Partition> {
        (0..self.partitioning.partitions).map(|number| self.partition(number))
    }

    /// The number of the partition in which a bucket lives.
    pub fn number_of(&self, bucket: &BucketName) -> u8 {
        self.partitioning.number_of(bucket.as_str())
    }

    /// The number of the partition in which a name as it is stored lives.
    pub fn number_of_subject(&self, stored: &str) -> u8 {
        self.partitioning.number_of(Subject::of_stored(stored).pattern)
    }

    /// Read a key that begins as the keys of queues do.
    pub fn read_queue(&self, key: &[u8]) -> QueueKey {
        let name = key.strip_prefix(self.queues().as_bytes()).unwrap_or_default();
        let (number, name) = match tagged(name) {
            Some((number, name)) if !self.partitioning.is_single() => (Some(number), name),
            _ => (self.partitioning.is_single().then_some(0), name),
        };
        let bucket = match BucketName::parse(name) {
            Ok(bucket) => bucket,
            Err(why) => return QueueKey::NoBucket(why.to_string()),
        };
        let right = self.number_of(&bucket);
        if number == Some(right) {
            return QueueKey::Of(right, bucket);
        }
        let key = String::from_utf8_lossy(key).into_owned();
        QueueKey::Misplaced { key, right: self.partition(right).queue(&bucket) }
    }

    /// The number of the partition whose key this is, by its first tag.
    pub fn number_in(&self, key: &[u8]) -> u8 {
        let tag = key.iter().position(|byte| *byte == b'{').and_then(|at| tagged(&key[at..]));
        tag.map_or(AUTHORITY, |(number, _)| number)
    }
}

/// A number in braces, and what stands behind it and a colon.
fn tagged(text: &[u8]) -> Option<(u8, &[u8])> {
    let inside = text.strip_prefix(b"{")?;
    let end = inside.iter().position(|byte| *byte == b'}')?;
    let number = std::str::from_utf8(&inside[..end]).ok()?.parse().ok()?;
    let rest = &inside[end + 1..];
    Some((number, rest.strip_prefix(b":").unwrap_or(rest)))
}

impl Partition {
    /// The prefix of every key.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Its number.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Whether it says what holds in all of them.
    pub fn is_authority(&self) -> bool {
        self.number == AUTHORITY
    }

    /// Whether the system has no other.
    pub fn is_single(&self) -> bool {
        self.tag.is_empty()
    }

    /// The tag behind the first word of every key.
    pub(in crate::store) fn tag(&self) -> &str {
        &self.tag
    }

    /// The prefix of the keys of all its queues.
    pub fn queues(&self) -> &str {
        &self.queues
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(name: &str) -> BucketName {
        BucketName::parse(name.as_bytes()).expect("a name")
    }

    #[test]
    fn with_one_partition_no_key_carries_a_tag_and_with_more_each_does_behind_its_first_word() {
        let whole = Layout::new("drip", Partitioning::default());
        assert_eq!(whole.partition(0).queue(&bucket("a:b")), "drip:queue:a:b");
        assert_eq!(whole.partition(0).schedule(), "drip:schedule");
        let partitioning = Layout::new("drip", Partitioning { partitions: 8, by: 0 });
        assert_eq!(partitioning.partition(3).queue(&bucket("a:b")), "drip:queue:{3}:a:b");
        assert_eq!(partitioning.partition(3).schedule(), "drip:schedule:{3}");
        assert_eq!(partitioning.all().count(), 8);
    }

    #[test]
    fn a_queue_that_lies_elsewhere_than_its_bucket_lives_is_told_with_the_right_key() {
        let layout = Layout::new("drip", Partitioning { partitions: 8, by: 0 });
        let (acme, number) = (bucket("acme"), layout.number_of(&bucket("acme")));
        let right = layout.partition(number).queue(&acme);
        assert_eq!(layout.read_queue(right.as_bytes()), QueueKey::Of(number, acme.clone()));
        for wrong in [
            "drip:queue:acme".to_owned(),
            layout.partition((number + 1) % 8).queue(&acme),
            "drip:queue:{99}:acme".to_owned(),
        ] {
            assert_eq!(layout.read_queue(wrong.as_bytes()), QueueKey::Misplaced { key: wrong, right: right.clone() });
        }
        assert!(matches!(layout.read_queue(b"drip:queue:{3}:"), QueueKey::NoBucket(_)));
        assert!(matches!(layout.read_queue(b"drip:queue:{x}:acme"), QueueKey::NoBucket(_)));
        let whole = Layout::new("drip", Partitioning::default());
        assert_eq!(whole.read_queue(b"drip:queue:acme"), QueueKey::Of(0, acme));
        assert!(matches!(whole.read_queue(b"drip:queue:{3}:acme"), QueueKey::NoBucket(_)), "a name holds no brace");
        assert_eq!((layout.number_in(b"drip:wake:{5}"), whole.number_in(b"drip:wake")), (5, 0));
    }
}
