//! Matches: a ticket is in one match, and a match has each of its players once.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{History, TicketOutcome};

/// Finds tickets in several matches, matched tickets that were cancelled, and matches whose players see different servers.
pub(super) fn doubled(history: &History) -> Vec<String> {
    let mut matches_of_ticket: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut tickets_of_match: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for notification in history.players.iter().flat_map(|player| &player.inbox) {
        let Some(id) = &notification.match_id else { continue };
        for ticket in &notification.ticket_ids {
            matches_of_ticket.entry(ticket).or_default().insert(id);
            tickets_of_match.entry(id).or_default().insert(ticket);
        }
    }
    let mut found = Vec::new();
    let mut servers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for player in &history.players {
        for ticket in &player.tickets {
            let (name, id) = (&player.name, &ticket.ticket_id);
            let matches = matches_of_ticket.get(id.as_str());
            let names = || matches.map(|matches| join(matches)).unwrap_or_default();
            match &ticket.outcome {
                _ if matches.is_some_and(|matches| matches.len() > 1) => {
                    found.push(format!("the ticket {id} of {name} is in the matches {}", names()));
                }
                TicketOutcome::Cancelled | TicketOutcome::Declined | TicketOutcome::Missed
                    if matches.is_some() =>
                {
                    let what = match ticket.outcome {
                        TicketOutcome::Declined => "declined its match",
                        TicketOutcome::Missed => "missed its ready check",
                        _ => "was cancelled",
                    };
                    found.push(format!("the ticket {id} of {name} {what} and is in the match {}", names()));
                }
                TicketOutcome::Assigned { connection } => {
                    matches.into_iter().flatten().for_each(|one| {
                        servers.entry(one).or_default().insert(connection);
                    });
                }
                _ => {}
            }
        }
    }
    let owners: BTreeMap<&str, &str> = history
        .players
        .iter()
        .flat_map(|player| {
            player.tickets.iter().map(|ticket| (ticket.ticket_id.as_str(), player.name.as_str()))
        })
        .collect();
    for (id, tickets) in &tickets_of_match {
        let mut seen = BTreeSet::new();
        let again =
            tickets.iter().filter_map(|ticket| owners.get(ticket)).find(|owner| !seen.insert(**owner));
        found.extend(
            again.map(|owner| format!("{owner} is in the match {id} with two tickets: {}", join(tickets))),
        );
    }
    let different = servers.iter().filter(|(_, servers)| servers.len() > 1);
    found.extend(
        different
            .map(|(id, servers)| format!("the players of the match {id} were sent to {}", join(servers))),
    );
    found
}

fn join(ids: &BTreeSet<&str>) -> String {
    ids.iter().copied().collect::<Vec<_>>().join(" and ")
}
