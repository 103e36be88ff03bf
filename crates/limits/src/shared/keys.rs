//! The names of all keys, which are all made here.

use std::sync::Arc;

/// Makes the names of keys.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: Arc<str>,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// When the bucket is full again, in microseconds of the server's clock. Policies have no colon, so no key can be taken
    /// for one of another policy.
    pub(super) fn bucket(&self, policy: &str, key: &str) -> String {
        [&*self.prefix, "limit:", policy, ":", key].concat()
    }
}
