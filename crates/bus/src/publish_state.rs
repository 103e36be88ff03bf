//! Whether events get through: what metrics count, and what readiness reports.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::{Bus, Error};

/// How long nothing may get through before it is reported: an election among NATS servers takes about as long.
const GRACE: Duration = Duration::from_secs(2);
/// Publishers try again at least every second. A refusal that was not repeated for this long, and `bus.timeout` twice, is over for
/// this process: another one has published the event.
const REPEATED_WITHIN: Duration = Duration::from_secs(5);

/// Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct PublishState(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    repeated_within: Duration,
    refused: Family<ReasonLabels, Counter>,
    looked_up: Family<OutcomeLabels, Counter>,
    stuck: Mutex<Option<Stuck>>,
}

/// Nothing has been stored since then.
#[derive(Debug)]
struct Stuck {
    since: Instant,
    last_tried: Instant,
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

/// What a lookup found of an event that is published again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LookedUp {
    Stored,
    Absent,
    /// Too much was stored since.
    Unchecked,
}

impl Bus {
    /// Adds the metrics of publishing.
    pub fn register_metrics(&self, registry: &mut Registry) {
        let state = match self {
            Self::Memory(memory) => memory.state(),
            Self::Nats(nats) => &nats.state,
        };
        registry.register(
            "bus_refused",
            "Publications of an event that did not store it, by reason",
            state.0.refused.clone(),
        );
        registry.register(
            "bus_looked_up",
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

    /// Notes what became of a batch. One event that was stored shows that the bus takes events.
    pub(crate) fn note(&self, results: &[Result<(), Error>]) {
        let mut last = None;
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            self.0.refused.get_or_create(&ReasonLabels { reason: error.reason().label() }).inc();
            // An event that is itself at fault says nothing of the bus.
            if !error.is_hopeless() {
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
            *stuck = Some(Stuck { since, last_tried: now, last: last.clone() });
        }
    }

    pub(crate) fn looked_up(&self, outcome: LookedUp, events: usize) {
        let outcome = match outcome {
            LookedUp::Stored => "stored",
            LookedUp::Absent => "absent",
            LookedUp::Unchecked => "unchecked",
        };
        self.0.looked_up.get_or_create(&OutcomeLabels { outcome }).inc_by(events as u64);
    }

    /// Fails while nothing gets through.
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
        now - stuck.last_tried < self.0.repeated_within
    }

    /// A panic while it was held leaves a whole value.
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
    async fn a_bus_that_refuses_is_reported_until_one_event_is_stored() {
        let state = PublishState::new(Duration::from_secs(5));
        state.note(&[refused()]);
        assert!(state.check().is_ok(), "one refusal is no outage");
        tokio::time::advance(GRACE).await;
        state.note(&[refused(), Err(Error::Event("no subject".to_owned()))]);
        let error = state.check().unwrap_err();
        assert!(error.is_passing() && base::error::chain(&error).contains("limits exceeded"), "{error:?}");
        state.note(&[refused(), Ok(())]);
        assert!(state.check().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_that_nobody_repeats_is_over() {
        let state = PublishState::new(Duration::from_secs(5));
        state.note(&[refused()]);
        tokio::time::advance(REPEATED_WITHIN + Duration::from_secs(10)).await;
        assert!(state.check().is_ok());
        // A later one begins anew.
        state.note(&[refused()]);
        assert!(state.check().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_hopeless_event_does_not_make_the_bus_unready() {
        let state = PublishState::new(Duration::from_secs(5));
        for _ in 0..5 {
            state.note(&[Err(Error::TooLarge("2 MB".to_owned()))]);
            tokio::time::advance(GRACE).await;
        }
        assert!(state.check().is_ok());
    }
}
