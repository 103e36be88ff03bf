//! Requests that are done once, however often they are sent.

use ::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use base::Code;

use super::Problem;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Says that an answer had been given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The key of the request, which has to have one. What is not ASCII is no key: it is refused with what one looks like.
pub fn idempotency_key(headers: &HeaderMap) -> Result<&str, Problem> {
    let key = headers.get(KEY).ok_or_else(|| {
        let detail = "Send the header Idempotency-Key, with a key of the request's own: the id of the purchase, for example.";
        Problem::new(Code::InvalidArgument).detail(detail)
    })?;
    Ok(key.to_str().unwrap_or_default())
}

/// The answer with the word that it had been given before, if it had.
pub fn answered_before(mut response: Response, before: bool) -> Response {
    if before {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}
