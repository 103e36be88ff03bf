//! Settings by their type.

use std::any::{Any, TypeId, type_name};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The settings of the stores, the listeners and all services, each found by its type.
///
/// Has, besides those of services: [`StoreConfigs`], [`StreamConfig`], [`Listen`](crate::Listen), [`Roles`](crate::Roles).
#[derive(Clone, Default)]
pub struct Settings(BTreeMap<TypeId, Entry>);

#[derive(Clone)]
struct Entry {
    type_name: &'static str,
    value: Arc<dyn Any + Send + Sync>,
}

/// The settings of the stores.
#[derive(Clone, Debug)]
pub struct StoreConfigs {
    pub db: db::Config,
    pub redis_store: redis_store::Config,
    pub bus: bus::Config,
    /// Begins the names of the channels of live messages in Redis.
    pub live_prefix: String,
}

/// The settings of the streams of players, which the gateway serves and other services keep up to date.
#[derive(Clone, Copy, Debug)]
pub struct StreamConfig {
    /// How often a stream says that it is alive, and how late it may be where a live message was lost.
    pub heartbeat: Duration,
}

impl Settings {
    /// Keeps the settings of a type. Replaces earlier ones.
    pub fn put<T: Any + Send + Sync>(&mut self, settings: T) {
        let entry = Entry { type_name: type_name::<T>(), value: Arc::new(settings) };
        self.0.insert(TypeId::of::<T>(), entry);
    }

    /// Finds the settings of a type.
    ///
    /// # Panics
    /// When no service reads settings of this type: a mistake in the program, which the first test that loads a configuration finds.
    pub fn get<T: Any>(&self) -> &T {
        let found = self.0.get(&TypeId::of::<T>()).and_then(|entry| entry.value.downcast_ref());
        #[expect(clippy::expect_used, reason = "see # Panics")]
        found.expect("the settings that a service asks for are read by it")
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.values().map(|entry| entry.type_name)).finish()
    }
}
