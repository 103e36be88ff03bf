//! The rows to lock for a set of targets, with their modes, in locking order.

use crate::bucket_space::bucket;
use crate::{Level, Target};

/// A row of the lock table: a bucket of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    pub level: Level,
    pub bucket: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

/// The rows to lock, each once, in the order that all clients use: by level, then by bucket.
///
/// Any other order could deadlock. If rows were sorted by id, two sets could contain the same two buckets in opposite order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    rows: Vec<(Row, Mode)>,
    /// The level of the deepest target.
    level: Level,
}

impl Plan {
    /// Plans the locks for the targets. Returns none if there are no targets.
    pub(crate) fn new<'a>(targets: impl IntoIterator<Item = Target<'a>>, buckets: u32) -> Option<Self> {
        let mut rows = Vec::new();
        let mut deepest = None;
        for target in targets {
            deepest = deepest.max(Some(target.level()));
            rows.extend(target.path().map(|step| {
                let mode = if step.level() == target.level() { Mode::Exclusive } else { Mode::Shared };
                (Row { level: step.level(), bucket: bucket(&step, buckets) }, mode)
            }));
        }
        // The stronger mode comes first, so `dedup` keeps it. Taking both modes in turn would be a lock upgrade, which can deadlock.
        rows.sort_unstable_by(|(one, mode), (other, than)| one.cmp(other).then(than.cmp(mode)));
        rows.dedup_by_key(|(row, _)| *row);
        deepest.map(|level| Self { rows, level })
    }

    pub(crate) fn rows(&self) -> &[(Row, Mode)] {
        &self.rows
    }

    pub(crate) const fn level(&self) -> Level {
        self.level
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn plan(targets: &[Target<'_>], buckets: u32) -> Vec<(Level, u32, Mode)> {
        let plan = Plan::new(targets.iter().copied(), buckets).unwrap();
        plan.rows().iter().map(|(row, mode)| (row.level, row.bucket, *mode)).collect()
    }

    #[test]
    fn ancestors_are_shared_and_the_target_is_exclusive() {
        let modes =
            |target| plan(&[target], 0).iter().map(|(level, _, mode)| (*level, *mode)).collect::<Vec<_>>();
        assert_eq!(
            modes(Target::resource("u", "a", "r").unwrap()),
            [(Level::User, Mode::Shared), (Level::Account, Mode::Shared), (Level::Resource, Mode::Exclusive)]
        );
        assert_eq!(
            modes(Target::account("u", "a").unwrap()),
            [(Level::User, Mode::Shared), (Level::Account, Mode::Exclusive)]
        );
        assert_eq!(modes(Target::user("u").unwrap()), [(Level::User, Mode::Exclusive)]);
        assert_eq!(Plan::new([], 0), None);
    }

    #[test]
    fn each_row_is_locked_once_in_the_stronger_mode() {
        let (account, resource) =
            (Target::account("u", "a").unwrap(), Target::resource("u", "a", "r").unwrap());
        let either_way = [plan(&[account, resource], 0), plan(&[resource, account, resource], 0)];
        assert_eq!(either_way[0], either_way[1]);
        for targets in [[account, resource], [resource, account]] {
            assert_eq!(
                Plan::new(targets, 0).unwrap().level(),
                Level::Resource,
                "the level of the deepest target"
            );
        }
        let modes: Vec<Mode> = either_way[0].iter().map(|(_, _, mode)| *mode).collect();
        assert_eq!(modes, [Mode::Shared, Mode::Exclusive, Mode::Exclusive]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn rows_are_in_locking_order_for_any_ids(
            user in 0_u8..20,
            account in 0_u8..20,
            targets in vec((0_u8..3, 0_u8..20), 1..8),
        ) {
            let (user, account) = (user.to_string(), account.to_string());
            let targets: Vec<(u8, String)> = targets.iter().map(|(kind, id)| (*kind, id.to_string())).collect();
            let targets: Vec<Target<'_>> = targets
                .iter()
                .map(|(kind, id)| match kind {
                    0 => Target::user(id),
                    1 => Target::account(&user, id),
                    _ => Target::resource(&user, &account, id),
                })
                .map(Result::unwrap)
                .collect();
            let rows: Vec<(Level, u32)> =
                plan(&targets, 4).iter().map(|(level, bucket, _)| (*level, *bucket)).collect();
            prop_assert!(rows.is_sorted_by(|one, other| one < other), "{:?}", rows);
        }
    }
}
