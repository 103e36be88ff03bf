//! Tells the players of a match its id, and who plays with them.

use serde::Serialize;
use serde_json::json;

use super::rules::add;
use crate::model::{Assignment, Match, Team, Ticket};

/// The extension of every assignment with the id of the match.
const MATCH: &str = "match";
/// How many bytes of JSON a roster may have. Each ticket of the match stores it, and so does the match until it is recorded: twice
/// the square of its tickets. 16 players take 0.7 KB each. A match of 60, with 2.5 KB each, would take 300 KB.
const MAX_ROSTER: usize = 2048;
/// The fewest bytes of a ticket in a roster.
const MIN_ENTRY: usize = 16;

/// One team of a match, as its players see it. Match functions without teams make one without a name.
#[derive(Serialize)]
struct RosterTeam<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    players: Vec<String>,
    /// The tickets that name no player. The id of a ticket is enough to read it at the Open Match API, so others stay private.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tickets: Vec<&'a str>,
}

impl Assignment {
    /// Adds the id of the match, its profile, and its roster unless that is too large. What the assigner has set is kept.
    pub(super) fn add_match(&mut self, match_: &Match) {
        let mut about = json!({ "id": match_.id.to_string(), "profile": &*match_.profile });
        if match_.tickets.len() <= MAX_ROSTER / MIN_ENTRY {
            let roster = json!(roster(match_));
            if roster.to_string().len() <= MAX_ROSTER {
                about["teams"] = roster;
            }
        }
        add(&mut self.extensions, MATCH, &about);
    }
}

fn roster<'a>(match_: &'a Match) -> Vec<RosterTeam<'a>> {
    let tickets = || match_.tickets.iter().map(AsRef::as_ref);
    match match_.lineup.as_deref().filter(|lineup| !lineup.teams.is_empty()) {
        None => vec![team(None, tickets())],
        Some(lineup) => {
            let team = |Team { name, tickets: own, .. }: &'a Team| {
                team(Some(name), tickets().filter(|ticket| own.contains(&ticket.id)))
            };
            lineup.teams.iter().map(team).collect()
        }
    }
}

fn team<'a>(name: Option<&'a str>, tickets: impl Iterator<Item = &'a Ticket>) -> RosterTeam<'a> {
    let mut team = RosterTeam { name, players: Vec::new(), tickets: Vec::new() };
    for ticket in tickets {
        let before = team.players.len();
        team.players.extend(ticket.users().map(|user| user.to_string()));
        if team.players.len() == before {
            team.tickets.push(ticket.id.as_str());
        }
    }
    team
}
