//! One ticket: its life and why it waits.

use http_server::Problem;
use screens::{ActionLink, Block, Cell, Section, Tone, View};
use service::ScreenRequest;

use super::players::player_cell;
use super::{MatchmakingConsole, time, why};
use crate::admin::{TicketState, problem};
use crate::error::Error;
use crate::model::TicketId;
use crate::wire;

pub(super) async fn show(console: MatchmakingConsole, request: ScreenRequest) -> Result<View, Problem> {
    let name = request.parameter("ticket_id");
    let (report, reasons) = console.admin.show_with_reasons(name).await.map_err(problem)?;
    let Some(id) = TicketId::parse(name) else {
        return Err(problem(Error::Invalid(format!("{name:?} is not a valid ticket id"))));
    };
    let status = console.admin.store().status(&id).await.map_err(problem)?;
    let ticket = status.found.data.as_ref().and_then(|data| wire::decode_ticket(id.clone(), data).ok());
    let created = ticket.as_ref().map(|ticket| time(ticket.created.micros()));
    let expires = ticket.as_ref().and_then(|ticket| ticket.expires);
    let pending = report.pending_since.map(|since| base::Timestamp::from_millis(since * 1_000));
    let members = ticket.iter().flat_map(|ticket| &*ticket.members).map(|user| player_cell(*user)).collect();
    let held_by = status.holder.as_ref().map_or_else(
        || Cell::optional(pending, |_| Cell::text("an engine")),
        |holder| {
            Cell::text(format!("a Director: profile {}, match function {}", holder.profile, holder.function))
        },
    );
    let mut section = Section::new("ticket", "Ticket").facts([
        ("State", state(report.summary.state)),
        ("Created", Cell::optional(created, Cell::Time)),
        ("Held by", held_by),
        ("Held since", Cell::optional(pending, Cell::Time)),
        ("Expires", Cell::optional(expires, |at| Cell::Time(time(at.micros())))),
        ("Player", Cell::optional(ticket.as_ref().and_then(|ticket| ticket.user), player_cell)),
        ("Members of the party", Cell::Many(members)),
    ]);
    section.actions = match report.summary.state {
        TicketState::Pending => vec![release(&id), delete(&id)],
        TicketState::Waiting | TicketState::Deindexed => vec![delete(&id)],
        TicketState::Assigned | TicketState::Expired => Vec::new(),
    };
    let data = report.ticket.and_then(|ticket| serde_json::to_string_pretty(&ticket).ok());
    let data = Section::new("data", "Data").block(match data {
        Some(data) => Block::Code(data),
        None => Block::Empty { text: "Its data has expired.".to_owned(), link: None },
    });
    let view = View::titled(format!("Ticket {id}")).section(section).section(why::summary(&reasons));
    let view = why::rule_sections(&reasons).into_iter().fold(view, View::section);
    Ok(view.section(data))
}

/// Returns the cells of a ticket in a list: its id, state and time of creation.
pub(super) async fn row(console: &MatchmakingConsole, id: &TicketId) -> Result<[Cell; 3], Problem> {
    let status = console.admin.store().status(id).await.map_err(problem)?;
    let created = status
        .found
        .data
        .as_ref()
        .and_then(|data| wire::decode_ticket(id.clone(), data).ok())
        .map(|ticket| time(ticket.created.micros()));
    let state = state(TicketState::of(&status));
    Ok([link(id), state, Cell::optional(created, Cell::Time)])
}

pub(super) fn link(id: &TicketId) -> Cell {
    Cell::id(id.to_string(), href(id))
}

pub(super) fn href(id: &TicketId) -> String {
    let id = percent_encoding::utf8_percent_encode(id.as_str(), percent_encoding::NON_ALPHANUMERIC);
    format!("/console/tickets/{id}")
}

pub(super) fn actions(id: &TicketId) -> [ActionLink; 1] {
    [delete(id)]
}

fn delete(id: &TicketId) -> ActionLink {
    ActionLink::new("DELETE /tickets/{ticket_id}").with("ticket_id", id)
}

fn release(id: &TicketId) -> ActionLink {
    ActionLink::new("POST /tickets/{ticket_id}/release").with("ticket_id", id)
}

pub(super) fn state(state: TicketState) -> Cell {
    match state {
        TicketState::Waiting => Cell::state(Tone::Neutral, "WAITING"),
        TicketState::Pending => Cell::state(Tone::Neutral, "PENDING"),
        TicketState::Deindexed => Cell::state(Tone::Warning, "DEINDEXED"),
        TicketState::Assigned => Cell::state(Tone::Good, "ASSIGNED"),
        TicketState::Expired => Cell::state(Tone::Warning, "EXPIRED"),
    }
}
