//! Destinations with a manual clock and metrics.

use std::time::Duration;

use base::{Backoff, Clock, Timestamp};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use webhook::{Config, Destination, Error, Message, Metrics, Secrets, SendOutcome};

use crate::TIMEOUT;

pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// Sun, 06 Nov 1994 08:49:37 GMT.
pub(crate) const NOW: Timestamp = Timestamp::from_millis(784_111_777_000);

pub(crate) struct Fixture {
    pub(crate) clock: Clock,
    registry: Registry,
    metrics: Metrics,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::at(Clock::manual(NOW))
    }

    pub(crate) fn at(clock: Clock) -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        Self { clock, registry, metrics }
    }

    pub(crate) fn destination(&self, url: &str) -> Destination {
        self.try_with("shop", config(url)).unwrap()
    }

    pub(crate) fn with(&self, config: Config) -> Destination {
        self.try_with("shop", config).unwrap()
    }

    pub(crate) fn try_with(&self, name: &str, config: Config) -> Result<Destination, Error> {
        Destination::new(name, config, self.clock.clone(), self.metrics.clone())
    }

    #[track_caller]
    pub(crate) fn assert_measured(&self, line: &str) {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        assert!(text.lines().any(|one| one == line), "{line} is not in\n{text}");
    }
}

/// Returns the configuration of a destination on this machine.
pub(crate) fn config(url: &str) -> Config {
    Config {
        url: url.parse().unwrap(),
        secrets: Secrets::new([SECRET]).unwrap(),
        timeout: TIMEOUT,
        max_in_flight: 8,
        backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
        allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
    }
}

pub(crate) async fn send(destination: &Destination) -> SendOutcome {
    let id = "msg_1".parse().unwrap();
    destination.send(&Message { id: &id, body: "{}".into(), traceparent: None }).await
}

/// Sends a message that fails and returns the cause.
pub(crate) async fn refusal(destination: &Destination) -> String {
    match send(destination).await {
        SendOutcome::Failed { cause, .. } => cause,
        other => panic!("{other:?}"),
    }
}
