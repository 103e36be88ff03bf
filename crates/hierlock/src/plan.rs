//! From targets to rows: which, in which mode, in which order.

use crate::space::bucket;
use crate::{Level, Target};

/// A row that is locked.
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

/// Each row once, in the one order that everybody keeps to: by level, then by bucket.
///
/// Sorted by anything else, ids for instance, two sets could meet two rows in opposite order, and deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    rows: Vec<(Row, Mode)>,
    /// Of the deepest target.
    level: Level,
}

impl Plan {
    /// None where there is no target.
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
        // The stronger mode first, for it is the one that stays. Taking both in turn would be an upgrade, and those deadlock.
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
    fn each_row_is_taken_once_in_the_stronger_mode() {
        let (account, resource) =
            (Target::account("u", "a").unwrap(), Target::resource("u", "a", "r").unwrap());
        let either_way = [plan(&[account, resource], 0), plan(&[resource, account, resource], 0)];
        assert_eq!(either_way[0], either_way[1]);
        for targets in [[account, resource], [resource, account]] {
            assert_eq!(Plan::new(targets, 0).unwrap().level(), Level::Resource, "that of the deepest");
        }
        let modes: Vec<Mode> = either_way[0].iter().map(|(_, _, mode)| *mode).collect();
        assert_eq!(modes, [Mode::Shared, Mode::Exclusive, Mode::Exclusive]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn whatever_the_ids_the_order_is_that_of_the_rows(
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
