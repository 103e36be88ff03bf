//! Room in caches.

use std::collections::HashMap;

/// Drops the entries that are not `usable`, then arbitrary others until an eighth of `capacity` is free.
///
/// A dropped entry costs one lookup when it is needed again. Dropping all at once would make every caller pay for one at the same time.
pub fn make_room<K, V>(entries: &mut HashMap<K, V>, capacity: usize, usable: impl Fn(&V) -> bool) {
    entries.retain(|_, entry| usable(entry));
    let mut surplus = entries.len().saturating_sub(capacity * 7 / 8);
    entries.retain(|_, _| {
        let is_dropped = surplus > 0;
        surplus -= usize::from(is_dropped);
        !is_dropped
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_entries_are_dropped_first_and_then_an_eighth() {
        let mut entries: HashMap<usize, bool> = (0..64).map(|number| (number, true)).collect();
        make_room(&mut entries, 64, |usable| *usable);
        assert_eq!(entries.len(), 56, "most of them stay");
        entries.extend((64..128).map(|number| (number, false)));
        make_room(&mut entries, 64, |usable| *usable);
        assert_eq!(entries.len(), 56, "only unusable entries are dropped");
        assert!(entries.keys().all(|number| *number < 64));
    }
}
