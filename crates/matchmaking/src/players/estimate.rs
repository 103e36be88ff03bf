//! Estimates how much longer a player waits, from the matches that were made a short while ago.
//!
//! Every process receives every match, and remembers how long its tickets waited. A process that has just started has no
//! data, and returns no estimate.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proto::playhouse::MatchMade;

use crate::model::{Filter, Moment, Pool, Ticket, TicketId};

/// Older matches say nothing about now.
const RECENT: Duration = Duration::from_secs(900);
/// How many waiting times are remembered for a profile.
const MAX_SAMPLES: usize = 500;
/// How many profiles are remembered; Directors may name any.
const MAX_PROFILES: usize = 1_000;
/// Ids have the second of their creation only, so waiting times are this much too long in the middle case.
const HALF_A_SECOND: Duration = Duration::from_millis(500);
/// With fewer waiting times nothing is estimated.
const MIN_SAMPLES: usize = 5;
/// At least this many tickets must have waited for longer than this one. Otherwise there is too little data.
const MIN_LONGER: usize = 3;

/// How much longer a ticket probably waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitEstimate {
    /// From now on: half of the comparable tickets waited for less.
    pub seconds: u64,
    pub basis: EstimateBasis,
}

/// What an estimate is derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstimateBasis {
    /// How long the tickets of recent matches waited, of the profiles that admit the ticket.
    RecentMatches,
}

impl EstimateBasis {
    pub const fn word(self) -> &'static str {
        match self {
            Self::RecentMatches => "recent-matches",
        }
    }
}

/// How long the tickets of recent matches waited, by profile. Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecentWaits(Arc<Mutex<HashMap<String, VecDeque<Sample>>>>);

#[derive(Clone, Copy, Debug)]
struct Sample {
    made_at: Moment,
    waited: Duration,
}

impl RecentWaits {
    /// Remembers how long the tickets of these matches waited. Knows only tickets whose id says when they were created.
    pub(crate) fn add(&self, matches: &[MatchMade]) {
        let mut by_profile = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What joins a match under way has no profile.
        for match_ in matches.iter().filter(|match_| !match_.match_profile.is_empty()) {
            let is_known = by_profile.contains_key(&match_.match_profile);
            if !is_known && by_profile.len() >= MAX_PROFILES {
                continue;
            }
            let samples = by_profile.entry(match_.match_profile.clone()).or_default();
            let made_at = Moment::from_micros(match_.made_at.saturating_mul(1_000));
            for ticket in &match_.ticket_ids {
                let Some(second) = TicketId::parse(ticket).and_then(|id| id.created()) else { continue };
                let waited = second.age(made_at).saturating_sub(HALF_A_SECOND);
                samples.push_back(Sample { made_at, waited });
            }
            let surplus = samples.len().saturating_sub(MAX_SAMPLES);
            samples.drain(..surplus);
        }
    }

    /// Estimates how much longer a ticket waits that one of these profiles will match. Returns `None` if that is unknown.
    pub(super) fn estimate<'a>(
        &self,
        profiles: impl Iterator<Item = &'a str>,
        waited: Duration,
        now: Moment,
    ) -> Option<WaitEstimate> {
        let by_profile = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = profiles.filter_map(|profile| by_profile.get(profile)).flatten();
        let recent: Vec<Duration> =
            samples.filter(|sample| sample.made_at.age(now) <= RECENT).map(|sample| sample.waited).collect();
        let is_enough = recent.len() >= MIN_SAMPLES;
        // Those that waited for less say nothing about a ticket that still waits.
        let has_waited_as_long = |other: &Duration| *other + HALF_A_SECOND >= waited;
        let mut longer: Vec<Duration> = recent.into_iter().filter(has_waited_as_long).collect();
        if !is_enough || longer.len() < MIN_LONGER {
            return None;
        }
        longer.sort();
        let left = longer[longer.len() / 2].saturating_sub(waited);
        Some(WaitEstimate { seconds: left.as_secs_f64().ceil() as u64, basis: EstimateBasis::RecentMatches })
    }
}

/// Returns whether a pool admits a ticket now or after some waiting.
pub(super) fn may_admit(pool: &Pool, ticket: &Ticket, now: Moment) -> bool {
    let is_about_waiting = |filter: &&Filter| matches!(filter, Filter::MinWait(_) | Filter::MaxWait(_));
    pool.filters.iter().filter(|filter| !is_about_waiting(filter)).all(|filter| filter.admits(ticket, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_800_000_000;

    fn at(seconds: i64) -> Moment {
        Moment::from_nanos((START + seconds) * 1_000_000_000)
    }

    /// A match made at this second, of tickets that had waited for so many seconds.
    fn made(profile: &str, second: i64, waits: &[i64]) -> MatchMade {
        MatchMade {
            match_profile: profile.to_owned(),
            made_at: (START + second) * 1_000 + 500,
            ticket_ids: waits.iter().map(|wait| TicketId::generate(at(second - wait)).to_string()).collect(),
            ..Default::default()
        }
    }

    fn seconds(waits: &RecentWaits, profiles: &[&str], waited: u64, now: i64) -> Option<u64> {
        let estimate = waits.estimate(profiles.iter().copied(), Duration::from_secs(waited), at(now));
        estimate.map(|estimate| estimate.seconds)
    }

    #[test]
    fn estimate_is_the_median_of_what_those_waited_who_waited_as_long() {
        let waits = RecentWaits::default();
        waits.add(&[made("duel", 100, &[10, 20, 30, 40, 50])]);
        assert_eq!(seconds(&waits, &["duel"], 0, 101), Some(30));
        assert_eq!(seconds(&waits, &["duel"], 25, 101), Some(15));
        assert_eq!(seconds(&waits, &["duel"], 35, 101), None, "only two waited for longer");
        assert_eq!(seconds(&waits, &["other"], 0, 101), None);
        assert_eq!(seconds(&waits, &["duel"], 0, 1_100), None, "the matches are old");
    }

    #[test]
    fn too_few_matches_are_no_basis() {
        let waits = RecentWaits::default();
        waits.add(&[made("duel", 100, &[10, 10, 10, 10]), made("", 100, &[10; 20])]);
        assert_eq!(seconds(&waits, &["duel", ""], 0, 101), None);
        waits.add(&[made("team", 100, &[60])]);
        assert_eq!(seconds(&waits, &["duel", "team"], 0, 101), Some(10), "profiles count together");
    }

    #[test]
    fn tickets_whose_age_is_unknown_do_not_count_and_memory_is_bounded() {
        let waits = RecentWaits::default();
        let foreign = MatchMade { ticket_ids: vec!["cq1abc".to_owned(); 9], ..made("duel", 100, &[]) };
        waits.add(&[foreign]);
        assert_eq!(seconds(&waits, &["duel"], 0, 101), None);
        waits.add(&[made("duel", 100, &[10; 600]), made("duel", 101, &[30; 600])]);
        assert_eq!(seconds(&waits, &["duel"], 0, 101), Some(30), "the latest are kept");
        let names: Vec<MatchMade> = (0..2_000).map(|at| made(&format!("p{at}"), 100, &[1])).collect();
        waits.add(&names);
        assert_eq!(waits.0.lock().unwrap().len(), MAX_PROFILES);
    }
}
