//! What matchmaking knows of a player: the party and the tickets. Redis has both only for as long as they live.

use base::id::Uuid;
use http_server::Problem;
use screens::{Cell, Section, Table};
use serde_json::{Value, json};
use service::PlayerData;

use super::{MatchmakingConsole, tickets};
use crate::admin::problem;
use crate::model::TicketId;
use crate::parties::admin::{PartyReport, PlayerPartiesReport};

/// Returns what matchmaking knows about users.
pub(crate) fn player_data() -> Vec<PlayerData> {
    let export = |console: MatchmakingConsole, user| async move { export(&console, user).await };
    let sections = |console: MatchmakingConsole, user| async move { sections(&console, user).await };
    vec![PlayerData::new("matchmaking", export).with_sections(sections)]
}

async fn export(console: &MatchmakingConsole, user: Uuid) -> Result<Value, Problem> {
    let PlayerPartiesReport { party, invited_to } = console.admin.parties_of(user).await.map_err(problem)?;
    let mut waiting = Vec::new();
    for (id, _) in console.admin.store().player_tickets(user).await.map_err(problem)? {
        // A ticket that has just ended is no data of the player any more.
        if let Ok(report) = console.admin.show(id.as_str()).await {
            waiting.push(json!({ "ticket_id": report.summary.id, "state": report.summary.state, "ticket": report.ticket }));
        }
    }
    // Of others, only their ids: what they have entered is theirs.
    let of_player = |party: &PartyReport| {
        let own = party.members.iter().find(|member| member.user_id == user);
        json!({
            "party_id": party.party_id, "leader": party.leader.to_string(),
            "members": party.members.iter().map(|member| member.user_id.to_string()).collect::<Vec<_>>(),
            "own": own, "ticket": party.ticket,
        })
    };
    Ok(json!({
        "party": party.as_ref().map(of_player),
        "invitations": invited_to.iter().map(of_player).collect::<Vec<_>>(),
        "tickets": waiting,
    }))
}

async fn sections(console: &MatchmakingConsole, user: Uuid) -> Result<Vec<Section>, Problem> {
    let PlayerPartiesReport { party, invited_to } = console.admin.parties_of(user).await.map_err(problem)?;
    let section = match &party {
        Some(party) => party_section(party),
        None => Section::new("party", "Party").text("The player is in no party."),
    };
    let invitations = invited_to.iter().fold(section, |section, party| {
        section.text(format!("Invited to the party {} of {}.", party.party_id, party.leader))
    });
    let found = console.admin.store().player_tickets(user).await.map_err(problem)?;
    let mut table = Table::new(&["Ticket", "State", "Created"], "The player waits in no queue.");
    for (id, _) in &found {
        table.push(tickets::row(console, id).await?, []);
    }
    Ok(vec![invitations, Section::new("tickets", "Tickets").block(table)])
}

/// Shows a party: its members, and the ticket with which they wait.
pub(super) fn party_section(party: &PartyReport) -> Section {
    let mut table = Table::new(&["Member", "Name", "Search fields"], "The party has no members.");
    for member in &party.members {
        let fields = &member.fields;
        let numbers = fields.numbers.iter().map(|(name, value)| format!("{name} {value}"));
        let strings = fields.strings.iter().map(|(name, value)| format!("{name} {value}"));
        let all: Vec<String> = numbers.chain(strings).chain(fields.tags.iter().cloned()).collect();
        let cells = [
            player_cell(member.user_id),
            Cell::optional(member.name.as_deref(), Cell::text),
            Cell::text(all.join(", ")),
        ];
        table.push(cells, []);
    }
    let ticket = party.ticket.as_ref().and_then(|ticket| {
        let id = TicketId::parse(&ticket.ticket_id)?;
        Some(Cell::Many(vec![tickets::link(&id), Cell::text(&ticket.queue), tickets::state(ticket.state)]))
    });
    let invited = party.invitations.iter().map(|invitation| player_cell(invitation.user_id)).collect();
    Section::new("party", "Party")
        .facts([
            ("Party", Cell::code(&party.party_id)),
            ("Leader", player_cell(party.leader)),
            ("Last ticket", ticket.unwrap_or(Cell::None)),
            ("Invited", Cell::Many(invited)),
        ])
        .block(table)
}

/// Returns a link to the screen of a player.
pub(super) fn player_cell(user: Uuid) -> Cell {
    Cell::id(user.to_string(), format!("/console/players/{user}"))
}
