//! Refuses requests over the address limit before the router.
//!
//! A flood consists of such requests, so everything in a response that is the same for all of them is built once.

use std::collections::HashSet;
use std::sync::Arc;

use ::http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_REQUEST_METHOD, CONTENT_TYPE, ORIGIN, RETRY_AFTER,
};
use ::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::extract::Request;
use http_server::{EarlyRefusal, PreparedProblem};
use limits::LimitState;

use crate::Gateway;
use crate::guard::{
    ADDRESS_POLICY, ClientKey, RATE_LIMIT, RATE_LIMIT_POLICY, limit_key, push_policy, push_remainder,
    rate_limited, retry_after,
};
use crate::harden::{add_security_headers, cors_headers};
use crate::http::UNLIMITED;

/// The check of the address limit.
#[derive(Clone, Debug)]
pub(crate) struct AddressLimit {
    gateway: Gateway,
    problem: Arc<PreparedProblem>,
    /// The headers of every refusal. Those with values of their own are placeholders: to replace one costs less than to add it.
    headers: HeaderMap,
    /// The origins of other pages that may read a refusal.
    origins: HashSet<HeaderValue>,
}

impl AddressLimit {
    pub(crate) fn new(gateway: Gateway) -> Self {
        let mut policy = String::new();
        let rate = gateway.config.limits.address;
        push_policy(&mut policy, ADDRESS_POLICY, rate.quota(), rate.window());
        let mut headers = HeaderMap::new();
        insert(&mut headers, RATE_LIMIT_POLICY, policy);
        for name in [RATE_LIMIT, RETRY_AFTER, CONTENT_TYPE] {
            headers.insert(name, HeaderValue::from_static(""));
        }
        add_security_headers(&mut headers, gateway.is_https());
        let origins = gateway.config.cors_origins.iter();
        let origins: HashSet<HeaderValue> =
            origins.filter_map(|origin| HeaderValue::from_str(origin.as_str()).ok()).collect();
        if !origins.is_empty() {
            for (name, value) in cors_headers() {
                insert(&mut headers, name, value);
            }
        }
        Self { gateway, problem: Arc::new(PreparedProblem::new(rate_limited())), headers, origins }
    }

    /// Refuses a request whose address exceeds its limit. Preflight requests are answered: otherwise a page of another origin would
    /// never see the refusal, and the answer costs no work behind the router.
    pub(crate) fn refuse(&self, request: &Request) -> Option<EarlyRefusal> {
        let gateway = &self.gateway;
        let path = request.uri().path();
        if self.is_preflight(request) || UNLIMITED.iter().any(|unlimited| is_below(unlimited, path)) {
            return None;
        }
        let address = gateway.address(request);
        let key = limit_key(address);
        let state = gateway.limits.refusal(gateway.address_check(&key))?;
        gateway.record_refusal(path, ClientKey { address, key: &key }, None);
        let mut headers = self.headers(&state);
        // A browser shows the refusal to a page of another origin only with this header.
        if let Some(origin) = request.headers().get(ORIGIN).filter(|origin| self.origins.contains(*origin)) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        }
        Some(EarlyRefusal { problem: self.problem.clone(), headers })
    }

    /// Returns whether a browser asks which requests a page of another origin may send.
    fn is_preflight(&self, request: &Request) -> bool {
        let headers = request.headers();
        !self.origins.is_empty()
            && request.method() == Method::OPTIONS
            && headers.contains_key(ORIGIN)
            && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    fn headers(&self, state: &LimitState) -> HeaderMap {
        let mut headers = self.headers.clone();
        let mut remainder = String::with_capacity(64);
        push_remainder(&mut remainder, state);
        insert(&mut headers, RATE_LIMIT, remainder);
        headers.insert(RETRY_AFTER, retry_after(state.retry_after.unwrap_or_default()));
        headers
    }
}

fn insert(headers: &mut HeaderMap, name: HeaderName, text: String) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(name, value);
    }
}

/// Returns whether a path is `base` or below it.
fn is_below(base: &str, path: &str) -> bool {
    path.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
