//! Exports how many tickets have waited for longer than their profile's `max_wait`, and how long those wait that no rule set has
//! matched.

use std::sync::{Arc, PoisonError};

use super::Inner;
use super::plugins::Profile;
use crate::model::{Moment, Ticket};

impl Profile {
    /// Returns how many of these tickets the profile admits and lets wait for longer than its `max_wait`.
    pub(crate) fn starving(&self, waiting: &[Arc<Ticket>], now: Moment) -> usize {
        let Some(max_wait) = self.max_wait else { return 0 };
        let is_starving =
            |ticket: &&Arc<Ticket>| ticket.created.age(now) > max_wait && self.admits(ticket, now);
        waiting.iter().filter(is_starving).count()
    }
}

impl Inner {
    /// Exports how many tickets starve, by profile. If more tickets wait than one fetch returns, younger ones follow in the
    /// next tick: they do not lower the count.
    pub(super) fn report_starving(&self, unmatched: &[Arc<Ticket>], is_last: bool, now: Moment) {
        let mut seen = self.starving.lock().unwrap_or_else(PoisonError::into_inner);
        // Read with the lock held, so that no count of a profile that is gone comes back.
        let active = self.active.borrow().clone();
        for profile in active.profiles.iter().filter(|profile| profile.max_wait.is_some()) {
            let seen = seen.entry(profile.name.clone()).or_default();
            *seen = profile.starving(unmatched, now).max(*seen);
            self.metrics.set_starving(&profile.name, *seen);
            if is_last {
                *seen = 0;
            }
        }
    }

    /// Exports the age of the oldest ticket that each rule set has not matched, of the tickets that the engine holds.
    pub(super) fn report_rule_ages(&self, unmatched: &[Arc<Ticket>], now: Moment) {
        // Held for the same reason as above.
        let _seen = self.starving.lock().unwrap_or_else(PoisonError::into_inner);
        let active = self.active.borrow().clone();
        for profile in active.profiles.iter().filter(|profile| profile.function.meets_all()) {
            // The oldest come first.
            let oldest = unmatched.iter().find(|ticket| profile.admits(ticket, now));
            let age = oldest.map_or(0.0, |oldest| oldest.created.age(now).as_secs_f64());
            self.metrics.set_rule_oldest_age(&profile.name, age);
        }
    }

    /// Removes what was exported of profiles that are gone or have changed. Those that are left report again in their next tick.
    pub(super) fn forget_waiting(&self) {
        let mut seen = self.starving.lock().unwrap_or_else(PoisonError::into_inner);
        self.metrics.forget_rule_oldest_ages();
        let active = self.active.borrow().clone();
        seen.retain(|name, _| {
            let stays =
                active.profiles.iter().any(|profile| profile.name == *name && profile.max_wait.is_some());
            if !stays {
                self.metrics.set_starving(name, 0);
            }
            stays
        });
    }
}
