//! Matches under way: what is kept of their tickets, and who joins them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rules::model::AttributeKind;
use rules::{Options, Player, Seated, Value};
use serde_json::json;

use super::{Pools, ProposedJoin, RuleFunction, millis, party_member};
use crate::model::{Match, Moment, Ticket, TicketId};
use crate::store::{OpenRoom, Seat};

impl RuleFunction {
    /// Returns the seats of a match. The players keep their roles, and only their latency to the region of the match.
    pub(super) fn seats_of(
        &self,
        match_: &Match,
        region: Option<&str>,
        now: Moment,
    ) -> BTreeMap<TicketId, Seat> {
        let Some(lineup) = match_.lineup.as_deref() else { return BTreeMap::new() };
        let teams = lineup.teams.iter().flat_map(|team| team.tickets.iter().map(|id| (id, &team.name)));
        let teams: HashMap<&TicketId, &Arc<str>> = teams.collect();
        let seat = |ticket: &Arc<Ticket>| {
            let roles = lineup.roles.get(&ticket.id).map_or(&[][..], |roles| &roles[..]);
            let mut players = self.prepare(ticket).players;
            for player in &mut players {
                player.latency.retain(|name, _| region.is_none_or(|region| **name == *region));
            }
            Some((ticket.id.clone(), self.seat(teams.get(&ticket.id)?, ticket, players, roles, now)))
        };
        match_.tickets.iter().filter_map(seat).collect()
    }

    fn seat(
        &self,
        team: &str,
        ticket: &Ticket,
        mut players: Vec<Player>,
        roles: &[Arc<str>],
        now: Moment,
    ) -> Seat {
        if let Some(attribute) = self.rules.role_attribute.map(|at| &self.rules.attributes[at]) {
            for (player, role) in players.iter_mut().zip(roles) {
                let role = match attribute.kind {
                    AttributeKind::Text => Value::Text(role.clone()),
                    _ => Value::TextList(vec![role.clone()]),
                };
                player.attributes.insert(attribute.name.clone(), role);
            }
        }
        Seat {
            team: team.to_owned(),
            size: players.len(),
            waited: ticket.created.age(now).as_millis().try_into().unwrap_or(i64::MAX),
            players: players.iter().map(player_to_json).collect(),
            roles: roles.iter().map(ToString::to_string).collect(),
        }
    }

    /// Finds tickets that join matches under way, in one pool after the other. A ticket that is in two pools is used once.
    pub(super) fn find_joins(&self, rooms: &[OpenRoom], pools: &Pools) -> Vec<ProposedJoin> {
        let (mut joins, mut taken) = (Vec::new(), HashSet::new());
        for (pool, tickets) in &pools.pools {
            let rooms: Vec<&OpenRoom> =
                rooms.iter().filter(|room| room.room.origin.pool == pool.name).collect();
            let free: Vec<&Arc<Ticket>> =
                tickets.iter().filter(|ticket| !taken.contains(&ticket.id)).collect();
            if rooms.is_empty() || free.is_empty() {
                continue;
            }
            let mut prepared: Vec<rules::Ticket> = free.iter().map(|ticket| self.prepare(ticket)).collect();
            let mut under_way = Vec::with_capacity(rooms.len());
            for room in &rooms {
                let seated =
                    |(at, seat): (usize, &Seat)| Seated { team: seat.team.as_str().into(), ticket: at };
                under_way.push((prepared.len()..).zip(room.seats.values()).map(seated).collect());
                prepared.extend(room.seats.iter().map(|(id, seat)| seated_ticket(id, seat, pools.now)));
            }
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let options = Options { patience: self.patience, turn, ..Options::default() };
            for join in self.rules.find_joins(&under_way, &prepared, millis(pools.now), options) {
                let lineup = self.seats_in(&join.lineup, &free, &prepared, pools.now);
                taken.extend(lineup.iter().map(|(id, _)| id.clone()));
                joins.push(ProposedJoin { backfill: rooms[join.under_way].id.clone(), seats: lineup });
            }
        }
        joins
    }

    /// Returns the seats of the tickets that are new in a lineup: the first ones of the prepared tickets.
    fn seats_in(
        &self,
        lineup: &rules::Match,
        free: &[&Arc<Ticket>],
        prepared: &[rules::Ticket],
        now: Moment,
    ) -> Vec<(TicketId, Seat)> {
        let region = lineup.regions.first().map(|(name, _)| name.clone());
        let mut seats = Vec::new();
        for team in &lineup.teams {
            let mut roles = team.roles.iter().cloned();
            for at in &team.tickets {
                let own: Vec<Arc<str>> = roles.by_ref().take(prepared[*at].players.len()).collect();
                let Some(ticket) = free.get(*at) else { continue };
                let mut players = prepared[*at].players.clone();
                for player in &mut players {
                    player.latency.retain(|name, _| region.as_ref().is_none_or(|region| name == region));
                }
                seats.push((ticket.id.clone(), self.seat(&team.name, ticket, players, &own, now)));
            }
        }
        seats
    }
}

/// Returns the ticket of a seat as the matcher sees it: it has waited as long as when it joined.
fn seated_ticket(id: &TicketId, seat: &Seat, now: Moment) -> rules::Ticket {
    let ticket = Ticket { id: id.clone(), ..Ticket::default() };
    let players = seat.players.as_array().into_iter().flatten().enumerate();
    let players = players.map(|(at, player)| party_member(&ticket, at, player, &Player::default()));
    rules::Ticket {
        id: id.as_str().into(),
        created: millis(now).saturating_sub(seat.waited),
        players: players.collect(),
    }
}

fn player_to_json(player: &Player) -> serde_json::Value {
    let attributes = player.attributes.iter().map(|(name, value)| (name.to_string(), value_to_json(value)));
    let attributes: serde_json::Map<String, serde_json::Value> = attributes.collect();
    let latency: BTreeMap<&str, f64> = player.latency.iter().map(|(name, value)| (&**name, *value)).collect();
    json!({ "id": &*player.id, "attributes": attributes, "latency": latency })
}

fn value_to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Number(number) => json!(number),
        Value::Text(text) => json!(&**text),
        Value::TextList(texts) => texts.iter().map(|text| json!(&**text)).collect(),
        Value::NumberMap(entries) => {
            json!(entries.iter().map(|(name, value)| (&**name, *value)).collect::<BTreeMap<&str, f64>>())
        }
    }
}
