//! Parts of `/v1/home`, the first request of a game client.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use http_server::Problem;
use serde_json::Value;

use crate::{Provided, SignedInPlayer};

/// A service's part of `/v1/home`. The gateway reads all parts concurrently, each within `gateway.part_timeout`.
#[derive(Clone)]
pub struct HomePart {
    /// The name of its member in the response.
    pub name: &'static str,
    /// The name of its schema among those of [`Service::gateway_api`](crate::Service::gateway_api).
    pub schema: &'static str,
    read: Arc<dyn Fn(Provided, SignedInPlayer) -> PartFuture + Send + Sync>,
}

type PartFuture = BoxFuture<'static, Result<Value, Problem>>;

impl HomePart {
    /// Creates a part from the function that reads it.
    pub fn new<Read>(
        name: &'static str,
        schema: &'static str,
        read: impl Fn(Provided, SignedInPlayer) -> Read + Send + Sync + 'static,
    ) -> Self
    where
        Read: Future<Output = Result<Value, Problem>> + Send + 'static,
    {
        Self { name, schema, read: Arc::new(move |provided, player| read(provided, player).boxed()) }
    }

    /// Reads the part for a player.
    pub fn read(&self, provided: Provided, player: SignedInPlayer) -> PartFuture {
        (self.read)(provided, player)
    }
}

impl fmt::Debug for HomePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HomePart").field(&self.name).finish()
    }
}
