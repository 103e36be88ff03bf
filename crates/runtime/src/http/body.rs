//! What callers send, read so that a mistake is answered with a problem document that says what to do.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use base::Code;
use http::request::Parts;
use serde::de::DeserializeOwned;

use super::Problem;

/// The JSON body of a request.
#[derive(Clone, Copy, Debug)]
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let Json(value) = Json::from_request(request, state).await.map_err(|rejection| {
            let code = match rejection {
                JsonRejection::BytesRejection(_) => Code::TooLarge,
                _ => Code::InvalidArgument,
            };
            Problem::new(code).detail(format!("The body: {}", rejection.body_text()))
        })?;
        Ok(Self(value))
    }
}

/// The query of a request.
#[derive(Clone, Copy, Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let asked = axum::extract::Query::from_request_parts(parts, state).await;
        let axum::extract::Query(value) = asked.map_err(|rejection: QueryRejection| {
            Problem::new(Code::InvalidArgument).detail(format!("The query: {}", rejection.body_text()))
        })?;
        Ok(Self(value))
    }
}
