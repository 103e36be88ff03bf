//! Parts of what a player sees first, `/v1/home`.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use http_server::Problem;
use serde_json::Value;

use crate::{Provided, SignedInPlayer};

/// A part of `/v1/home` that a service brings. The gateway reads it beside the others, within `gateway.part_timeout`.
#[derive(Clone)]
pub struct HomePart {
    /// The name of its member in the answer.
    pub name: &'static str,
    /// The name of its schema among those of [`Service::gateway_api`](crate::Service::gateway_api).
    pub schema: &'static str,
    read: Arc<dyn Fn(Provided, SignedInPlayer) -> Reading + Send + Sync>,
}

type Reading = BoxFuture<'static, Result<Value, Problem>>;

impl HomePart {
    /// Makes a part of the function that reads it.
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

    /// Reads the part of a player.
    pub fn read(&self, provided: Provided, player: SignedInPlayer) -> Reading {
        (self.read)(provided, player)
    }
}

impl fmt::Debug for HomePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HomePart").field(&self.name).finish()
    }
}
