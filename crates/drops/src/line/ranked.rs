//! A sorted list that knows the rank of its items.

/// The size above which a chunk is split.
const MAX_CHUNK: usize = 1_024;

/// A sorted list without duplicates, stored in chunks. The rank of an item is the total size of the chunks before it plus its index within
/// its own. At a million items that is a sum of about two thousand numbers.
#[derive(Clone, Debug)]
pub(super) struct RankedList<T> {
    /// No chunk is empty.
    chunks: Vec<Vec<T>>,
}

impl<T> Default for RankedList<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<T: Ord + Copy> RankedList<T> {
    pub(super) fn len(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    /// Returns the index of the chunk that an item belongs to: the first whose last item is not before it.
    fn chunk_of(&self, item: &T) -> usize {
        self.chunks.partition_point(|chunk| chunk.last().is_some_and(|last| last < item))
    }

    pub(super) fn insert(&mut self, item: T) {
        // An item behind all others goes into the last chunk.
        let at = self.chunk_of(&item).min(self.chunks.len().saturating_sub(1));
        let Some(chunk) = self.chunks.get_mut(at) else { return self.chunks.push(vec![item]) };
        let Err(index) = chunk.binary_search(&item) else { return };
        chunk.insert(index, item);
        if chunk.len() > MAX_CHUNK {
            let upper = chunk.split_off(MAX_CHUNK / 2);
            self.chunks.insert(at + 1, upper);
        }
    }

    /// Removes an item. Returns whether it was present.
    pub(super) fn remove(&mut self, item: &T) -> bool {
        let at = self.chunk_of(item);
        let Some(chunk) = self.chunks.get_mut(at) else { return false };
        let Ok(index) = chunk.binary_search(item) else { return false };
        chunk.remove(index);
        if chunk.is_empty() {
            self.chunks.remove(at);
        }
        true
    }

    /// Returns how many items are before this one. Returns none if it is absent.
    pub(super) fn rank(&self, item: &T) -> Option<usize> {
        let at = self.chunk_of(item);
        let index = self.chunks.get(at)?.binary_search(item).ok()?;
        Some(self.chunks[..at].iter().map(Vec::len).sum::<usize>() + index)
    }

    /// Returns the items behind `after`, which need not be present.
    pub(super) fn after(&self, after: Option<T>) -> impl Iterator<Item = T> {
        let (at, index) = after.map_or((0, 0), |after| {
            let at = self.chunk_of(&after);
            (at, self.chunks.get(at).map_or(0, |chunk| chunk.partition_point(|item| *item <= after)))
        });
        self.chunks.iter().skip(at).flatten().copied().skip(index)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_sorted_set(steps in prop::collection::vec((any::<bool>(), 0_u16..3_000), 0..6_000)) {
            let (mut ranked, mut model) = (RankedList::default(), BTreeSet::new());
            for (is_insert, item) in steps {
                if is_insert {
                    ranked.insert(item);
                    model.insert(item);
                } else {
                    prop_assert_eq!(ranked.remove(&item), model.remove(&item));
                }
            }
            prop_assert_eq!(ranked.len(), model.len());
            prop_assert!(ranked.after(None).eq(model.iter().copied()));
            for item in [0_u16, 700, 1_500, 2_999] {
                let rank = model.contains(&item).then(|| model.range(..item).count());
                prop_assert_eq!(ranked.rank(&item), rank);
                prop_assert!(ranked.after(Some(item)).eq(model.range(item + 1..).copied()));
            }
        }
    }
}
