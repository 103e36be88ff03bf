//! What backfills of rule sets keep: the seats of a match under way, and the places that are open (docs/adr/0035).

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{BackfillData, Claim};
use crate::model::{BackfillId, TicketId};

/// A match under way that a rule set fills.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub origin: RoomOrigin,
    pub teams: Vec<RoomTeam>,
}

/// What made a match under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomOrigin {
    pub match_id: String,
    pub profile: String,
    pub function: String,
    /// The pool of the profile that its tickets are from.
    pub pool: String,
    pub rule_set: String,
    pub version: Option<String>,
    /// The definition of the rule set and its version.
    pub definition: Option<(String, i64)>,
}

/// One team of a match under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomTeam {
    pub name: String,
    /// How many more players it has room for.
    pub open: usize,
}

/// The place of a ticket in a match under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    pub team: String,
    /// How many players the ticket has.
    pub size: usize,
    /// How many milliseconds the ticket had waited when it joined the match.
    pub waited: i64,
    /// Its players as the rule set reads them, in the form of the extension `players` of a ticket.
    pub players: serde_json::Value,
    /// The role of each player, if the team has roles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
}

/// A backfill that is created with its match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRoom {
    pub id: BackfillId,
    /// The encoded id and creation time.
    pub fixed: Bytes,
    pub room: Room,
    pub seats: BTreeMap<TicketId, Seat>,
}

/// A live backfill of a rule set, with everyone who is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRoom {
    pub id: BackfillId,
    pub generation: i64,
    pub room: Room,
    pub seats: BTreeMap<TicketId, Seat>,
}

/// Tickets that join a match under way.
#[derive(Clone, Debug, PartialEq)]
pub struct RoomJoin {
    pub id: BackfillId,
    /// The generation that the backfill must have.
    pub generation: i64,
    /// The claim that holds the tickets.
    pub claim: Claim,
    pub seats: Vec<(TicketId, Seat)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomOutcome {
    /// The tickets wait for the game server, under a claim of their own.
    Joined,
    /// This ticket is gone or has left matchmaking. Nothing was changed.
    Refused(TicketId),
    /// Another claim holds this ticket. Nothing was changed.
    Stale(TicketId),
    /// The backfill is gone, has expired or has another generation. Nothing was changed.
    StaleBackfill,
}

impl Room {
    pub fn open(&self) -> usize {
        self.teams.iter().map(|team| team.open).sum()
    }

    /// Takes the places of a seat.
    pub(super) fn take(&mut self, seat: &Seat) {
        if let Some(team) = self.team(seat) {
            team.open = team.open.saturating_sub(seat.size);
        }
    }

    /// Opens the places of a seat again.
    pub(super) fn leave(&mut self, seat: &Seat) {
        if let Some(team) = self.team(seat) {
            team.open += seat.size;
        }
    }

    fn team(&mut self, seat: &Seat) -> Option<&mut RoomTeam> {
        self.teams.iter_mut().find(|team| team.name == seat.team)
    }
}

impl BackfillData {
    /// Returns whether a rule set fills it, and all places are taken.
    pub fn is_full(&self) -> bool {
        self.room.as_ref().is_some_and(|room| room.open() == 0)
    }
}
