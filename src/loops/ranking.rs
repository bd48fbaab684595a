//! Which daemon serves which partition, where there are several daemons. The ranking is a preference, of which nothing is stored: any daemon
//! may serve any partition at any time. Each daemon ranks those that are alive, for each partition, by a hash of both names (rendezvous
//! hashing: Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996). So all come to the same order without a word,
//! and when a daemon joins or leaves only its own partitions move.

use std::time::Instant;

use crate::store::heartbeat::Peer;

/// How many of the daemons that are alive come before one in a partition, and when the last of those said that it is alive.
pub(super) fn rank(partition: u8, id: &str, peers: &[Peer]) -> (usize, Option<Instant>) {
    let own = (weight(partition, id), id);
    let before = peers.iter().filter(|other| other.id != id && (weight(partition, &other.id), other.id.as_str()) > own);
    let (mut count, mut oldest) = (0, None);
    for other in before {
        count += 1;
        oldest = Some(oldest.map_or(other.at, |at: Instant| at.min(other.at)));
    }
    (count, oldest)
}

/// The hash of a partition and a daemon, the same in every version: FNV-1a of 64 bits (Fowler, Noll, Vo), and then the mixing of
/// `SplitMix64` (Steele, Lea, Flood), for names that differ in their last letters only.
fn weight(partition: u8, id: &str) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let named = id.bytes().chain([partition]).fold(0xcbf2_9ce4_8422_2325, hash);
    let mixed = (named ^ (named >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alive(ids: &[String]) -> Vec<Peer> {
        ids.iter().map(|id| Peer { id: id.clone(), at: Instant::now(), shows_presence: false }).collect()
    }

    fn ids(n: usize) -> Vec<String> {
        (0..n).map(|n| format!("host-{n}-0000000{n}")).collect()
    }

    fn first_of(partition: u8, ids: &[String]) -> Vec<&String> {
        ids.iter().filter(|id| rank(partition, id, &alive(ids)).0 == 0).collect()
    }

    #[test]
    fn every_partition_has_one_first_and_each_daemon_its_part() {
        let ids = ids(4);
        let mut firsts = vec![0; ids.len()];
        for partition in 0..64 {
            let first = first_of(partition, &ids);
            assert_eq!(first.len(), 1, "{partition}: {first:?}");
            firsts[ids.iter().position(|id| id == first[0]).expect("one of them")] += 1;
        }
        assert!(firsts.iter().all(|n| (8..=26).contains(n)), "{firsts:?}");
    }

    #[test]
    fn when_one_leaves_only_its_partitions_move() {
        let all = ids(5);
        for partition in 0..64 {
            let before = first_of(partition, &all)[0];
            for gone in all.iter().filter(|id| *id != before) {
                let rest: Vec<_> = all.iter().filter(|id| *id != gone).cloned().collect();
                assert_eq!(first_of(partition, &rest)[0], before);
            }
        }
    }
}
