//! Calls from browsers: CORS, and the text mode of gRPC-Web.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use connectrpc::ErrorCode;
use futures::StreamExt;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyStream, StreamBody};
use tower_http::cors::{AllowOrigin, CorsLayer};

const TEXT: &str = "application/grpc-web-text";
const BINARY: &str = "application/grpc-web";

/// Returns the layer that lets pages of these origins call.
pub(super) fn cors(origins: &[String]) -> CorsLayer {
    let names = |names: &[&'static str]| -> Vec<HeaderName> {
        names.iter().map(|name| HeaderName::from_static(name)).collect()
    };
    let allowed = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
    CorsLayer::new()
        .allow_origin(AllowOrigin::list(allowed))
        .allow_methods([Method::GET, Method::POST, Method::PATCH, Method::DELETE])
        .allow_headers(names(&[
            "content-type",
            "connect-protocol-version",
            "connect-timeout-ms",
            "grpc-timeout",
            "x-grpc-web",
            "x-request-id",
            "x-user-agent",
        ]))
        .expose_headers(names(&["grpc-status", "grpc-message", "grpc-status-details-bin", "x-request-id"]))
        .max_age(Duration::from_secs(3600))
}

/// Returns whether the request is gRPC-Web in text mode, which older browser clients use for streams.
pub(super) fn is_text(request: &Request<Body>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with(TEXT))
}

/// Turns a request in text mode into one in binary mode. Fails with the response for the caller.
pub(super) async fn to_binary(request: Request<Body>, max_request: usize) -> Result<Request<Body>, Response> {
    let (mut parts, body) = request.into_parts();
    // Base64 takes four bytes for three.
    let text = axum::body::to_bytes(body, max_request / 3 * 4 + 1024).await;
    let text = text.map_err(|_| refused(ErrorCode::ResourceExhausted, "the request is too large"))?;
    let body = decode(&text).ok_or_else(|| refused(ErrorCode::InvalidArgument, "the body is not base64"))?;
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(BINARY));
    parts.headers.remove(http::header::CONTENT_LENGTH);
    Ok(Request::from_parts(parts, body.into()))
}

/// Turns a response in binary mode into one in text mode. Each part of the body is padded, so that a client can decode
/// a message as soon as it arrives.
pub(super) fn to_text(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc-web-text+proto"));
    parts.headers.remove(http::header::CONTENT_LENGTH);
    let frames = BodyStream::new(body)
        .map(|frame| frame.map(|frame| frame.map_data(|data| Bytes::from(STANDARD.encode(data)))));
    Response::from_parts(parts, Body::new(StreamBody::new(frames)))
}

/// Decodes base64 that may be padded at the end of each part.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let mut data = Vec::with_capacity(text.len() / 4 * 3);
    for part in text.split_inclusive(|byte| *byte == b'=').map(<[u8]>::to_vec) {
        // The second `=` of a padding is a part of its own.
        if part == b"=" {
            continue;
        }
        let digits = part.strip_suffix(b"=").unwrap_or(&part);
        let padding = (4 - digits.len() % 4) % 4;
        STANDARD.decode_vec([digits, &b"=="[..padding.min(2)]].concat(), &mut data).ok()?;
    }
    Some(data)
}

fn refused(code: ErrorCode, message: &'static str) -> Response {
    let status = HeaderValue::from(code.grpc_code());
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/grpc-web-text+proto")),
        (HeaderName::from_static("grpc-status"), status),
        (HeaderName::from_static("grpc-message"), HeaderValue::from_static(message)),
    ];
    headers.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_may_be_padded_each() {
        for parts in
            [vec!["a"], vec!["ab", "c"], vec!["abc", "", "a", "ab"], vec!["abcd", "e", "f", "gh"], vec![]]
        {
            let text: String = parts.iter().map(|part| STANDARD.encode(part)).collect();
            assert_eq!(decode(text.as_bytes()).unwrap(), parts.concat().as_bytes(), "{parts:?}");
        }
        for wrong in ["a", "a===", "ab!c", "ü"] {
            assert_eq!(decode(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn decoding_never_panics() {
        testkit::fuzz("grpc-web-text", &["YWI=Yw==", "YWJj", "AAAAAAA="], |input| decode(input).is_some());
    }
}
