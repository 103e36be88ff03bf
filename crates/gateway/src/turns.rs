//! One at a time, per key, in this process.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What is to be had before the work on a key is begun.
pub(crate) type Turn = Arc<tokio::sync::Mutex<()>>;

/// The turns of all keys that anybody works on. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Turns<K>(Arc<Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash> Turns<K> {
    /// The same for everybody who asks while anybody has it.
    pub(crate) fn of(&self, key: &K) -> Turn {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(key).and_then(Weak::upgrade) {
            return turn;
        }
        // Those who are done leave an entry that leads nowhere.
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Turn::default();
        turns.insert(key.clone(), Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_has_one_turn_while_anybody_has_it() {
        let turns = Turns::default();
        let first = turns.of(&"a");
        let held = first.try_lock().unwrap();
        assert!(turns.of(&"a").try_lock().is_err() && turns.of(&"b").try_lock().is_ok());
        drop(held);
        assert!(turns.of(&"a").try_lock().is_ok());
        drop(first);
        turns.of(&"c");
        assert_eq!(turns.0.lock().unwrap().len(), 1, "nothing is kept of those who are done");
    }
}
