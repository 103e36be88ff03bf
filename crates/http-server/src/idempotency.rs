//! Headers of idempotent requests.

use ::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use base::Code;

use super::Problem;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Marks a recorded response to a repeated request.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Returns the required idempotency key. Returns an empty text, which later validation refuses, if the key is not ASCII.
pub fn idempotency_key(headers: &HeaderMap) -> Result<&str, Problem> {
    let key = headers.get(KEY).ok_or_else(|| {
        let detail = "Send the header `Idempotency-Key` with a key that is unique to this request, such as the id of the purchase.";
        Problem::new(Code::InvalidArgument).detail(detail)
    })?;
    Ok(key.to_str().unwrap_or_default())
}

/// Adds the header `Idempotency-Replayed: true` if the response is a recorded one.
pub fn mark_replayed(mut response: Response, is_replayed: bool) -> Response {
    if is_replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}
