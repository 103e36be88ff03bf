//! Local hand-off: the process that pushed an item handles it after the commit, without a claim.
//!
//! A claim costs a transaction of its own, and commits dominate the time an item takes. A caller that pushes an item, and knows that
//! its key has nothing unfinished, can have it claimed by the same insert for the worker of its own process. The worker receives the
//! item after the commit. If the process dies, the lease expires and another worker claims the item.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::id::ProcessId;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::Item;

/// The worker of this process, if one is running. Cheap to clone; clones share state.
#[derive(Clone, Default)]
pub(crate) struct LocalWorker(Arc<Mutex<Option<Registration>>>);

#[derive(Clone)]
struct Registration {
    holder: ProcessId,
    items: UnboundedSender<Vec<Item>>,
}

/// Receives items pushed in this process. Dropping it ends the registration.
pub(crate) struct LocalReceiver {
    worker: LocalWorker,
    pub(crate) items: UnboundedReceiver<Vec<Item>>,
}

/// Sends committed items to the worker of this process.
pub(crate) struct LocalSender(UnboundedSender<Vec<Item>>);

impl LocalWorker {
    fn registration(&self) -> MutexGuard<'_, Option<Registration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a worker of this process. A later registration replaces an earlier one.
    pub(crate) fn register(&self, holder: ProcessId) -> LocalReceiver {
        let (items, received) = unbounded_channel();
        *self.registration() = Some(Registration { holder, items });
        LocalReceiver { worker: self.clone(), items: received }
    }

    /// Returns the registered worker's id and a sender to it. Returns none if this process runs no worker.
    pub(crate) fn sender(&self) -> Option<(ProcessId, LocalSender)> {
        self.registration().as_ref().map(|worker| (worker.holder, LocalSender(worker.items.clone())))
    }
}

impl LocalSender {
    /// Sends items. If the worker has stopped meanwhile they are dropped, and are claimed when their lease expires.
    pub(crate) fn send(self, items: Vec<Item>) {
        let _ = self.0.send(items);
    }
}

impl LocalReceiver {
    /// Ends the registration. Items sent before can still be received.
    pub(crate) fn unregister(&mut self) {
        *self.worker.registration() = None;
    }
}

impl Drop for LocalReceiver {
    fn drop(&mut self) {
        self.unregister();
    }
}

impl fmt::Debug for LocalWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalWorker").field(&self.registration().is_some()).finish()
    }
}
