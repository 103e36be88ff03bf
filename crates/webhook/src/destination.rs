//! Somebody who is sent messages.

use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::config::show_duration;
use base::Clock;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use reqwest::Client;
use reqwest::redirect::Policy;

use crate::answer;
use crate::config::Config;
use crate::error::Error;
use crate::gate::{Entry, Gate};
use crate::guard::{Forbidden, Guard};
use crate::message::{Message, headers};
use crate::metrics::Metrics;

const USER_AGENT: &str = concat!("playhouse/", env!("CARGO_PKG_VERSION"));
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Somebody who is sent messages.
#[derive(Debug)]
pub struct Destination {
    name: Arc<str>,
    config: Config,
    client: Client,
    gate: Gate,
    clock: Clock,
    metrics: Metrics,
}

/// What came of sending a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    Delivered,
    /// Nothing was sent: the destination rests, or has as many requests as it may have.
    NotNow {
        wait: Duration,
    },
    /// It was tried in vain. The destination may have taken it all the same.
    Refused {
        /// For operators.
        cause: String,
        /// How long the destination has asked to be left alone.
        retry_after: Option<Duration>,
        /// How long it is left alone, which is no less.
        rest: Duration,
    },
    /// It wants no messages any more (status 410). To remember that is for the caller.
    Gone {
        cause: String,
    },
}

/// What an answer means.
enum Verdict {
    Delivered,
    Gone { cause: String },
    Failed { kind: &'static str, cause: String, retry_after: Option<Duration> },
}

impl Destination {
    pub fn new(name: &str, config: Config, clock: Clock, metrics: Metrics) -> Result<Self, Error> {
        if !matches!(config.url.scheme(), "http" | "https") {
            return Err(Error::NotHttp);
        }
        let guard = Guard::new(&config.allow_networks);
        guard.judge_url(&config.url)?;
        let client = Client::builder()
            .user_agent(USER_AGENT)
            .timeout(config.timeout)
            // A proxy would connect for us, to whatever it likes.
            .no_proxy()
            .redirect(Policy::none())
            .dns_resolver(Arc::new(guard))
            .build()
            .map_err(Error::Client)?;
        let name: Arc<str> = name.into();
        let gate = Gate::new(config.max_in_flight, config.rest, clock.clone(), metrics.resting(&name));
        Ok(Self { name, config, client, gate, clock, metrics })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends the message once, unless the destination rests or is busy, which is said at once.
    pub async fn send(&self, message: &Message<'_>) -> Sent {
        let put_off = |reason, wait| {
            self.metrics.put_off(&self.name, reason);
            Sent::NotNow { wait }
        };
        let permit = match self.gate.enter() {
            Entry::Free(permit) => permit,
            Entry::Full(wait) => return put_off("full", wait),
            Entry::Resting(wait) => return put_off("resting", wait),
        };
        let start = Instant::now();
        let verdict = self.ask(message).await;
        let took = start.elapsed();
        let counted = |outcome| self.metrics.request(&self.name, outcome, took);
        match verdict {
            Verdict::Delivered => {
                counted("delivered");
                if permit.succeeded(took) {
                    tracing::info!(destination = %self.name, "the webhook takes messages again");
                }
                Sent::Delivered
            }
            Verdict::Gone { cause } => {
                counted("gone");
                Sent::Gone { cause }
            }
            Verdict::Failed { kind, cause, retry_after } => {
                counted(kind);
                let (rest, is_news) = permit.failed(took, retry_after);
                if is_news {
                    tracing::warn!(destination = %self.name, cause, "the webhook failed and rests");
                }
                Sent::Refused { cause, retry_after, rest }
            }
        }
    }

    async fn ask(&self, message: &Message<'_>) -> Verdict {
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
            Err(error) => return self.unanswered(error),
        };
        let (status, retry_after) =
            (answer.status(), answer::retry_after(answer.headers(), self.clock.now()));
        // That of a success as well: the connection is used again when its answer has been read.
        let body = answer::read(&mut answer).await;
        if status.is_success() {
            return Verdict::Delivered;
        }
        let cause = answer::cause(status, &body, url);
        if status == StatusCode::GONE {
            return Verdict::Gone { cause };
        }
        Verdict::Failed { kind: "rejected", cause, retry_after }
    }

    fn unanswered(&self, error: reqwest::Error) -> Verdict {
        // The URL may hold secrets.
        let error = error.without_url();
        let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
        let (kind, cause) =
            if let Some(forbidden) = causes.find_map(|cause| cause.downcast_ref::<Forbidden>()) {
                ("forbidden", forbidden.to_string())
            } else if error.is_timeout() {
                ("failed", format!("it did not answer within {}", show_duration(self.config.timeout)))
            } else {
                ("failed", base::error::chain(&error))
            };
        Verdict::Failed { kind, cause, retry_after: None }
    }
}
