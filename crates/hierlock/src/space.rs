//! The space of buckets: how an id becomes a number.

use std::fmt;

use crate::{Level, Target};

/// The name under which our hash is recorded. It changes when [`bucket`] does.
pub(crate) const HASH: &str = "fnv1a32-lengths";

/// How ids become buckets. All who lock the same things must have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// The buckets of each level, from 0 on.
    pub buckets: u32,
    pub hash: String,
}

impl Space {
    pub fn new(buckets: u32) -> Self {
        Self { buckets, hash: HASH.to_owned() }
    }

    /// The rows of all levels.
    pub fn rows(&self) -> u64 {
        u64::from(self.buckets) * Level::ALL.len() as u64
    }

    /// What the rows take up in InnoDB, about.
    pub fn bytes(&self) -> u64 {
        const PER_ROW: u64 = 28;
        self.rows() * PER_ROW
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} buckets by {}", self.buckets, self.hash)
    }
}

/// The bucket of a target among `buckets`; with 0 of them, all that 32 bits can tell apart.
///
/// FNV-1a over the level and each id behind its length: no two targets are written alike, whatever their ids hold.
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

    /// What is locked by one process must be what another one locks: these numbers never change while the name does not.
    #[test]
    fn the_buckets_are_what_they_were() {
        let user = Target::user("u1").unwrap();
        let account = Target::account("u1", "a1").unwrap();
        let resource = Target::resource("u1", "a1", "r1").unwrap();
        assert_eq!(HASH, "fnv1a32-lengths");
        let found = [user, account, resource].map(|target| bucket(&target, 10_000_000));
        assert_eq!(found, [2_604_795, 1_566_664, 2_347_038]);
        assert_eq!(bucket(&resource, 0) % 10_000_000, found[2]);
    }

    #[test]
    fn no_two_targets_are_written_alike() {
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
        // A thousand each; chance alone strays by about a hundred.
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
