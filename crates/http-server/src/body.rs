//! Extractors for bodies and queries. An error is a problem document that says what to change.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, FailedToBufferBody, JsonRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use base::Code;
use http::request::Parts;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::Problem;
use super::decode_error::{describe_body, describe_bytes, describe_query};

/// The JSON body of a request. The router limits its size with axum's `DefaultBodyLimit`.
#[derive(Clone, Copy, Debug)]
pub struct JsonBody<T>(pub T);

/// The time that a caller may take to send a body, as an extension of the request: `.layer(Extension(BodyTimeout(…)))`.
#[derive(Clone, Copy, Debug)]
pub struct BodyTimeout(pub Duration);

impl Default for BodyTimeout {
    fn default() -> Self {
        Self(Duration::from_secs(30))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let BodyTimeout(limit) = request.extensions().get().copied().unwrap_or_default();
        match timeout(limit, Json::from_request(request, state)).await {
            Ok(Ok(Json(value))) => Ok(Self(value)),
            Ok(Err(rejection)) => Err(Problem::new(code(&rejection)).detail(describe_body(&rejection))),
            Err(_) => Err(slow_body()),
        }
    }
}

/// The unchanged bytes of a body, for a signature. It has the same limits as [`JsonBody`].
#[derive(Clone, Debug)]
pub struct RawBody(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for RawBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let BodyTimeout(limit) = request.extensions().get().copied().unwrap_or_default();
        match timeout(limit, Bytes::from_request(request, state)).await {
            Ok(Ok(bytes)) => Ok(Self(bytes)),
            Ok(Err(rejection)) => {
                Err(Problem::new(code_of_bytes(&rejection)).detail(describe_bytes(&rejection)))
            }
            Err(_) => Err(slow_body()),
        }
    }
}

fn slow_body() -> Problem {
    Problem::new(Code::SlowRequest).detail("The body did not arrive in time.")
}

fn code(rejection: &JsonRejection) -> Code {
    match rejection {
        JsonRejection::MissingJsonContentType(_) => Code::UnsupportedMediaType,
        JsonRejection::BytesRejection(rejection) => code_of_bytes(rejection),
        _ => Code::InvalidArgument,
    }
}

fn code_of_bytes(rejection: &BytesRejection) -> Code {
    use FailedToBufferBody::LengthLimitError;
    match rejection {
        BytesRejection::FailedToBufferBody(LengthLimitError(_)) => Code::TooLarge,
        _ => Code::InvalidArgument,
    }
}

/// The query of a request.
#[derive(Clone, Copy, Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let decoded = axum::extract::Query::from_request_parts(parts, state).await;
        let axum::extract::Query(value) = decoded.map_err(|rejection: QueryRejection| {
            Problem::new(Code::InvalidArgument).detail(describe_query(&rejection))
        })?;
        Ok(Self(value))
    }
}
