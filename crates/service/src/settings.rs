//! The settings that are visible to services.

use std::any::{Any, TypeId, type_name};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Listen, Roles};

/// The settings of the process, and those of each service, found by their type.
#[derive(Clone)]
pub struct Settings {
    pub roles: Roles,
    pub listen: Listen,
    pub stores: StoreConfigs,
    of_services: BTreeMap<TypeId, ServiceSettings>,
}

#[derive(Clone)]
struct ServiceSettings {
    type_name: &'static str,
    value: Arc<dyn Any + Send + Sync>,
}

/// The settings of the stores.
#[derive(Clone, Debug)]
pub struct StoreConfigs {
    pub db: db::Config,
    pub redis_store: redis_store::Config,
    pub bus: bus::Config,
    /// The prefix of the Redis channels for live messages.
    pub live_prefix: String,
}

/// The settings of player streams, which the gateway serves and other services feed.
#[derive(Clone, Copy, Debug)]
pub struct StreamConfig {
    /// How often a stream sends a heartbeat. Also the longest delay of an event whose live message was lost.
    pub heartbeat: Duration,
}

/// The settings that all parts of the service API share.
#[derive(Clone, Copy, Debug)]
pub struct ServiceApiConfig {
    /// How long the recorded response to a request with an idempotency key is kept.
    pub idempotency_retention: Duration,
}

/// The settings of the console that other services follow.
#[derive(Clone, Copy, Debug)]
pub struct ConsoleConfig {
    /// Whether screens and actions for development exist.
    pub try_it: bool,
}

impl Settings {
    /// Creates the settings of the process. Services add theirs with [`put`](Self::put).
    pub fn new(roles: Roles, listen: Listen, stores: StoreConfigs) -> Self {
        Self { roles, listen, stores, of_services: BTreeMap::new() }
    }

    /// Stores the settings of a service by their type. Replaces earlier ones.
    pub fn put<T: Any + Send + Sync>(&mut self, settings: T) {
        let settings = ServiceSettings { type_name: type_name::<T>(), value: Arc::new(settings) };
        self.of_services.insert(TypeId::of::<T>(), settings);
    }

    /// Returns the settings of a service by their type.
    ///
    /// # Panics
    /// If no service has stored settings of this type. That is a bug, which the first test that loads a configuration finds.
    pub fn get<T: Any>(&self) -> &T {
        let found =
            self.of_services.get(&TypeId::of::<T>()).and_then(|settings| settings.value.downcast_ref());
        #[expect(clippy::expect_used, reason = "see # Panics")]
        found.expect("the service has stored these settings")
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_services: Vec<&str> = self.of_services.values().map(|settings| settings.type_name).collect();
        f.debug_struct("Settings")
            .field("roles", &self.roles)
            .field("listen", &self.listen)
            .field("stores", &self.stores)
            .field("of_services", &of_services)
            .finish()
    }
}
