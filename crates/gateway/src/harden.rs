//! Security headers of every response, and CORS.

use std::collections::BTreeSet;
use std::time::Duration;

use ::http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, DATE,
    ORIGIN, REFERRER_POLICY, RETRY_AFTER, STRICT_TRANSPORT_SECURITY, VARY, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use ::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::Router;
use axum::middleware::map_response;
use axum::response::Response;
use service::RouteMethod;
use sessions::Origin;
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::clients;
use crate::guard::CSRF;
use crate::http::HEARTBEAT;

/// The content security policy of responses that are not pages: nothing may run or be framed.
const API_POLICY: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
/// Browsers use only HTTPS for two years.
const HSTS: HeaderValue = HeaderValue::from_static("max-age=63072000");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// The number of response headers to reserve room for.
const EXPECTED_HEADERS: usize = 16;
/// The headers of responses that pages of other origins may read.
const EXPOSED: [HeaderName; 8] = [
    RETRY_AFTER,
    WWW_AUTHENTICATE,
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("idempotency-replayed"),
    // Clients estimate the server's time by it.
    DATE,
    HEARTBEAT,
];
/// How long a browser may cache the result of a preflight request.
const CORS_AGE: Duration = Duration::from_secs(600);

/// Allows pages of these origins to call the routes with these methods. Preflight requests are answered before the router.
pub(crate) fn with_cors(
    origins: &[Origin],
    methods: &BTreeSet<RouteMethod>,
    routes: Router,
    is_https: bool,
) -> Router {
    if origins.is_empty() {
        return routes;
    }
    routes.layer(cors(origins, methods)).layer(map_response(move |response: Response| async move {
        with_security_headers(response, is_https)
    }))
}

/// Allows these origins to send requests with the player's cookie.
fn cors(origins: &[Origin], methods: &BTreeSet<RouteMethod>) -> CorsLayer {
    let origins = origins.iter().filter_map(|origin| HeaderValue::from_str(origin.as_str()).ok());
    CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins))
        .allow_credentials(true)
        .allow_methods(methods.iter().map(|method| Method::from(*method)).collect::<Vec<_>>())
        .allow_headers([
            AUTHORIZATION,
            CONTENT_TYPE,
            CSRF,
            clients::PLATFORM,
            clients::VERSION,
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("last-event-id"),
            HeaderName::from_static("idempotency-key"),
        ])
        .expose_headers(EXPOSED)
        .max_age(CORS_AGE)
}

/// Returns the CORS headers of a response that bypasses the router, except the origin: the same as those of [`with_cors`].
pub(crate) fn cors_headers() -> [(HeaderName, String); 3] {
    let exposed = EXPOSED.map(|name| name.to_string()).join(",");
    let vary = [ORIGIN, ACCESS_CONTROL_REQUEST_METHOD, ACCESS_CONTROL_REQUEST_HEADERS];
    [
        (VARY, vary.map(|name| name.to_string()).join(", ")),
        (ACCESS_CONTROL_ALLOW_CREDENTIALS, "true".to_owned()),
        (ACCESS_CONTROL_EXPOSE_HEADERS, exposed),
    ]
}

/// Adds the security headers of every response.
pub(crate) fn with_security_headers(mut response: Response, is_https: bool) -> Response {
    add_security_headers(response.headers_mut(), is_https);
    response
}

/// Adds the same headers to a header map without a response.
pub(crate) fn add_security_headers(headers: &mut HeaderMap, is_https: bool) {
    headers.reserve(EXPECTED_HEADERS);
    // Pages and files set their own.
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(API_POLICY);
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(REFERRER_POLICY).or_insert(HeaderValue::from_static("no-referrer"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    if is_https {
        headers.insert(STRICT_TRANSPORT_SECURITY, HSTS);
    }
}
