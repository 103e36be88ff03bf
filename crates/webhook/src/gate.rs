//! When a destination may be asked.
//!
//! It has so many places, and after a failure it rests. When it has rested, one request at a time goes to see whether it is back;
//! when one succeeds, everybody may go again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::{Backoff, Clock, Timestamp};
use prometheus_client::metrics::gauge::Gauge;

/// The least time to wait for a place.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Gate {
    places: u32,
    rest: Backoff,
    clock: Clock,
    resting: Gauge,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: u32,
    trouble: Option<Trouble>,
    is_probing: bool,
    /// Which rest is the present one. What set out before it failed with what began it, and not once more.
    round: u64,
    /// How long the last request took: a place will be free by then.
    took: Duration,
}

/// It failed and has not succeeded since.
#[derive(Debug)]
struct Trouble {
    failures: u32,
    since: Timestamp,
    rest: Duration,
    /// Whether the destination itself has asked for this rest.
    is_asked_for: bool,
}

/// Whether a request may be made.
#[derive(Debug)]
pub(crate) enum Entry<'a> {
    Free(Permit<'a>),
    /// All places are taken.
    Full(Duration),
    Resting(Duration),
}

/// A place for a request. One that is dropped without a verdict says nothing of the destination.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    gate: &'a Gate,
    round: u64,
    is_probe: bool,
}

impl Gate {
    pub(crate) fn new(places: u32, rest: Backoff, clock: Clock, resting: Gauge) -> Self {
        resting.set(0);
        Self { places: places.max(1), rest, clock, resting, state: Mutex::default() }
    }

    pub(crate) fn enter(&self) -> Entry<'_> {
        let mut state = self.state();
        let is_probe = state.trouble.is_some();
        if let Some(trouble) = &mut state.trouble {
            let left = trouble.left(self.clock.now());
            if !left.is_zero() {
                return Entry::Resting(left);
            }
            if state.is_probing {
                return Entry::Resting(self.rest.min);
            }
        }
        if state.taken >= self.places {
            return Entry::Full(state.took.min(self.rest.min).max(SHORTEST_WAIT));
        }
        state.taken += 1;
        state.is_probing |= is_probe;
        Entry::Free(Permit { gate: self, round: state.round, is_probe })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit<'_> {
    /// The destination has done well. Says whether that is news.
    pub(crate) fn succeeded(self, took: Duration) -> bool {
        let mut state = self.gate.state();
        state.took = took;
        // What it asked for holds, whatever becomes of requests that were on their way.
        let stays = state.trouble.as_ref().is_some_and(|now| now.is_asked_for && self.round != state.round);
        if stays {
            return false;
        }
        self.gate.resting.set(0);
        state.trouble.take().is_some()
    }

    /// The destination has failed, and asks for so much time. Returns how long it rests, and whether that is news.
    pub(crate) fn failed(self, took: Duration, asked: Option<Duration>) -> (Duration, bool) {
        let (now, asked) = (self.gate.clock.now(), asked.unwrap_or_default());
        let mut state = self.gate.state();
        state.took = took;
        let is_of_this_round = self.round == state.round;
        let failures = match &mut state.trouble {
            Some(trouble) if !is_of_this_round => {
                let left = trouble.left(now);
                if asked > left {
                    (trouble.since, trouble.rest, trouble.is_asked_for) = (now, asked, true);
                }
                return (left.max(asked), false);
            }
            Some(trouble) => trouble.failures.saturating_add(1),
            None => 1,
        };
        let by_itself = whole_millis(self.gate.rest.after(failures));
        let rest = by_itself.max(asked);
        state.trouble = Some(Trouble { failures, since: now, rest, is_asked_for: asked > by_itself });
        state.round += 1;
        self.gate.resting.set(1);
        (rest, failures == 1)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        state.taken -= 1;
        state.is_probing &= !self.is_probe;
    }
}

impl Trouble {
    /// How much of the rest is left. A clock that was set back does not make it longer.
    fn left(&mut self, now: Timestamp) -> Duration {
        self.since = self.since.min(now);
        self.rest.saturating_sub(self.since.distance(now))
    }
}

/// As the clock counts: whoever waits for so long finds the rest over.
fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(duration.as_millis().try_into().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3600);

    fn gate(places: u32) -> (Gate, Clock) {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000));
        (Gate::new(places, REST, clock.clone(), Gauge::default()), clock)
    }

    fn permit(gate: &Gate) -> Permit<'_> {
        match gate.enter() {
            Entry::Free(permit) => permit,
            other => panic!("{other:?}"),
        }
    }

    fn rests(gate: &Gate) -> Duration {
        match gate.enter() {
            Entry::Resting(wait) => wait,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_has_so_many_places() {
        let (gate, _) = gate(2);
        let (one, two) = (permit(&gate), permit(&gate));
        assert!(matches!(gate.enter(), Entry::Full(wait) if wait == SHORTEST_WAIT));
        one.succeeded(Duration::from_millis(300));
        let _three = permit(&gate);
        assert!(matches!(gate.enter(), Entry::Full(wait) if wait.as_millis() == 300));
        drop(two);
        permit(&gate);
    }

    #[test]
    fn it_rests_for_longer_each_time_until_it_succeeds() {
        let (gate, clock) = gate(8);
        for full in [1, 2, 4, 8, 16, 32, 60, 60] {
            let (rest, is_news) = permit(&gate).failed(SECOND, None);
            assert_eq!(is_news, full == 1);
            assert_eq!(gate.resting.get(), 1);
            assert!((SECOND * full / 2..=SECOND * full).contains(&rest), "{rest:?} of {full}");
            assert_eq!(rests(&gate), rest);
            clock.advance(rest - Duration::from_millis(1));
            assert_eq!(rests(&gate), Duration::from_millis(1));
            clock.advance(Duration::from_millis(1));
        }
        assert!(permit(&gate).succeeded(SECOND));
        assert_eq!(gate.resting.get(), 0);
        assert!(!permit(&gate).succeeded(SECOND), "no news any more");
        assert!(permit(&gate).failed(SECOND, None).0 <= SECOND, "as for the first time");
    }

    #[test]
    fn after_a_rest_one_at_a_time_goes() {
        let (gate, clock) = gate(8);
        permit(&gate).failed(SECOND, None);
        clock.advance(SECOND);
        let probe = permit(&gate);
        assert_eq!(rests(&gate), REST.min);
        drop(probe);
        let probe = permit(&gate);
        assert_eq!(rests(&gate), REST.min, "a probe that was given up makes room for another");
        probe.succeeded(SECOND);
        let _many = [permit(&gate), permit(&gate), permit(&gate)];
    }

    #[test]
    fn those_who_fail_together_have_failed_once() {
        let (gate, clock) = gate(8);
        for permit in std::array::from_fn::<_, 8, _>(|_| permit(&gate)) {
            assert!(permit.failed(SECOND, None).0 <= SECOND);
        }
        clock.advance(SECOND);
        let (rest, _) = permit(&gate).failed(SECOND, None);
        assert!((SECOND..=SECOND * 2).contains(&rest), "{rest:?} is the second");
    }

    #[test]
    fn what_it_asks_for_is_given() {
        let (gate, clock) = gate(8);
        let [first, second, third, early, late] = std::array::from_fn(|_| permit(&gate));
        let minute = SECOND * 60;
        assert_eq!(first.failed(SECOND, Some(minute)).0, minute);
        assert!(!early.succeeded(SECOND), "it was on its way before it asked");
        assert_eq!(second.failed(SECOND, Some(HOUR)).0, HOUR, "the longer one counts");
        assert_eq!(third.failed(SECOND, Some(SECOND)).0, HOUR);
        assert!(!late.succeeded(SECOND));
        assert_eq!(rests(&gate), HOUR);
        clock.advance(HOUR);
        assert!(permit(&gate).succeeded(SECOND));
        permit(&gate);
    }

    #[test]
    fn whoever_succeeds_meanwhile_ends_the_rest() {
        let (gate, _) = gate(8);
        let [first, second] = std::array::from_fn(|_| permit(&gate));
        first.failed(SECOND, None);
        assert!(second.succeeded(SECOND));
        permit(&gate);
    }

    #[test]
    fn one_that_fails_late_counts_if_all_was_well_by_then() {
        let (gate, clock) = gate(8);
        let [first, slow] = std::array::from_fn(|_| permit(&gate));
        first.failed(SECOND, None);
        clock.advance(SECOND);
        permit(&gate).succeeded(SECOND);
        assert!(slow.failed(SECOND, None).1);
        rests(&gate);
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_prolong_a_rest() {
        let mut trouble = Trouble {
            failures: 1,
            since: Timestamp::from_millis(1_000_000),
            rest: SECOND,
            is_asked_for: false,
        };
        assert_eq!(trouble.left(Timestamp::from_millis(500_000)), SECOND);
        assert_eq!(trouble.left(Timestamp::from_millis(501_000)), Duration::ZERO);
    }
}
