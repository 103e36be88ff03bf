//! Counts the tickets that have waited for longer than their profile's `max_wait`.

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

    /// Exports that none starves of the profiles that are gone or have no `max_wait` any more.
    pub(super) fn forget_starving(&self) {
        let mut seen = self.starving.lock().unwrap_or_else(PoisonError::into_inner);
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
