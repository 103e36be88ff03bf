//! A mutex per key: one task at a time per key in this process.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

type KeyMutex = tokio::sync::Mutex<()>;

/// A mutex per key, which exists only while a task uses it. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct KeyedMutex<K>(Arc<Mutex<HashMap<K, Weak<KeyMutex>>>>);

impl<K> Default for KeyedMutex<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash> KeyedMutex<K> {
    /// Returns the mutex of `key`: the same one for all tasks that use it at the same time.
    pub(crate) fn get(&self, key: &K) -> Arc<KeyMutex> {
        let mut mutexes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mutex) = mutexes.get(key).and_then(Weak::upgrade) {
            return mutex;
        }
        // Finished tasks leave a dangling entry.
        mutexes.retain(|_, mutex| mutex.strong_count() > 0);
        let mutex = Arc::<KeyMutex>::default();
        mutexes.insert(key.clone(), Arc::downgrade(&mutex));
        mutex
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn key_has_one_mutex_while_it_is_used() {
        let mutexes = KeyedMutex::default();
        let first = mutexes.get(&"a");
        let held = first.try_lock().unwrap();
        assert!(mutexes.get(&"a").try_lock().is_err() && mutexes.get(&"b").try_lock().is_ok());
        drop(held);
        assert!(mutexes.get(&"a").try_lock().is_ok());
        drop(first);
        mutexes.get(&"c");
        assert_eq!(mutexes.0.lock().unwrap().len(), 1, "unused mutexes are removed");
    }
}
