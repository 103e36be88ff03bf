//! Running matches that have room.

use http_server::Problem;
use screens::{Block, Cell, Count, Section, Table, Tone, View};
use service::ScreenRequest;

use super::{MatchmakingConsole, tickets, time};
use crate::admin::problem;
use crate::backfills::{not_found, parse};
use crate::error::Error;
use crate::model::BackfillId;
use crate::store::BackfillStatus;
use crate::wire;

/// How many backfills are listed.
const LISTED: usize = 20;

/// Lists some backfills and how many tickets wait for each game server. The time of the last acknowledgement is left
/// out, because it would change the section every second.
pub(super) async fn list(console: &MatchmakingConsole) -> Result<Section, Error> {
    let store = console.admin.store();
    let (ids, count) = store.list_backfills(LISTED).await?;
    let empty = "No game server asks for more tickets.";
    let mut table = Table::new(
        &["Backfill", "Profile", "#Open places", "#Generation", "#Waiting tickets", "Created"],
        empty,
    );
    for id in &ids {
        let Some(status) = store.backfill_status(id).await? else { continue };
        let cells = [
            Cell::id(id.as_str(), format!("/console/backfills/{id}")),
            // Those of Directors have neither.
            Cell::optional(status.data.room.as_ref(), |room| Cell::text(&*room.origin.profile)),
            Cell::optional(status.data.room.as_ref(), |room| Cell::number(room.open() as u64)),
            Cell::number(status.data.generation),
            Cell::number(status.waiting.len() as u64),
            created(&status),
        ];
        table.push(cells, []);
    }
    table.total = Some(Count { counted: count, capped: false });
    Ok(Section::new("backfills", "Running matches with room").block(table))
}

/// Shows one backfill.
pub(super) async fn show(console: MatchmakingConsole, request: ScreenRequest) -> Result<View, Problem> {
    let id = parse(request.parameter("backfill_id")).map_err(problem)?;
    let status = console.admin.store().backfill_status(&id).await.map_err(problem)?;
    let status = status.ok_or_else(|| problem(not_found(&id)))?;
    let waiting = waiting(&console, &status).await?;
    let data = wire::backfill_from_parts(&status.data);
    let data = data.and_then(|backfill| serde_json::to_string_pretty(&backfill).ok());
    let data = Section::new("data", "Data").block(match data {
        Some(data) => Block::Code(data),
        None => Block::Empty { text: "Its data cannot be read.".to_owned(), link: None },
    });
    Ok(View::titled(format!("Backfill {id}")).section(facts(&id, &status)).section(waiting).section(data))
}

fn facts(id: &BackfillId, status: &BackfillStatus) -> Section {
    let state = match status.is_expired {
        false => Cell::state(Tone::Good, "LIVE"),
        true => Cell::state(Tone::Warning, "EXPIRED"),
    };
    let section = Section::new("backfill", "Backfill").facts([
        ("Backfill", Cell::code(id.as_str())),
        ("State", state),
        ("Generation", Cell::number(status.data.generation)),
        ("Created", created(status)),
    ]);
    if !status.is_expired {
        return section;
    }
    section.notice(
        Tone::Warning,
        "Its game server did not acknowledge it in time. The next clean-up deletes it, and its tickets wait for another match.",
    )
}

/// Lists the tickets that wait for the game server.
async fn waiting(console: &MatchmakingConsole, status: &BackfillStatus) -> Result<Section, Problem> {
    let mut table = Table::new(
        &["Ticket", "State", "Created"],
        "No ticket waits for this game server. Tickets leave the list when the server acknowledges them.",
    );
    for id in status.waiting.iter().take(super::LISTED) {
        table.push(tickets::row(console, id).await?, []);
    }
    table.total = Some(Count { counted: status.waiting.len() as u64, capped: false });
    Ok(Section::new("waiting", "Waiting tickets").block(table))
}

fn created(status: &BackfillStatus) -> Cell {
    let backfill = wire::backfill_from_parts(&status.data);
    let created = backfill.map(|backfill| wire::backfill_filter_input(&backfill).1);
    Cell::optional(created, |created| Cell::Time(time(created.micros())))
}
