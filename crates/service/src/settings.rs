//! The settings that services know.

use std::any::{Any, TypeId, type_name};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Listen, Roles};

/// The settings that services know: those of the process, and those of each service, found by their type.
#[derive(Clone)]
pub struct Settings {
    pub roles: Roles,
    pub listen: Listen,
    pub stores: StoreConfigs,
    of_services: BTreeMap<TypeId, Entry>,
}

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
    /// Starts with the settings of the process. Services add theirs.
    pub fn new(roles: Roles, listen: Listen, stores: StoreConfigs) -> Self {
        Self { roles, listen, stores, of_services: BTreeMap::new() }
    }

    /// Keeps the settings of a service by their type. Replaces earlier ones.
    pub fn put<T: Any + Send + Sync>(&mut self, settings: T) {
        let entry = Entry { type_name: type_name::<T>(), value: Arc::new(settings) };
        self.of_services.insert(TypeId::of::<T>(), entry);
    }

    /// Finds the settings of a service by their type.
    ///
    /// # Panics
    /// When no service reads settings of this type: a mistake in the program, which the first test that loads a configuration finds.
    pub fn get<T: Any>(&self) -> &T {
        let found = self.of_services.get(&TypeId::of::<T>()).and_then(|entry| entry.value.downcast_ref());
        #[expect(clippy::expect_used, reason = "see # Panics")]
        found.expect("the settings that a service asks for are read by it")
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_services: Vec<&str> = self.of_services.values().map(|entry| entry.type_name).collect();
        f.debug_struct("Settings")
            .field("roles", &self.roles)
            .field("listen", &self.listen)
            .field("stores", &self.stores)
            .field("of_services", &of_services)
            .finish()
    }
}
