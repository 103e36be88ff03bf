//! The bucket space: how ids map to buckets.

use std::fmt;

use crate::{Level, Target};

/// The recorded name of the hash function. It must change whenever [`bucket`] does.
pub(crate) const HASH: &str = "fnv1a32-lengths";

/// The mapping from ids to buckets. All processes that lock the same targets must agree on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketSpace {
    /// The number of buckets per level.
    pub buckets: u32,
    /// The name of the hash function.
    pub hash: String,
}

impl BucketSpace {
    pub fn new(buckets: u32) -> Self {
        Self { buckets, hash: HASH.to_owned() }
    }

    /// Returns the number of rows of all levels.
    pub fn rows(&self) -> u64 {
        u64::from(self.buckets) * Level::ALL.len() as u64
    }

    /// Returns the approximate size of the rows in InnoDB.
    pub fn bytes(&self) -> u64 {
        const PER_ROW: u64 = 28;
        self.rows() * PER_ROW
    }
}

impl fmt::Display for BucketSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} buckets by {}", self.buckets, self.hash)
    }
}

/// Returns the bucket of a target among `buckets`. 0 stands for the whole 32-bit range.
///
/// The hash is FNV-1a over the level and, for each id, its length and bytes. The encoding is unambiguous, whatever characters the ids
/// contain.
pub(crate) fn bucket(target: &Target<'_>, buckets: u32) -> u32 {
    const PRIME: u32 = 16_777_619;
    let add = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(PRIME);
    let mut hash = add(2_166_136_261, target.level() as u8);
    for id in target.ids() {
        let length = u32::try_from(id.len()).unwrap_or(u32::MAX).to_le_bytes();
        hash = length.into_iter().chain(id.bytes()).fold(hash, add);
    }
    hash.checked_rem(buckets).unwrap_or(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes of different versions must lock the same rows: these numbers never change unless the name of the hash does.
    #[test]
    fn buckets_are_stable() {
        let user = Target::user("u1").unwrap();
        let account = Target::account("u1", "a1").unwrap();
        let resource = Target::resource("u1", "a1", "r1").unwrap();
        assert_eq!(HASH, "fnv1a32-lengths");
        let found = [user, account, resource].map(|target| bucket(&target, 10_000_000));
        assert_eq!(found, [2_604_795, 1_566_664, 2_347_038]);
        assert_eq!(bucket(&resource, 0) % 10_000_000, found[2]);
    }

    #[test]
    fn encoding_of_targets_is_unambiguous() {
        let all = [
            Target::user("u1/a1"),
            Target::account("u1", "a1"),
            Target::account("u1/", "a1"),
            Target::account("u1", "/a1"),
            Target::account("u1a", "1"),
            Target::resource("u1", "a", "1"),
            Target::resource("u", "1a", "1"),
        ];
        let mut hashes: Vec<u32> = all.iter().map(|target| bucket(&target.unwrap(), 0)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), all.len());
    }

    #[test]
    fn buckets_are_filled_evenly() {
        let mut counts = [0_u32; 100];
        for number in 0..100_000 {
            let id = format!("player-{number}");
            counts[bucket(&Target::user(&id).unwrap(), 100) as usize] += 1;
        }
        // A thousand each on average; random variation is about a hundred.
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
