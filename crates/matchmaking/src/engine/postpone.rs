//! Postpones matches with open places while other tickets may fill them.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use super::Inner;
use crate::model::{Match, Moment, TicketId};

/// How long a match with open places waits for the tickets that this engine does not hold. Engines release tickets without a
/// match within milliseconds, or once their rules have looked at them.
const LONGEST: Duration = Duration::from_secs(1);
/// After this time a ticket that was in a postponed match counts as new.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// When the oldest ticket of each postponed match was first seen in one.
pub(super) type Postponed = HashMap<TicketId, Moment>;

impl Inner {
    /// Returns the matches to make now. While other tickets wait that this engine does not hold, a match with open places is
    /// left out for up to a second: one of them may fill it. Otherwise two engines with one ticket each would make two
    /// matches of a minimum that has fallen to one player.
    pub(super) fn postpone(&self, matches: Vec<Match>, is_complete: bool, now: Moment) -> Vec<Match> {
        let mut postponed = self.postponed.lock().unwrap_or_else(PoisonError::into_inner);
        if is_complete {
            postponed.clear();
            return matches;
        }
        if !matches.iter().any(has_open_places) {
            return matches;
        }
        postponed.retain(|_, since| since.age(now) < FORGOTTEN);
        let is_due = |match_: &Match| {
            let oldest = match_.tickets.iter().min_by_key(|ticket| (ticket.created, &ticket.id));
            !has_open_places(match_)
                || oldest.is_none_or(|oldest| {
                    postponed.entry(oldest.id.clone()).or_insert(now).age(now) >= LONGEST
                })
        };
        matches.into_iter().filter(is_due).collect()
    }
}

fn has_open_places(match_: &Match) -> bool {
    match_.lineup.as_ref().is_some_and(|lineup| lineup.teams.iter().any(|team| team.open > 0))
}
