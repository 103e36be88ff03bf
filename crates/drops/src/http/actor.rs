//! The caller of a request: a service or an operator.

use axum::extract::FromRequestParts;
use http::request::Parts;
use http_server::{Caller, Problem};
use service::Operator;

use crate::wiring::RIGHT;

/// The caller, as ledgers and logs name it: `service:NAME` or `operator:NAME`. Rejects services without the right `drops`.
#[derive(Clone, Debug)]
pub(super) struct Actor(pub(super) String);

impl<S: Sync> FromRequestParts<S> for Actor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        if let Some(caller) = parts.extensions.get::<Caller>() {
            caller.require(RIGHT)?;
            return Ok(Self(format!("service:{}", caller.name())));
        }
        let operator = Operator::from_request_parts(parts, state).await?;
        Ok(Self(format!("operator:{}", operator.name)))
    }
}
