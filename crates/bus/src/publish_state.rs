//! Tracks whether the bus stores events, for the metrics and for readiness.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::{Bus, Error};

/// How long nothing may be stored before readiness reports it. An election among NATS servers takes about this long.
const GRACE: Duration = Duration::from_secs(2);
/// Publishers retry at least every second. A refusal that is not repeated for this long plus twice `bus.timeout` is over for this
/// process: another process has published the event.
const REPEATED_WITHIN: Duration = Duration::from_secs(5);

/// Whether the bus stores events. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct PublishState(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    repeated_within: Duration,
    refused: Family<ReasonLabels, Counter>,
    looked_up: Family<OutcomeLabels, Counter>,
    stuck: Mutex<Option<Stuck>>,
}

/// A period in which nothing was stored.
#[derive(Debug)]
struct Stuck {
    since: Instant,
    last_attempt: Instant,
    last: Error,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// The result of looking up an event that is published again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LookupResult {
    Stored,
    Absent,
    /// Too many events were stored since.
    Unchecked,
}

impl Bus {
    /// Registers the metrics of publishing.
    pub fn register_metrics(&self, registry: &mut Registry) {
        let state = match self {
            Self::Memory(memory) => memory.state(),
            Self::Nats(nats) => &nats.state,
        };
        registry.register(
            "playhouse_bus_refused",
            "Attempts to publish an event that did not store it, by reason",
            state.0.refused.clone(),
        );
        registry.register(
            "playhouse_bus_looked_up",
            "Events published again after the duplicate window, by whether the stream had them: stored, absent, unchecked",
            state.0.looked_up.clone(),
        );
    }
}

impl PublishState {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self(Arc::new(Inner {
            repeated_within: REPEATED_WITHIN + 2 * timeout,
            refused: Family::default(),
            looked_up: Family::default(),
            stuck: Mutex::default(),
        }))
    }

    /// Records the results of a batch. One stored event shows that the bus stores events.
    pub(crate) fn record(&self, results: &[Result<(), Error>]) {
        let mut last = None;
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            self.0.refused.get_or_create(&ReasonLabels { reason: error.reason().label() }).inc();
            // A permanent error is the event's fault and says nothing about the bus.
            if !error.is_permanent() {
                last = Some(error);
            }
        }
        let now = Instant::now();
        if results.iter().any(Result::is_ok) {
            *self.stuck() = None;
        } else if let Some(last) = last {
            let mut stuck = self.stuck();
            let before = stuck.take().filter(|stuck| self.is_repeated(stuck, now));
            let since = before.map_or(now, |stuck| stuck.since);
            *stuck = Some(Stuck { since, last_attempt: now, last: last.clone() });
        }
    }

    pub(crate) fn looked_up(&self, outcome: LookupResult, events: usize) {
        let outcome = match outcome {
            LookupResult::Stored => "stored",
            LookupResult::Absent => "absent",
            LookupResult::Unchecked => "unchecked",
        };
        self.0.looked_up.get_or_create(&OutcomeLabels { outcome }).inc_by(events as u64);
    }

    /// Fails while nothing is stored.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let now = Instant::now();
        match &*self.stuck() {
            Some(stuck) if self.is_repeated(stuck, now) && now - stuck.since >= GRACE => {
                Err(Error::Stuck { lasting: now - stuck.since, last: Box::new(stuck.last.clone()) })
            }
            _ => Ok(()),
        }
    }

    fn is_repeated(&self, stuck: &Stuck, now: Instant) -> bool {
        now - stuck.last_attempt < self.0.repeated_within
    }

    /// Ignores poisoning: a panic leaves a complete value.
    fn stuck(&self) -> MutexGuard<'_, Option<Stuck>> {
        self.0.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use base::error::Coded;

    use super::*;
    use crate::Reason;

    fn refused() -> Result<(), Error> {
        Err(Error::Refusing { reason: Reason::StorageLimit, said: "limits exceeded".to_owned() })
    }

    #[tokio::test(start_paused = true)]
    async fn refusing_bus_is_reported_until_an_event_is_stored() {
        let state = PublishState::new(Duration::from_secs(5));
        state.record(&[refused()]);
        assert!(state.check().is_ok(), "one refusal is not an outage");
        tokio::time::advance(GRACE).await;
        state.record(&[refused(), Err(Error::Event("no subject".to_owned()))]);
        let error = state.check().unwrap_err();
        assert!(error.is_transient() && base::error::chain(&error).contains("limits exceeded"), "{error:?}");
        state.record(&[refused(), Ok(())]);
        assert!(state.check().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_that_is_not_repeated_expires() {
        let state = PublishState::new(Duration::from_secs(5));
        state.record(&[refused()]);
        tokio::time::advance(REPEATED_WITHIN + Duration::from_secs(10)).await;
        assert!(state.check().is_ok());
        // A later refusal starts a new period.
        state.record(&[refused()]);
        assert!(state.check().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn permanent_error_does_not_make_the_bus_unready() {
        let state = PublishState::new(Duration::from_secs(5));
        for _ in 0..5 {
            state.record(&[Err(Error::TooLarge("2 MB".to_owned()))]);
            tokio::time::advance(GRACE).await;
        }
        assert!(state.check().is_ok());
    }
}
