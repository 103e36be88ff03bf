//! Places in the line: the sort keys that decide who is admitted first.

use account::UserId;
use aws_lc_rs::{digest, hmac};

const VALUE_BITS: u32 = 48;
const MAX_VALUE: u64 = (1 << VALUE_BITS) - 1;
const PHASE_BIT: u64 = 1 << VALUE_BITS;
const LANE_SHIFT: u32 = VALUE_BITS + 1;

/// A priority lane, 0 to 15. Lane 0 is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane(u8);

impl Lane {
    pub const MAX: u8 = 15;
    pub(crate) const LAST: Self = Self(Self::MAX);

    /// Returns none for a number above [`MAX`](Self::MAX), which does not fit into a place.
    pub fn new(number: usize) -> Option<Self> {
        u8::try_from(number).ok().filter(|number| *number <= Self::MAX).map(Self)
    }

    pub const fn number(self) -> u8 {
        self.0
    }
}

/// How the value of a place is determined. Within a lane, shuffled places come before numbered ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The player joined a shuffled drop before it opened: the value is derived from the seed.
    Shuffled,
    /// The value is the number of the join.
    Numbered,
}

/// A place in the line, fixed at the join. Lower is first.
///
/// Lane (4 bits), phase (1 bit), value (48 bits): 53 bits, which the score of a Redis sorted set holds exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

impl Place {
    /// Builds a place. Clamps a value beyond 48 bits to the highest one.
    pub fn new(lane: Lane, phase: Phase, value: u64) -> Self {
        let phase = match phase {
            Phase::Shuffled => 0,
            Phase::Numbered => PHASE_BIT,
        };
        Self(u64::from(lane.0) << LANE_SHIFT | phase | value.min(MAX_VALUE))
    }

    /// Reads a stored place. Returns none for a negative number or one beyond 53 bits.
    pub fn from_stored(number: i64) -> Option<Self> {
        u64::try_from(number).ok().filter(|number| number >> (LANE_SHIFT + 4) == 0).map(Self)
    }

    /// Returns the number that is stored in SQL. It is also the score in Redis.
    pub const fn stored(self) -> i64 {
        self.0.cast_signed()
    }

    pub const fn lane(self) -> Lane {
        Lane((self.0 >> LANE_SHIFT) as u8)
    }

    pub const fn phase(self) -> Phase {
        if self.0 & PHASE_BIT == 0 { Phase::Shuffled } else { Phase::Numbered }
    }

    pub const fn value(self) -> u64 {
        self.0 & MAX_VALUE
    }
}

/// A player in a line. Lines are sorted by place, then by user id, in SQL as in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineMember {
    pub place: Place,
    pub user: UserId,
}

/// The secret seed of a shuffle. It is published when the drop opens.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed([u8; 32]);

impl Seed {
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the SHA-256 of the seed in hex.
    pub fn hash(&self) -> String {
        hexadecimal(digest::digest(&digest::SHA256, &self.0).as_ref())
    }

    /// Returns the seed in hex.
    pub fn to_hexadecimal(&self) -> String {
        hexadecimal(&self.0)
    }

    /// Returns the value of a user's place in the shuffle: the first 48 bits of HMAC-SHA256(seed, user id).
    pub fn value_of(&self, user: UserId) -> u64 {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let tag = hmac::sign(&key, user.as_uuid().as_bytes());
        tag.as_ref().iter().take(6).fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
}

/// Hides the bytes: a seed is secret until the drop opens.
impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(…)")
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use base::id::Uuid;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shuffle_value_is_the_documented_hmac() {
        // printf '%s' 000102…0f | xxd -r -p | openssl dgst -sha256 -mac HMAC -macopt hexkey:0707…07
        let user = UserId::from_uuid(Uuid::from_u128(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f));
        let seed = Seed::from_bytes([7; 32]);
        assert_eq!(format!("{:012x}", seed.value_of(user)), "1b3b127eafc0");
        assert_eq!(seed.hash(), "4bb06f8e4e3a7715d201d573d0aa423762e55dabd61a2c02278fa56cc6d294e0");
        assert!(!format!("{seed:?}").contains('7'), "the seed is not shown");
    }

    #[test]
    fn place_has_53_bits() {
        assert_eq!(Place::from_stored(-1), None);
        assert_eq!(Place::from_stored(1 << 53), None);
        let last = Place::new(Lane(Lane::MAX), Phase::Numbered, u64::MAX);
        assert_eq!((last.stored(), last.value()), ((1 << 53) - 1, MAX_VALUE));
        assert_eq!(Place::from_stored(last.stored()), Some(last));
    }

    proptest! {
        #[test]
        fn places_are_ordered_by_lane_then_phase_then_value(
            one in (0_u8..=15, any::<bool>(), 0..=MAX_VALUE),
            other in (0_u8..=15, any::<bool>(), 0..=MAX_VALUE),
        ) {
            let place = |(lane, is_numbered, value): (u8, bool, u64)| {
                let phase = if is_numbered { Phase::Numbered } else { Phase::Shuffled };
                Place::new(Lane(lane), phase, value)
            };
            let (a, b) = (place(one), place(other));
            prop_assert_eq!(a.cmp(&b), one.cmp(&other));
            // Redis compares doubles.
            prop_assert_eq!((a.stored() as f64).total_cmp(&(b.stored() as f64)), one.cmp(&other));
            prop_assert_eq!((a.lane().number(), a.phase() == Phase::Numbered, a.value()), one);
        }
    }
}
