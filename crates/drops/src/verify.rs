//! Verifies the order of a line against the published seed.

use account::UserId;

use crate::model::{Lane, LineOrder, Phase, Place, Seed};

/// The public data of a join, from which its place is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinRecord {
    pub user: UserId,
    pub number: i64,
    pub place: Place,
}

/// A join that the seed and the join numbers do not explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// The stored place differs from the computed one.
    WrongValue { user: UserId, stored: Place, computed: Place },
    /// The drop has no such lane.
    NoSuchLane { user: UserId, lane: Lane },
    /// Two joins have this number.
    NumberTwice { number: i64 },
    /// The player was shuffled although an earlier join was not: all joins from the opening on are numbered.
    ShuffledAfterOpening { user: UserId, number: i64 },
}

/// Recomputes every place. Returns all deviations; none if the line agrees with the published seed.
///
/// `lanes` is the number of priority lanes in the drop's terms. Players without any of their entitlements are in the lane behind them.
/// Which entitlements a player had at the join is not published, so a wrong lane among the existing ones is not detected.
pub fn verify_order(order: LineOrder, lanes: usize, seed: &Seed, entries: &[JoinRecord]) -> Vec<Deviation> {
    let mut deviations = Vec::new();
    let mut by_number: Vec<&JoinRecord> = entries.iter().collect();
    by_number.sort_unstable_by_key(|entry| entry.number);
    for pair in by_number.windows(2) {
        if let [one, other] = pair
            && one.number == other.number
        {
            deviations.push(Deviation::NumberTwice { number: one.number });
        }
    }
    let mut is_open = false;
    for entry in by_number {
        let lane = entry.place.lane();
        if usize::from(lane.number()) > lanes {
            deviations.push(Deviation::NoSuchLane { user: entry.user, lane });
        }
        let phase = match order {
            LineOrder::FirstCome => Phase::Numbered,
            LineOrder::Shuffle => entry.place.phase(),
        };
        let value = match phase {
            Phase::Shuffled => seed.value_of(entry.user),
            Phase::Numbered => entry.number.unsigned_abs(),
        };
        is_open |= phase == Phase::Numbered;
        if is_open && phase == Phase::Shuffled {
            deviations.push(Deviation::ShuffledAfterOpening { user: entry.user, number: entry.number });
        }
        let computed = Place::new(entry.place.lane(), phase, value);
        if computed != entry.place {
            deviations.push(Deviation::WrongValue { user: entry.user, stored: entry.place, computed });
        }
    }
    deviations
}

#[cfg(test)]
mod tests {
    use base::id::Uuid;

    use super::*;

    /// One priority lane: players are in lane 0 or behind it.
    const LANES: usize = 1;
    const SEED: Seed = Seed::from_bytes([3; 32]);

    /// A shuffle of ten players, then five who joined after the opening.
    fn line() -> Vec<JoinRecord> {
        let entry = |number: i64| {
            let user = UserId::from_uuid(Uuid::from_u128(number.unsigned_abs().into()));
            let lane = Lane::new(usize::from(number % 3 == 0)).unwrap();
            let place = if number <= 10 {
                Place::new(lane, Phase::Shuffled, SEED.value_of(user))
            } else {
                Place::new(lane, Phase::Numbered, number.unsigned_abs())
            };
            JoinRecord { user, number, place }
        };
        (1..=15).map(entry).collect()
    }

    #[test]
    fn honest_line_has_no_deviation() {
        assert_eq!(verify_order(LineOrder::Shuffle, LANES, &SEED, &line()), []);
        let numbered: Vec<_> = line().into_iter().skip(10).collect();
        assert_eq!(verify_order(LineOrder::FirstCome, LANES, &SEED, &numbered), []);
    }

    #[test]
    fn favoured_player_is_detected() {
        let mut entries = line();
        let favoured = entries[4];
        entries[4].place = Place::new(favoured.place.lane(), Phase::Shuffled, 0);
        let found = verify_order(LineOrder::Shuffle, LANES, &SEED, &entries);
        let stored = entries[4].place;
        assert_eq!(found, [Deviation::WrongValue { user: favoured.user, stored, computed: favoured.place }]);
    }

    #[test]
    fn another_seed_explains_no_shuffled_place() {
        let found = verify_order(LineOrder::Shuffle, LANES, &Seed::from_bytes([4; 32]), &line());
        assert_eq!(found.len(), 10);
    }

    #[test]
    fn late_player_cannot_be_shuffled() {
        let mut entries = line();
        let late = entries[13];
        entries[13].place = Place::new(late.place.lane(), Phase::Shuffled, SEED.value_of(late.user));
        let found = verify_order(LineOrder::Shuffle, LANES, &SEED, &entries);
        assert_eq!(found, [Deviation::ShuffledAfterOpening { user: late.user, number: late.number }]);
    }

    #[test]
    fn unknown_lane_is_detected() {
        let mut entries = line();
        let odd = entries[0];
        let lane = Lane::new(2).unwrap();
        entries[0].place = Place::new(lane, Phase::Shuffled, odd.place.value());
        let found = verify_order(LineOrder::Shuffle, LANES, &SEED, &entries);
        assert_eq!(found, [Deviation::NoSuchLane { user: odd.user, lane }]);
    }

    #[test]
    fn duplicate_number_is_detected() {
        let mut entries = line();
        entries[12].number = 12;
        let found = verify_order(LineOrder::Shuffle, LANES, &SEED, &entries);
        assert_eq!(found[0], Deviation::NumberTwice { number: 12 });
    }
}
