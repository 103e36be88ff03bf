//! Reproducing the order of a line.

use account::UserId;

use crate::model::{Lane, Order, Phase, Place, Seed};

/// What is known of a join, for verifying its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedEntry {
    pub user: UserId,
    pub number: i64,
    pub place: Place,
}

/// A place that the seed and the number of the join do not explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// The place has another value than the one computed.
    WrongValue { user: UserId, stored: Place, computed: Place },
    /// The drop has fewer lanes than this.
    NoSuchLane { user: UserId, lane: Lane },
    /// Two joins have this number.
    NumberTwice { number: i64 },
    /// Joined after somebody who missed the shuffle, and was shuffled: the opening is at one point of the numbers.
    ShuffledAfterOpening { user: UserId, number: i64 },
}

/// Computes every place again. Returns all that deviate: none if the line is what the published seed says.
///
/// `lanes` is how many priority lanes the drop's terms name. Players without any of their entitlements are in the lane behind them. Which
/// entitlements a player had at the join is not published, so a wrong lane among those that exist cannot be found.
pub fn verify_order(order: Order, lanes: usize, seed: &Seed, entries: &[JoinedEntry]) -> Vec<Deviation> {
    let mut deviations = Vec::new();
    let mut by_number: Vec<&JoinedEntry> = entries.iter().collect();
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
            Order::FirstCome => Phase::Numbered,
            Order::Shuffle => entry.place.phase(),
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

    /// Players are in lane 0 or behind it.
    const LANES: usize = 1;
    const SEED: Seed = Seed::from_bytes([3; 32]);

    /// A shuffle of ten, then five who came late.
    fn line() -> Vec<JoinedEntry> {
        let entry = |number: i64| {
            let user = UserId::from_uuid(Uuid::from_u128(number.unsigned_abs().into()));
            let lane = Lane::new(usize::from(number % 3 == 0)).unwrap();
            let place = if number <= 10 {
                Place::new(lane, Phase::Shuffled, SEED.value_of(user))
            } else {
                Place::new(lane, Phase::Numbered, number.unsigned_abs())
            };
            JoinedEntry { user, number, place }
        };
        (1..=15).map(entry).collect()
    }

    #[test]
    fn an_honest_line_has_no_deviation() {
        assert_eq!(verify_order(Order::Shuffle, LANES, &SEED, &line()), []);
        let numbered: Vec<_> = line().into_iter().skip(10).collect();
        assert_eq!(verify_order(Order::FirstCome, LANES, &SEED, &numbered), []);
    }

    #[test]
    fn a_favoured_player_is_found() {
        let mut entries = line();
        let favoured = entries[4];
        entries[4].place = Place::new(favoured.place.lane(), Phase::Shuffled, 0);
        let found = verify_order(Order::Shuffle, LANES, &SEED, &entries);
        let stored = entries[4].place;
        assert_eq!(found, [Deviation::WrongValue { user: favoured.user, stored, computed: favoured.place }]);
    }

    #[test]
    fn another_seed_explains_nothing_of_the_shuffle() {
        let found = verify_order(Order::Shuffle, LANES, &Seed::from_bytes([4; 32]), &line());
        assert_eq!(found.len(), 10);
    }

    #[test]
    fn a_late_player_cannot_have_been_shuffled() {
        let mut entries = line();
        let late = entries[13];
        entries[13].place = Place::new(late.place.lane(), Phase::Shuffled, SEED.value_of(late.user));
        let found = verify_order(Order::Shuffle, LANES, &SEED, &entries);
        assert_eq!(found, [Deviation::ShuffledAfterOpening { user: late.user, number: late.number }]);
    }

    #[test]
    fn a_lane_that_the_drop_does_not_have_is_found() {
        let mut entries = line();
        let odd = entries[0];
        let lane = Lane::new(2).unwrap();
        entries[0].place = Place::new(lane, Phase::Shuffled, odd.place.value());
        let found = verify_order(Order::Shuffle, LANES, &SEED, &entries);
        assert_eq!(found, [Deviation::NoSuchLane { user: odd.user, lane }]);
    }

    #[test]
    fn a_number_is_given_once() {
        let mut entries = line();
        entries[12].number = 12;
        let found = verify_order(Order::Shuffle, LANES, &SEED, &entries);
        assert_eq!(found[0], Deviation::NumberTwice { number: 12 });
    }
}
