//! Items that are done in the process that pushed them, without a claim.
//!
//! A claim costs a transaction of its own, and commits are what takes time. Whoever pushes an item, and knows that nothing of its
//! key is before it, can have it claimed with the push by the worker of the same process, which is handed the item after the commit.
//! If that process dies, the lease ends and another worker claims the item as any other.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::id::ProcessId;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::Item;

/// The worker of this process, if there is one.
#[derive(Clone, Default)]
pub(crate) struct Home(Arc<Mutex<Option<Door>>>);

/// The way to a worker.
#[derive(Clone)]
struct Door {
    holder: ProcessId,
    items: UnboundedSender<Vec<Item>>,
}

/// A worker is at home, until this is dropped.
pub(crate) struct AtHome {
    home: Home,
    pub(crate) items: UnboundedReceiver<Vec<Item>>,
}

/// What hands items over.
pub(crate) struct HandOver(UnboundedSender<Vec<Item>>);

impl Home {
    fn door(&self) -> MutexGuard<'_, Option<Door>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, holder: ProcessId) -> AtHome {
        let (items, received) = unbounded_channel();
        *self.door() = Some(Door { holder, items });
        AtHome { home: self.clone(), items: received }
    }

    /// Who does items here, and how they get there; nothing where there is no worker.
    pub(crate) fn worker(&self) -> Option<(ProcessId, HandOver)> {
        self.door().as_ref().map(|door| (door.holder, HandOver(door.items.clone())))
    }
}

impl HandOver {
    /// A worker that has just left does not take them: their lease ends.
    pub(crate) fn give(self, items: Vec<Item>) {
        let _ = self.0.send(items);
    }
}

impl AtHome {
    /// Takes no more. What was on its way is still to be had.
    pub(crate) fn leave(&mut self) {
        *self.home.door() = None;
    }
}

impl Drop for AtHome {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Home").field(&self.door().is_some()).finish()
    }
}
