//! Matches under way that rule sets fill (docs/adr/0035): their backfills are created with them, and waiting tickets join them before
//! new matches are made.

use std::collections::HashSet;
use std::sync::Arc;

use base::error::chain;
use runtime::fault;

use super::active::ActiveProfiles;
use super::plugins::{Pools, Profile, ProposedJoin};
use super::propose::pools;
use super::{Inner, call};
use crate::error::Error;
use crate::model::{Assignment, BackfillId, Lineup, Match, Moment, Team, Ticket, TicketId};
use crate::store::{Claim, NewRoom, OpenRoom, Room, RoomJoin, RoomOrigin, RoomOutcome, RoomTeam, Seat};
use crate::wire;

/// How many backfills a tick reads, the oldest first.
const MAX_ROOMS: usize = 1000;
/// The largest seats of a match in bytes.
const MAX_SEATS: usize = 256 << 10;
/// The extension of an assignment that names the region of the game server.
const REGION: &str = "region";

type Seats = Vec<(TicketId, Seat)>;

/// Tickets that join a match under way, and the profile that took them.
#[derive(Debug)]
pub(super) struct TakenJoin {
    profile: Arc<str>,
    join: RoomJoin,
}

impl Inner {
    /// Finds tickets that join matches under way. Also returns the tickets that are left, and how many steps failed.
    pub(super) async fn propose_joins(
        &self,
        profiles: &[Profile],
        claim: Claim,
        tickets: Vec<Arc<Ticket>>,
        now: Moment,
    ) -> (Vec<TakenJoin>, Vec<Arc<Ticket>>, usize) {
        let filling: Vec<&Profile> = profiles.iter().filter(|profile| profile.backfill).collect();
        if filling.is_empty() {
            return (Vec::new(), tickets, 0);
        }
        let rooms = match self.open_rooms().await {
            Ok(rooms) => rooms,
            Err(error) => {
                self.record_failure("", "backfill", &chain(&error));
                return (Vec::new(), tickets, 1);
            }
        };
        let (mut joins, mut left, mut failures) = (Vec::new(), tickets, 0);
        for profile in filling {
            let is_ours =
                |room: &&OpenRoom| *room.room.origin.profile == *profile.name && room.room.open() > 0;
            let ours: Arc<[OpenRoom]> = rooms.iter().filter(is_ours).cloned().collect();
            if ours.is_empty() {
                continue;
            }
            let pools = Pools { profile: profile.name.clone(), now, pools: pools(profile, &left, now) };
            let (function, given) = (profile.function.clone(), ours.clone());
            let work = async move { function.fill(&given, &pools).await };
            let proposed = call(self.config.function_timeout, work).await;
            match proposed.and_then(|proposed| check(proposed, &ours, &left)) {
                Ok(proposed) => {
                    let joined: HashSet<&TicketId> =
                        proposed.iter().flat_map(|(_, seats)| seats).map(|(id, _)| id).collect();
                    left.retain(|ticket| !joined.contains(&ticket.id));
                    joins.extend(proposed.into_iter().map(|(room, seats)| TakenJoin {
                        profile: profile.name.clone(),
                        join: RoomJoin { id: room.id.clone(), generation: room.generation, claim, seats },
                    }));
                }
                Err(cause) => {
                    self.record_failure(&profile.name, "backfill", &cause);
                    failures += 1;
                }
            }
        }
        (joins, left, failures)
    }

    async fn open_rooms(&self) -> Result<Vec<OpenRoom>, Error> {
        let mut ids = self.store.live_backfills().await?;
        ids.truncate(MAX_ROOMS);
        if ids.is_empty() { Ok(Vec::new()) } else { self.store.open_rooms(&ids).await }
    }

    /// Adds tickets to matches under way. Releases those that cannot join.
    pub(super) async fn join(&self, joins: Vec<TakenJoin>) {
        if joins.is_empty() {
            return;
        }
        let (profiles, joins): (Vec<Arc<str>>, Vec<RoomJoin>) =
            joins.into_iter().map(|taken| (taken.profile, taken.join)).unzip();
        let outcomes = match self.store.join_rooms(&joins).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                // They may have joined. The release then changes nothing, because they have a claim of their own.
                self.record_failure("", "backfill", &chain(&error));
                Vec::new()
            }
        };
        fault::point("matchmaking.backfill.joined");
        let outcomes = outcomes.into_iter().map(Some).chain(std::iter::repeat(None));
        for ((profile, join), outcome) in profiles.iter().zip(&joins).zip(outcomes) {
            if outcome == Some(RoomOutcome::Joined) {
                self.metrics.backfill_joined(profile, join.seats.len());
                continue;
            }
            if let Some(RoomOutcome::Stale(_)) = outcome {
                self.metrics.claims_stale("backfill", 1);
            }
            tracing::debug!(backfill = %join.id, profile = &**profile, ?outcome, "Tickets did not join a match under way");
            let ids: Vec<TicketId> = join.seats.iter().map(|(id, _)| id.clone()).collect();
            self.release(join.claim, &ids).await;
        }
    }

    /// Chooses a backfill for each match with room, if the profile asks for that.
    pub(super) fn with_backfills(
        &self,
        active: &ActiveProfiles,
        profile: &str,
        matches: Vec<Match>,
    ) -> Vec<Match> {
        if active.filling(profile).is_none() {
            return matches;
        }
        let now = Moment::from(self.clock.now());
        let has_room = |match_: &Match| match_.lineup.as_ref().is_some_and(|lineup| lineup.open() > 0);
        let with_backfill = |match_: Match| Match {
            backfill: has_room(&match_).then(|| BackfillId::generate(now)),
            ..match_
        };
        matches.into_iter().map(with_backfill).collect()
    }

    /// Returns the backfill of a match. Returns none if it has none, or if its seats are too large.
    pub(super) fn new_room(
        &self,
        active: &ActiveProfiles,
        match_: &Match,
        assignment: &Assignment,
    ) -> Option<NewRoom> {
        let (id, lineup) = (match_.backfill.clone()?, match_.lineup.as_deref()?);
        let function = active.filling(&match_.profile)?;
        let now = Moment::from(self.clock.now());
        let region = assignment.extensions.get(REGION).and_then(wire::any_to_text);
        let region = region.as_deref().or_else(|| lineup.regions.first().map(|(name, _)| &**name));
        let seats = function.seats(match_, region, now)?;
        let size: usize =
            seats.values().map(|seat| serde_json::to_vec(seat).map_or(usize::MAX, |json| json.len())).sum();
        if size > MAX_SEATS {
            tracing::warn!(match_id = %match_.id, size, "Made a match without a backfill: the data of its players is too large");
            return None;
        }
        let fixed = wire::new_backfill(id.clone(), now, proto::openmatch::Backfill::default()).fixed;
        Some(NewRoom { id, fixed, room: room(match_, lineup), seats })
    }
}

/// Rejects joins that a match function must not return. Returns the backfill of each.
fn check<'a>(
    proposed: Vec<ProposedJoin>,
    rooms: &'a [OpenRoom],
    given: &[Arc<Ticket>],
) -> Result<Vec<(&'a OpenRoom, Seats)>, String> {
    let given: HashSet<&TicketId> = given.iter().map(|ticket| &ticket.id).collect();
    let (mut seen, mut filled) = (HashSet::new(), HashSet::new());
    for ProposedJoin { backfill, seats } in &proposed {
        if !filled.insert(backfill) {
            return Err(format!("filled backfill {backfill} twice"));
        }
        for (ticket, _) in seats {
            if !given.contains(ticket) || !seen.insert(ticket) {
                return Err(format!("let ticket {ticket} join, which it was not given or had used"));
            }
        }
    }
    let find = |id: &BackfillId| rooms.iter().find(|room| room.id == *id);
    let unknown = |id: &BackfillId| format!("filled backfill {id}, which it was not given");
    let known = proposed.iter().map(|join| find(&join.backfill).ok_or_else(|| unknown(&join.backfill)));
    let known: Vec<&OpenRoom> = known.collect::<Result<_, _>>()?;
    Ok(known.into_iter().zip(proposed.into_iter().map(|join| join.seats)).collect())
}

fn room(match_: &Match, lineup: &Lineup) -> Room {
    let team = |team: &Team| RoomTeam { name: team.name.to_string(), open: team.open };
    Room {
        origin: RoomOrigin {
            match_id: match_.id.to_string(),
            profile: match_.profile.to_string(),
            function: match_.function.to_string(),
            pool: lineup.pool.to_string(),
            rule_set: lineup.rule_set.to_string(),
            version: lineup.version.as_ref().map(ToString::to_string),
            definition: lineup.definition.as_ref().map(|(name, version)| (name.to_string(), *version)),
        },
        teams: lineup.teams.iter().map(team).collect(),
    }
}
