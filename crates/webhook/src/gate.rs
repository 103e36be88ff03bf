//! Decides when a request to a destination may be sent.
//!
//! At most `max_in_flight` requests are in flight. After a failure the destination backs off: no request is sent. After the backoff one
//! request at a time probes the destination. The first success ends the probing.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Backoff, Clock, Timestamp};
use prometheus_client::metrics::gauge::Gauge;

/// The shortest wait that is proposed when `max_in_flight` is reached.
const MIN_WAIT: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Gate {
    max_in_flight: u32,
    backoff: Backoff,
    clock: Clock,
    /// 1 from a failure to the next success.
    is_failing: Gauge,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    in_flight: u32,
    failing: Option<FailureStreak>,
    is_probing: bool,
    /// The number of backoffs so far. Requests that started before the current backoff failed for the same reason, so they do not extend
    /// it.
    backoffs: u64,
    /// The duration of the last request: a request in flight will probably end within it.
    last_duration: Duration,
}

/// The failures since the last success.
#[derive(Debug)]
struct FailureStreak {
    failures: u32,
    since: Timestamp,
    backoff: Duration,
    /// Whether the destination asked for this backoff with `Retry-After`.
    is_requested: bool,
}

/// Whether a request may be sent now. The durations say when to try again.
#[derive(Debug)]
pub(crate) enum GateDecision<'a> {
    Allowed(Permit<'a>),
    /// `max_in_flight` requests are in flight.
    AtLimit(Duration),
    BackingOff(Duration),
}

/// Permission to send one request. A permit that is dropped without a result does not count as a failure.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    gate: &'a Gate,
    /// The number of backoffs when the request started.
    backoffs: u64,
    is_probe: bool,
}

impl Gate {
    pub(crate) fn new(max_in_flight: u32, backoff: Backoff, clock: Clock, is_failing: Gauge) -> Self {
        is_failing.set(0);
        Self { max_in_flight: max_in_flight.max(1), backoff, clock, is_failing, state: Mutex::default() }
    }

    pub(crate) fn enter(&self) -> GateDecision<'_> {
        let mut state = self.state();
        let is_probe = state.failing.is_some();
        if let Some(streak) = &mut state.failing {
            let left = streak.left(self.clock.now());
            if !left.is_zero() {
                return GateDecision::BackingOff(left);
            }
            if state.is_probing {
                return GateDecision::BackingOff(self.backoff.min);
            }
        }
        if state.in_flight >= self.max_in_flight {
            return GateDecision::AtLimit(state.last_duration.min(self.backoff.min).max(MIN_WAIT));
        }
        state.in_flight += 1;
        state.is_probing |= is_probe;
        GateDecision::Allowed(Permit { gate: self, backoffs: state.backoffs, is_probe })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit<'_> {
    /// Records a success. Returns whether it ended a failure streak.
    pub(crate) fn succeeded(self, duration: Duration) -> bool {
        let mut state = self.gate.state();
        state.last_duration = duration;
        // A backoff that the destination asked for holds, even if a request that started before it succeeds.
        let stays = state
            .failing
            .as_ref()
            .is_some_and(|streak| streak.is_requested && self.backoffs != state.backoffs);
        if stays {
            return false;
        }
        self.gate.is_failing.set(0);
        state.failing.take().is_some()
    }

    /// Records a failure. `requested` is the backoff that the destination asked for. Returns the backoff, and whether a failure streak
    /// has begun.
    pub(crate) fn failed(self, duration: Duration, requested: Option<Duration>) -> (Duration, bool) {
        let (now, requested) = (self.gate.clock.now(), requested.unwrap_or_default());
        let mut state = self.gate.state();
        state.last_duration = duration;
        let started_before_backoff = self.backoffs != state.backoffs;
        let failures = match &mut state.failing {
            Some(streak) if started_before_backoff => {
                let left = streak.left(now);
                if requested > left {
                    (streak.since, streak.backoff, streak.is_requested) = (now, requested, true);
                }
                return (left.max(requested), false);
            }
            Some(streak) => streak.failures.saturating_add(1),
            None => 1,
        };
        let computed = whole_millis(self.gate.backoff.after(failures));
        let backoff = computed.max(requested);
        state.failing =
            Some(FailureStreak { failures, since: now, backoff, is_requested: requested > computed });
        state.backoffs += 1;
        self.gate.is_failing.set(1);
        (backoff, failures == 1)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        state.in_flight -= 1;
        state.is_probing &= !self.is_probe;
    }
}

impl FailureStreak {
    /// Returns the rest of the backoff. A clock that was set back does not make it longer.
    fn left(&mut self, now: Timestamp) -> Duration {
        self.since = self.since.min(now);
        self.backoff.saturating_sub(self.since.distance(now))
    }
}

/// Rounds down to the resolution of the clock, so that the backoff is over for a caller who waited for it.
fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(duration.as_millis().try_into().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3600);

    fn gate(max_in_flight: u32) -> (Gate, Clock) {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000));
        (Gate::new(max_in_flight, BACKOFF, clock.clone(), Gauge::default()), clock)
    }

    fn permit(gate: &Gate) -> Permit<'_> {
        match gate.enter() {
            GateDecision::Allowed(permit) => permit,
            other => panic!("{other:?}"),
        }
    }

    /// Asserts that the destination backs off, and returns for how long.
    fn backoff_left(gate: &Gate) -> Duration {
        match gate.enter() {
            GateDecision::BackingOff(wait) => wait,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_in_flight_are_limited() {
        let (gate, _) = gate(2);
        let (one, two) = (permit(&gate), permit(&gate));
        assert!(matches!(gate.enter(), GateDecision::AtLimit(wait) if wait == MIN_WAIT));
        one.succeeded(Duration::from_millis(300));
        let _three = permit(&gate);
        assert!(matches!(gate.enter(), GateDecision::AtLimit(wait) if wait.as_millis() == 300));
        drop(two);
        permit(&gate);
    }

    #[test]
    fn backoff_grows_with_each_failure_until_a_success() {
        let (gate, clock) = gate(8);
        for full in [1, 2, 4, 8, 16, 32, 60, 60] {
            let (backoff, is_first) = permit(&gate).failed(SECOND, None);
            assert_eq!(is_first, full == 1);
            assert_eq!(gate.is_failing.get(), 1);
            assert!((SECOND * full / 2..=SECOND * full).contains(&backoff), "{backoff:?} of {full}");
            assert_eq!(backoff_left(&gate), backoff);
            clock.advance(backoff - Duration::from_millis(1));
            assert_eq!(backoff_left(&gate), Duration::from_millis(1));
            clock.advance(Duration::from_millis(1));
        }
        assert!(permit(&gate).succeeded(SECOND));
        assert_eq!(gate.is_failing.get(), 0);
        assert!(!permit(&gate).succeeded(SECOND), "only the first success ends the streak");
        assert!(permit(&gate).failed(SECOND, None).0 <= SECOND, "counting starts again");
    }

    #[test]
    fn one_request_at_a_time_probes_after_a_backoff() {
        let (gate, clock) = gate(8);
        permit(&gate).failed(SECOND, None);
        clock.advance(SECOND);
        let probe = permit(&gate);
        assert_eq!(backoff_left(&gate), BACKOFF.min);
        drop(probe);
        let probe = permit(&gate);
        assert_eq!(backoff_left(&gate), BACKOFF.min, "a cancelled probe makes room for another");
        probe.succeeded(SECOND);
        let _many = [permit(&gate), permit(&gate), permit(&gate)];
    }

    #[test]
    fn concurrent_failures_count_once() {
        let (gate, clock) = gate(8);
        for permit in std::array::from_fn::<_, 8, _>(|_| permit(&gate)) {
            assert!(permit.failed(SECOND, None).0 <= SECOND);
        }
        clock.advance(SECOND);
        let (backoff, _) = permit(&gate).failed(SECOND, None);
        assert!((SECOND..=SECOND * 2).contains(&backoff), "{backoff:?} is the second");
    }

    #[test]
    fn requested_backoff_is_honoured() {
        let (gate, clock) = gate(8);
        let [first, second, third, early, late] = std::array::from_fn(|_| permit(&gate));
        let minute = SECOND * 60;
        assert_eq!(first.failed(SECOND, Some(minute)).0, minute);
        assert!(!early.succeeded(SECOND), "it started before the destination asked for a backoff");
        assert_eq!(second.failed(SECOND, Some(HOUR)).0, HOUR, "the longer one counts");
        assert_eq!(third.failed(SECOND, Some(SECOND)).0, HOUR);
        assert!(!late.succeeded(SECOND));
        assert_eq!(backoff_left(&gate), HOUR);
        clock.advance(HOUR);
        assert!(permit(&gate).succeeded(SECOND));
        permit(&gate);
    }

    #[test]
    fn success_in_flight_ends_the_backoff() {
        let (gate, _) = gate(8);
        let [first, second] = std::array::from_fn(|_| permit(&gate));
        first.failed(SECOND, None);
        assert!(second.succeeded(SECOND));
        permit(&gate);
    }

    #[test]
    fn late_failure_counts_after_a_success() {
        let (gate, clock) = gate(8);
        let [first, slow] = std::array::from_fn(|_| permit(&gate));
        first.failed(SECOND, None);
        clock.advance(SECOND);
        permit(&gate).succeeded(SECOND);
        assert!(slow.failed(SECOND, None).1);
        backoff_left(&gate);
    }

    #[test]
    fn clock_that_is_set_back_does_not_extend_a_backoff() {
        let mut streak = FailureStreak {
            failures: 1,
            since: Timestamp::from_millis(1_000_000),
            backoff: SECOND,
            is_requested: false,
        };
        assert_eq!(streak.left(Timestamp::from_millis(500_000)), SECOND);
        assert_eq!(streak.left(Timestamp::from_millis(501_000)), Duration::ZERO);
    }
}
