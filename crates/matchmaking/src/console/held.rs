//! Tickets that are in a match which is not made yet: of a Director, or in a ready check.

use std::collections::BTreeMap;

use screens::{Cell, Section, Table};

use super::{MatchmakingConsole, tickets};
use crate::error::Error;
use crate::model::TicketId;
use crate::store::{Holder, ReadyCheck, ReadyState};

/// How many ready checks are listed.
const LISTED: usize = 50;

/// Shows which Directors and which ready checks hold tickets among `ids`. Leaves out what nothing is held by.
pub(super) async fn sections(console: &MatchmakingConsole, ids: &[TicketId]) -> Result<Vec<Section>, Error> {
    let store = console.admin.store();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let holders = store.holders(ids).await?;
    let checks = match store.has_ready_checks().await? {
        true => store.ready_states(ids).await?.states,
        false => Vec::new(),
    };
    Ok(claims(&holders).into_iter().chain(ready_checks(checks)).collect())
}

/// Counts the tickets of each Director.
fn claims(holders: &[Option<Holder>]) -> Option<Section> {
    let mut held: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for holder in holders.iter().flatten() {
        *held.entry((&holder.profile, &holder.function)).or_default() += 1;
    }
    let mut table = Table::new(&["Profile", "Match function", "#Tickets"], "");
    for ((profile, function), count) in held {
        table.push([Cell::text(profile), Cell::code(function), Cell::number(count)], []);
    }
    let about = "These tickets are in matches that a Director has fetched. They return if it assigns no server in time.";
    let section = Section::new("claims", "Held by Directors").text(about);
    (!table.rows.is_empty()).then(|| section.block(table))
}

/// Lists the matches whose players are asked whether they are ready.
fn ready_checks(states: Vec<(TicketId, ReadyState)>) -> Option<Section> {
    let mut checks: BTreeMap<String, (ReadyCheck, Vec<TicketId>)> = BTreeMap::new();
    for (ticket, state) in states {
        if let ReadyState::Open(check) = state {
            checks.entry(check.id.to_string()).or_insert_with(|| (check, Vec::new())).1.push(ticket);
        }
    }
    let mut table = Table::new(&["Answer until", "#Accepted", "#Players", "Tickets"], "");
    for (check, of_check) in checks.values().take(LISTED) {
        let cells = [
            Cell::Time(check.expires_at),
            Cell::number(check.accepted),
            Cell::number(check.players),
            Cell::Many(of_check.iter().map(tickets::link).collect()),
        ];
        table.push(cells, []);
    }
    let section = Section::new("ready", "Open ready checks");
    (!table.rows.is_empty()).then(|| section.block(table))
}
