//! What a service gets to open itself with.

use std::any::Any;
use std::net::SocketAddr;

use base::Clock;
use base::id::ProcessId;
use bus::Bus;
use db::Db;
use hierlock::Locks;
use live::Live;
use redis_store::RedisStore;
use runtime::{Metrics, Readiness};
use serde_json::Value;
use url::Url;

use crate::{OpenError, Provided, Reach, Services, Settings};

/// What a service gets to open itself with.
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
    /// Waits for servers that may not be there yet.
    pub reach: Reach,
    /// Where the admin listener is.
    pub admin: SocketAddr,
    /// The gateway's listener, if this process has one.
    pub gateway: Option<GatewayListener>,
    /// All services of the program, for what they declare.
    pub services: Services,
    pub provided: Provided,
    /// The service that is being opened.
    pub opening: &'static str,
}

/// The stores of the process, open and migrated, and the live messages that go through Redis. Cheap to clone; clones share
/// connections.
#[derive(Clone, Debug)]
pub struct Stores {
    pub db: Db,
    pub locks: Locks,
    pub redis_store: RedisStore,
    pub bus: Bus,
    /// Any service publishes and subscribes here.
    pub live: Live,
}

/// Where the gateway listens, and what it serves there.
#[derive(Clone, Debug)]
pub struct GatewayListener {
    pub url: Url,
    /// The OpenAPI document of its routes, those of all services included.
    pub openapi: Value,
}

impl Context {
    /// Provides a value to services that are opened later, and to routes that [use](crate::Open) it. Fails the start if a service
    /// provides a value of this type already.
    pub fn provide<T: Any + Send + Sync>(&self, value: T) -> Result<(), OpenError> {
        self.provided.put(self.opening, value)
    }

    /// Finds what a service before this one provides. Fails the start if there is none.
    pub fn get<T: Any + Clone>(&self) -> Result<T, OpenError> {
        self.provided.find().ok_or_else(|| OpenError::missing::<T>(self.opening))
    }
}
