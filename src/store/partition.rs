//! Which keys: the partitions into which a system is cut, and the keys of each. What of a name decides where it lives is `words::cut`'s
//! business; here is what follows for keys. No other file knows how many partitions there are.

use super::keys::queues_under;
use crate::config::RedisSettings;
use crate::words::bucket::BucketName;
use crate::words::cut::Cut;
use crate::words::subject::Subject;

/// The number of the partition that says what holds in all of them.
pub const AUTHORITY: u8 = 0;

/// A system: the prefix of its keys, and how it is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    prefix: String,
    cut: Cut,
    /// Kept, because it is asked for with each report.
    queues: String,
}

/// One self-contained set of keys; their names are its methods, spelled in [`super::keys`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    prefix: String,
    number: u8,
    /// What stands behind the first word of every key: a colon and the number in braces, or nothing where there is one partition.
    tag: String,
    /// Kept, because it is asked for with each report and each call.
    queues: String,
}

/// What the key of a queue turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueKey {
    /// The queue of a bucket, in the partition of this number.
    Of(u8, BucketName),
    /// It names a bucket, and does not lie where that bucket lives: its jobs belong under the other key.
    Misplaced {
        /// As it is.
        key: String,
        /// As it should be.
        right: String,
    },
    /// It names no bucket: why.
    NoBucket(String),
}

impl Layout {
    /// What the configuration says.
    #[must_use]
    pub fn of(settings: &RedisSettings) -> Self {
        Self::new(&settings.prefix, settings.cut)
    }

    /// The keys under `prefix`, cut in such a way.
    #[must_use]
    pub fn new(prefix: &str, cut: Cut) -> Self {
        Self { prefix: prefix.to_owned(), cut, queues: queues_under(prefix) }
    }

    /// What every key begins with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What the key of every queue begins with, of whatever partition.
    pub(super) fn queues(&self) -> &str {
        &self.queues
    }

    /// How it is cut.
    #[must_use]
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// The keys of a partition.
    #[must_use]
    pub fn partition(&self, number: u8) -> Partition {
        let tag = if self.cut.is_whole() { String::new() } else { format!(":{{{number}}}") };
        let queues =
            format!("{}{}", self.queues(), tag.strip_prefix(':').map(|tag| format!("{tag}:")).unwrap_or_default());
        Partition { prefix: self.prefix.clone(), number, tag, queues }
    }

    /// The keys of the one that says what holds in all of them.
    #[must_use]
    pub fn authority(&self) -> Partition {
        self.partition(AUTHORITY)
    }

    /// All of them, by number.
    pub fn all(&self) -> impl Iterator<Item = Partition> {
        (0..self.cut.partitions).map(|number| self.partition(number))
    }

    /// The number of the partition in which a bucket lives.
    #[must_use]
    pub fn number_of(&self, bucket: &BucketName) -> u8 {
        self.cut.number_of(bucket.as_str())
    }

    /// The same of a name as it is stored.
    #[must_use]
    pub fn number_of_subject(&self, stored: &str) -> u8 {
        self.cut.number_of(Subject::of_stored(stored).pattern)
    }

    /// What a key is that begins as the keys of queues do.
    #[must_use]
    pub fn read_queue(&self, key: &[u8]) -> QueueKey {
        let name = key.strip_prefix(self.queues().as_bytes()).unwrap_or_default();
        let (number, name) = match tagged(name) {
            Some((number, name)) if !self.cut.is_whole() => (Some(number), name),
            _ => (self.cut.is_whole().then_some(0), name),
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
    #[must_use]
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
    /// What every key begins with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Whether it says what holds in all of them.
    #[must_use]
    pub fn is_authority(&self) -> bool {
        self.number == AUTHORITY
    }

    /// Whether the system has no other.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.tag.is_empty()
    }

    /// What stands behind the first word of every key.
    pub(super) fn tag(&self) -> &str {
        &self.tag
    }

    /// What the key of every queue begins with.
    #[must_use]
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
        let whole = Layout::new("drip", Cut::default());
        assert_eq!(whole.partition(0).queue(&bucket("a:b")), "drip:queue:a:b");
        assert_eq!(whole.partition(0).schedule(), "drip:schedule");
        let cut = Layout::new("drip", Cut { partitions: 8, by: 0 });
        assert_eq!(cut.partition(3).queue(&bucket("a:b")), "drip:queue:{3}:a:b");
        assert_eq!(cut.partition(3).schedule(), "drip:schedule:{3}");
        assert_eq!(cut.all().count(), 8);
    }

    #[test]
    fn a_queue_that_lies_elsewhere_than_its_bucket_lives_is_told_with_the_right_key() {
        let layout = Layout::new("drip", Cut { partitions: 8, by: 0 });
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
        let whole = Layout::new("drip", Cut::default());
        assert_eq!(whole.read_queue(b"drip:queue:acme"), QueueKey::Of(0, acme));
        assert!(matches!(whole.read_queue(b"drip:queue:{3}:acme"), QueueKey::NoBucket(_)), "a name holds no brace");
        assert_eq!((layout.number_in(b"drip:wake:{5}"), whole.number_in(b"drip:wake")), (5, 0));
    }
}
