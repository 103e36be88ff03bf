//! The context in which a service opens.

use std::any::Any;
use std::net::SocketAddr;

use base::Clock;
use base::id::ProcessId;
use bus::Bus;
use db::Db;
use hierlock::LockManager;
use live::Live;
use redis_store::RedisStore;
use runtime::{Metrics, Readiness};
use serde_json::Value;
use url::Url;

use crate::{OpenError, Provided, Services, Settings, StoreConnector};

/// Gives a service everything that it needs to open.
#[derive(Debug)]
pub struct Context {
    pub process: ProcessId,
    /// The version of the program.
    pub version: &'static str,
    pub clock: Clock,
    pub stores: Stores,
    pub settings: Settings,
    pub metrics: Metrics,
    pub readiness: Readiness,
    /// Connects to servers that may not be reachable yet.
    pub connector: StoreConnector,
    /// The address of the admin listener.
    pub admin: SocketAddr,
    /// The gateway's listener, if this process has one.
    pub gateway: Option<GatewayListener>,
    /// All services of the program, for what they declare.
    pub services: Services,
    pub provided: Provided,
    /// The service that is being opened.
    pub opening: &'static str,
}

/// The open and migrated stores of the process, and the live messages over Redis. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Stores {
    pub db: Db,
    pub locks: LockManager,
    pub redis_store: RedisStore,
    pub bus: Bus,
    /// Live messages, which any service may publish and subscribe to.
    pub live: Live,
}

/// The URL of the gateway and the API that it serves.
#[derive(Clone, Debug)]
pub struct GatewayListener {
    pub url: Url,
    /// Makes the OpenAPI document of its routes, including those of all services. It is large, and few ask for it.
    pub openapi: fn(Services) -> Value,
}

impl Context {
    /// Provides a value to services that open later, and to routes that [use](crate::Open) it. Fails if another service already
    /// provides a value of this type.
    pub fn provide<T: Any + Send + Sync>(&self, value: T) -> Result<(), OpenError> {
        self.provided.put(self.opening, value)
    }

    /// Returns a value that an earlier service provides. Fails if there is none.
    pub fn get<T: Any + Clone>(&self) -> Result<T, OpenError> {
        self.provided.find().ok_or_else(|| OpenError::missing::<T>(self.opening))
    }
}
