//! Ready checks: the players of a match are asked before a server is requested (docs/adr/0032).
//!
//! An engine opens a check instead of settling a match. Any engine takes the match once everybody has accepted, and settles it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base::error::chain;
use base::id::Uuid;
use bytes::Bytes;
use futures::future::join_all;
use runtime::lifecycle::LoopError;
use runtime::{Drain, fault};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::active::ActiveProfiles;
use super::{Engine, Inner, MAX_SETTLING, Tick, until};
use crate::error::Error;
use crate::metrics::ProfileLabels;
use crate::model::{Lineup, Match, MatchId, Moment, Proposal, ReadyCheckId, Team, Ticket, TicketId};
use crate::store::{AcceptedMatch, Claim, DueChecks, NewReadyCheck, OpenOutcome};

/// How many checks one step takes or ends.
const MAX_DUE: usize = 100;
/// How often an engine looks for due checks if its profiles have none and no other engine's are open.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);

/// A match as its check keeps it. The tickets are the check's.
#[derive(Debug, Serialize, Deserialize)]
struct AskedMatch {
    match_id: String,
    profile: String,
    /// 0 in the matches of earlier versions.
    #[serde(default)]
    profile_version: i64,
    function: String,
    lineup: Option<AskedLineup>,
}

#[derive(Debug, Serialize, Deserialize)]
struct AskedLineup {
    rule_set: String,
    #[serde(default)]
    pool: String,
    version: Option<String>,
    definition: Option<(String, i64)>,
    /// The name, tickets and room of each team.
    teams: Vec<(String, Vec<String>, usize)>,
    /// The roles of the players of a ticket.
    roles: BTreeMap<String, Vec<String>>,
    /// Each region with its average latency.
    regions: Vec<(String, f64)>,
}

impl Engine {
    /// Takes the matches that everybody has accepted and settles them, and ends the checks whose time is up.
    pub async fn tick_ready_checks(&self) -> Result<Tick, Error> {
        let due = self.0.store.due_ready_checks(MAX_DUE).await?;
        Ok(self.0.settle_accepted(due).await)
    }

    /// Runs [`tick_ready_checks`](Self::tick_ready_checks) until `drain` is requested. While the matches of one step are
    /// settled, the next steps run.
    pub async fn run_ready_checks(&self, drain: Drain) -> Result<(), LoopError> {
        let mut settling = JoinSet::new();
        let mut active = self.0.active.subscribe();
        while !drain.is_requested() {
            let started = Instant::now();
            let (mut next, mut is_idle) = (self.0.config.tick, false);
            match self.0.store.due_ready_checks(MAX_DUE).await {
                Ok(due) => {
                    let is_full = due.accepted.len() + due.ended >= MAX_DUE;
                    if is_full {
                        next = Duration::ZERO;
                    } else if due.open == 0 && !active.borrow().has_ready_checks() {
                        (next, is_idle) = (IDLE_INTERVAL.max(next), true);
                    }
                    if !due.accepted.is_empty() {
                        let engine = self.0.clone();
                        settling.spawn(async move { engine.settle_accepted(due).await });
                    }
                }
                Err(error) => self.0.record_failure("", "ready_check", &chain(&error)),
            }
            while settling.try_join_next().is_some() {}
            if settling.len() >= MAX_SETTLING {
                settling.join_next().await;
            }
            let pause = drain.sleep(next.saturating_sub(started.elapsed()));
            tokio::select! {
                _ = pause => {}
                () = until(&mut active, ActiveProfiles::has_ready_checks), if is_idle => {}
            }
        }
        while settling.join_next().await.is_some() {}
        Ok(())
    }
}

impl Inner {
    /// Settles the matches of one profile, or asks their players first. Matches without players are settled.
    pub(super) async fn settle_or_ask(
        &self,
        active: &ActiveProfiles,
        profile: Arc<str>,
        matches: Vec<Match>,
        claim: Claim,
    ) -> Tick {
        let Some(time) = active.ready_check(&profile) else {
            return self.assign(active, profile, matches, claim).await;
        };
        let has_players = |match_: &Match| match_.tickets.iter().any(|ticket| !players_of(ticket).is_empty());
        let (asked, others): (Vec<Match>, Vec<Match>) = matches.into_iter().partition(has_players);
        let ask = self.ask(active, &profile, asked, claim, time);
        if others.is_empty() {
            return ask.await;
        }
        let (asked, assigned) = tokio::join!(ask, self.assign(active, profile.clone(), others, claim));
        asked.and(assigned)
    }

    /// Opens a check for each match. Releases the tickets of matches without one.
    async fn ask(
        &self,
        active: &ActiveProfiles,
        profile: &Arc<str>,
        matches: Vec<Match>,
        claim: Claim,
        time: Duration,
    ) -> Tick {
        let limit = matches_to_ask(active, profile);
        let is_throttled = limit < matches.len();
        let (matches, mut left) =
            (&matches[..limit.min(matches.len())], matches[limit.min(matches.len())..].to_vec());
        let now = Moment::from(self.clock.now());
        let check = |match_: &Match| NewReadyCheck {
            id: ReadyCheckId::generate(now),
            claim,
            tickets: match_.tickets.iter().map(|ticket| (ticket.id.clone(), players_of(ticket))).collect(),
            time,
            encoded_match: encode(match_),
        };
        let checks: Vec<NewReadyCheck> = matches.iter().map(check).collect();
        let mut failures = usize::from(is_throttled);
        match self.store.open_ready_checks(&checks).await {
            Ok(outcomes) => {
                for (match_, outcome) in matches.iter().zip(outcomes) {
                    match outcome {
                        OpenOutcome::Opened => self.metrics.ready_check_opened(profile),
                        OpenOutcome::Refused(_) | OpenOutcome::Stale(_) => {
                            if matches!(outcome, OpenOutcome::Stale(_)) {
                                self.metrics.claims_stale("ready_check", 1);
                            }
                            let labels = ProfileLabels { profile: profile.to_string() };
                            self.metrics.refused.get_or_create(&labels).inc();
                            left.push(match_.clone());
                        }
                    }
                }
                fault::point("matchmaking.asked");
            }
            Err(error) => {
                // The checks may be open. The release then changes nothing, because they have claims of their own.
                self.record_failure(profile, "ready_check", &chain(&error));
                failures += 1;
                left.extend_from_slice(matches);
            }
        }
        let left: Vec<TicketId> =
            left.iter().flat_map(|match_| &match_.tickets).map(|ticket| ticket.id.clone()).collect();
        if !left.is_empty() {
            self.release(claim, &left).await;
        }
        Tick { released: left.len(), failures, ..Tick::default() }
    }

    /// Settles matches that everybody has accepted, by the profiles of now, then closes their checks. The tickets of a profile
    /// that is gone return to their place.
    async fn settle_accepted(&self, due: DueChecks) -> Tick {
        let DueChecks { claim, accepted, .. } = due;
        if accepted.is_empty() {
            return Tick::default();
        }
        let ids: Vec<ReadyCheckId> = accepted.iter().map(|accepted| accepted.id.clone()).collect();
        let tickets: Vec<TicketId> = accepted.iter().flat_map(|accepted| accepted.tickets.clone()).collect();
        let active = self.active.borrow().clone();
        let mut tick = match self.store.read(&tickets).await {
            Ok(tickets) => {
                let tickets: HashMap<&TicketId, &Arc<Ticket>> =
                    tickets.iter().map(|ticket| (&ticket.id, ticket)).collect();
                let mut by_profile: BTreeMap<Arc<str>, Vec<Match>> = BTreeMap::new();
                for accepted in &accepted {
                    if let Some(match_) = self.match_of(accepted, &tickets) {
                        by_profile.entry(match_.profile.clone()).or_default().push(match_);
                    }
                }
                fault::point("matchmaking.accepted");
                let settling =
                    by_profile.into_iter().map(|(name, matches)| self.assign(&active, name, matches, claim));
                join_all(settling).await.into_iter().fold(Tick::default(), Tick::and)
            }
            Err(error) => {
                self.record_failure("", "ready_check", &chain(&error));
                Tick { failures: 1, ..Tick::default() }
            }
        };
        // Releases the tickets of matches that were not made.
        if let Err(error) = self.store.close_ready_checks(claim, &ids).await {
            // They are due again later, and end then.
            self.record_failure("", "ready_check", &chain(&error));
            tick.failures += 1;
        }
        tick
    }

    /// Returns the match of a check. Returns `None` if it cannot be made.
    fn match_of(
        &self,
        accepted: &AcceptedMatch,
        tickets: &HashMap<&TicketId, &Arc<Ticket>>,
    ) -> Option<Match> {
        let Some(asked) = decode(&accepted.encoded_match) else {
            tracing::error!(check = %accepted.id, "Released the tickets of a ready check whose match is unreadable");
            return None;
        };
        if accepted.times_taken == 1 {
            self.metrics.ready_check_accepted(&asked.profile, accepted.time_to_accept);
        }
        // An engine that died may have requested a server under the first id, which is given back.
        let first = asked.match_id.parse().ok().filter(|_| accepted.times_taken == 1);
        let tickets = accepted.tickets.iter().map(|id| tickets.get(id).map(|ticket| Arc::clone(ticket)));
        Some(Match {
            id: first.unwrap_or_else(MatchId::generate),
            profile: asked.profile.into(),
            profile_version: asked.profile_version,
            function: asked.function.into(),
            proposal: Proposal {
                lineup: asked.lineup.map(AskedLineup::lineup).map(Arc::new),
                ..Proposal::new(tickets.collect::<Option<_>>()?)
            },
            backfill: None,
        })
    }
}

/// Returns how many matches are worth asking for: few while the assigner fails.
fn matches_to_ask(active: &ActiveProfiles, profile: &str) -> usize {
    let Some((_, breaker)) = active.assigner(profile) else { return 0 };
    match breaker.failures() {
        (0, _) => usize::MAX,
        (_, pause) => usize::from(pause.is_zero()),
    }
}

impl Tick {
    fn and(self, other: Self) -> Self {
        Self {
            fetched: self.fetched + other.fetched,
            assigned: self.assigned + other.assigned,
            released: self.released + other.released,
            failures: self.failures + other.failures,
        }
    }
}

/// Returns the players of a ticket who are asked.
fn players_of(ticket: &Ticket) -> Vec<Uuid> {
    ticket.users().collect()
}

fn encode(match_: &Match) -> Bytes {
    let asked = AskedMatch {
        match_id: match_.id.to_string(),
        profile: match_.profile.to_string(),
        profile_version: match_.profile_version,
        function: match_.function.to_string(),
        lineup: match_.lineup.as_deref().map(AskedLineup::of),
    };
    serde_json::to_vec(&asked).unwrap_or_default().into()
}

fn decode(encoded: &[u8]) -> Option<AskedMatch> {
    serde_json::from_slice(encoded).ok()
}

impl AskedLineup {
    fn of(lineup: &Lineup) -> Self {
        let texts = |texts: &[Arc<str>]| texts.iter().map(|text| text.to_string()).collect();
        let team = |team: &Team| {
            let tickets = team.tickets.iter().map(TicketId::to_string).collect();
            (team.name.to_string(), tickets, team.open)
        };
        Self {
            rule_set: lineup.rule_set.to_string(),
            pool: lineup.pool.to_string(),
            version: lineup.version.as_ref().map(|version| version.to_string()),
            definition: lineup.definition.as_ref().map(|(name, version)| (name.to_string(), *version)),
            teams: lineup.teams.iter().map(team).collect(),
            roles: lineup.roles.iter().map(|(id, roles)| (id.to_string(), texts(roles))).collect(),
            regions: lineup.regions.iter().map(|(name, latency)| (name.to_string(), *latency)).collect(),
        }
    }

    fn lineup(self) -> Lineup {
        let team = |(name, tickets, open): (String, Vec<String>, usize)| Team {
            name: name.into(),
            tickets: tickets.iter().filter_map(|id| TicketId::parse(id)).collect(),
            open,
        };
        let roles = |(id, roles): (String, Vec<String>)| {
            Some((TicketId::parse(&id)?, roles.into_iter().map(Arc::from).collect()))
        };
        Lineup {
            rule_set: self.rule_set.into(),
            pool: self.pool.into(),
            version: self.version.map(Arc::from),
            definition: self.definition.map(|(name, version)| (name.into(), version)),
            teams: self.teams.into_iter().map(team).collect(),
            roles: self.roles.into_iter().filter_map(roles).collect(),
            regions: self.regions.into_iter().map(|(name, latency)| (name.into(), latency)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn match_is_the_same_after_its_check() {
        let id = TicketId::parse("t1").unwrap();
        let lineup = Lineup {
            rule_set: "ranked".into(),
            pool: "all".into(),
            version: Some("7".into()),
            definition: Some(("ranked-rules".into(), 3)),
            teams: vec![Team { name: "red".into(), tickets: vec![id.clone()], open: 1 }],
            roles: [(id.clone(), vec!["tank".into()])].into(),
            regions: vec![("eu".into(), 30.5)],
        };
        let ticket = Arc::new(Ticket { id, ..Ticket::default() });
        let mut proposal = Proposal::new(vec![ticket]);
        for lineup in [None, Some(Arc::new(lineup))] {
            proposal.lineup = lineup;
            let (id, proposal) = (MatchId::generate(), proposal.clone());
            let match_ = Match {
                id,
                profile: "p".into(),
                profile_version: 5,
                function: "f".into(),
                proposal,
                backfill: None,
            };
            let asked = decode(&encode(&match_)).unwrap();
            assert_eq!((asked.match_id, asked.profile), (id.to_string(), "p".to_owned()));
            assert_eq!((&*asked.function, asked.profile_version), ("f", 5));
            assert_eq!(asked.lineup.map(AskedLineup::lineup).as_ref(), match_.lineup.as_deref());
        }
        assert!(decode(b"the match").is_none());
    }
}
