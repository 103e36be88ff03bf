//! Who calls: a service or an operator.

use axum::extract::FromRequestParts;
use base::Code;
use http::HeaderName;
use http::request::Parts;
use http_server::{Caller, Problem};

use crate::wiring::RIGHT;

/// The header in which an operator's tool says who the operator is.
const OPERATOR: HeaderName = HeaderName::from_static("x-operator");
const MAX_NAME: usize = 60;

/// Marks requests that came in on the admin listener, which only operators reach.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnAdminListener;

/// Who calls, as ledgers and logs name them: `service:NAME` or `operator:NAME`. Refuses services without the right `drops`.
#[derive(Clone, Debug)]
pub(super) struct Actor(pub(super) String);

impl<S: Sync> FromRequestParts<S> for Actor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        if let Some(caller) = parts.extensions.get::<Caller>() {
            caller.require(RIGHT)?;
            return Ok(Self(format!("service:{}", caller.name())));
        }
        if parts.extensions.get::<OnAdminListener>().is_none() {
            return Err(Problem::new(Code::Unauthenticated));
        }
        let given = parts.headers.get(OPERATOR).and_then(|name| name.to_str().ok());
        let is_name = |name: &&str| {
            (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        Ok(Self(format!("operator:{}", given.filter(is_name).unwrap_or("unnamed"))))
    }
}
