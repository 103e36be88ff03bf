//! Headers that keep browsers from doing what we do not want, on every answer; and who may call from another origin.

use std::collections::BTreeSet;
use std::time::Duration;

use ::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, RETRY_AFTER,
    STRICT_TRANSPORT_SECURITY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use ::http::{HeaderName, HeaderValue, Method};
use axum::Router;
use axum::middleware::map_response;
use axum::response::Response;
use service::RouteMethod;
use sessions::Origin;
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::clients;
use crate::guard::CSRF;

/// For answers that are no pages: nothing of them may run or be shown anywhere.
const NOTHING: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
/// For how long a browser remembers to come by https only: two years.
const HTTPS: HeaderValue = HeaderValue::from_static("max-age=63072000");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// How many headers an answer gets here and behind.
const MOST: usize = 16;
/// How long a browser may remember what another origin may do.
const CORS_AGE: Duration = Duration::from_secs(600);

/// Lets pages of these origins call by these methods. Preflight requests are answered here, past all routes.
pub(crate) fn open_to(
    origins: &[Origin],
    methods: &BTreeSet<RouteMethod>,
    routes: Router,
    https: bool,
) -> Router {
    if origins.is_empty() {
        return routes;
    }
    routes
        .layer(cors(origins, methods))
        .layer(map_response(move |response: Response| async move { secured(response, https) }))
}

/// Pages of these origins may call, with the player's cookie.
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
        .expose_headers([
            RETRY_AFTER,
            WWW_AUTHENTICATE,
            HeaderName::from_static("ratelimit"),
            HeaderName::from_static("ratelimit-policy"),
            HeaderName::from_static("x-request-id"),
        ])
        .max_age(CORS_AGE)
}

/// The answer with the headers that every answer has.
pub(crate) fn secured(mut response: Response, https: bool) -> Response {
    let headers = response.headers_mut();
    headers.reserve(MOST);
    // What a page or a file says of itself counts.
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(NOTHING);
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(REFERRER_POLICY).or_insert(HeaderValue::from_static("no-referrer"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    if https {
        headers.insert(STRICT_TRANSPORT_SECURITY, HTTPS);
    }
    response
}
