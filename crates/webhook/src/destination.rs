//! A server that receives messages.

use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::config::show_duration;
use base::Clock;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use reqwest::Client;
use reqwest::redirect::Policy;

use crate::config::Config;
use crate::error::Error;
use crate::gate::{Gate, GateDecision};
use crate::guard::{AddressGuard, ForbiddenAddress};
use crate::message::{Message, headers};
use crate::metrics::Metrics;
use crate::response;

const USER_AGENT: &str = concat!("playhouse/", env!("CARGO_PKG_VERSION"));
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// A server that receives messages.
#[derive(Debug)]
pub struct Destination {
    name: Arc<str>,
    config: Config,
    client: Client,
    gate: Gate,
    clock: Clock,
    metrics: Metrics,
}

/// The outcome of sending a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    Delivered,
    /// No request was sent: the destination backs off, or has `max_in_flight` requests.
    Deferred {
        /// When to try again.
        wait: Duration,
    },
    /// The request failed. The destination may have processed it all the same.
    Failed {
        /// For operators.
        cause: String,
        /// The backoff that the destination asked for.
        retry_after: Option<Duration>,
        /// The actual backoff, which is at least `retry_after`.
        backoff: Duration,
    },
    /// The destination answered 410 Gone. The caller must remember not to send to it again.
    Gone {
        cause: String,
    },
}

/// The result of one request.
enum RequestResult {
    Delivered,
    Gone { cause: String },
    Failed { outcome: &'static str, cause: String, retry_after: Option<Duration> },
}

impl Destination {
    pub fn new(name: &str, config: Config, clock: Clock, metrics: Metrics) -> Result<Self, Error> {
        if !matches!(config.url.scheme(), "http" | "https") {
            return Err(Error::NotHttp);
        }
        let guard = AddressGuard::new(&config.allow_networks);
        guard.check_url(&config.url)?;
        let client = Client::builder()
            .user_agent(USER_AGENT)
            .timeout(config.timeout)
            // A proxy would connect on our behalf, and the guard could not check the address.
            .no_proxy()
            .redirect(Policy::none())
            .dns_resolver(Arc::new(guard))
            .build()
            .map_err(Error::Client)?;
        let name: Arc<str> = name.into();
        let gate = Gate::new(config.max_in_flight, config.backoff, clock.clone(), metrics.resting(&name));
        Ok(Self { name, config, client, gate, clock, metrics })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends the message once. Returns at once if the destination backs off or has `max_in_flight` requests.
    pub async fn send(&self, message: &Message<'_>) -> SendOutcome {
        let deferred = |reason, wait| {
            self.metrics.deferred(&self.name, reason);
            SendOutcome::Deferred { wait }
        };
        let permit = match self.gate.enter() {
            GateDecision::Allowed(permit) => permit,
            GateDecision::AtLimit(wait) => return deferred("full", wait),
            GateDecision::BackingOff(wait) => return deferred("resting", wait),
        };
        let start = Instant::now();
        let result = self.request(message).await;
        let duration = start.elapsed();
        let count = |outcome| self.metrics.request(&self.name, outcome, duration);
        match result {
            RequestResult::Delivered => {
                count("delivered");
                if permit.succeeded(duration) {
                    tracing::info!(destination = %self.name, "the webhook destination accepts messages again");
                }
                SendOutcome::Delivered
            }
            RequestResult::Gone { cause } => {
                count("gone");
                SendOutcome::Gone { cause }
            }
            RequestResult::Failed { outcome, cause, retry_after } => {
                count(outcome);
                let (backoff, is_first) = permit.failed(duration, retry_after);
                if is_first {
                    tracing::warn!(destination = %self.name, cause, "a request to the webhook destination failed; it backs off");
                }
                SendOutcome::Failed { cause, retry_after, backoff }
            }
        }
    }

    /// Sends a test message for an operator, even while the destination backs off. The outcome changes no backoff. Returns how long the
    /// request took; fails with the cause, such as the response of the destination.
    pub async fn test(&self, message: &Message<'_>) -> Result<Duration, String> {
        let start = Instant::now();
        match self.request(message).await {
            RequestResult::Delivered => Ok(start.elapsed()),
            RequestResult::Gone { cause } | RequestResult::Failed { cause, .. } => Err(cause),
        }
    }

    async fn request(&self, message: &Message<'_>) -> RequestResult {
        let Config { url, secrets, .. } = &self.config;
        let now = self.clock.now();
        let mut request = self
            .client
            .post(url.clone())
            .headers(headers(message.id, now, &message.body, Some(secrets)))
            .header(CONTENT_TYPE, "application/json")
            .body(message.body.clone());
        if let Some(trace) = message.traceparent.and_then(|trace| HeaderValue::from_str(trace).ok()) {
            request = request.header(TRACEPARENT, trace);
        }
        let mut answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => return self.no_response(error),
        };
        let (status, retry_after) =
            (answer.status(), response::retry_after(answer.headers(), self.clock.now()));
        // Also for a success: the connection is reused only if its response was read.
        let body = response::read(&mut answer).await;
        if status.is_success() {
            return RequestResult::Delivered;
        }
        let cause = response::cause(status, &body, url);
        if status == StatusCode::GONE {
            return RequestResult::Gone { cause };
        }
        RequestResult::Failed { outcome: "rejected", cause, retry_after }
    }

    fn no_response(&self, error: reqwest::Error) -> RequestResult {
        // The URL may contain secrets.
        let error = error.without_url();
        let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
        let (outcome, cause) =
            if let Some(forbidden) = causes.find_map(|cause| cause.downcast_ref::<ForbiddenAddress>()) {
                ("forbidden", forbidden.to_string())
            } else if error.is_timeout() {
                ("failed", format!("it did not answer within {}", show_duration(self.config.timeout)))
            } else {
                ("failed", base::error::chain(&error))
            };
        RequestResult::Failed { outcome, cause, retry_after: None }
    }
}
