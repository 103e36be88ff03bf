//! Running matches that have room.

use screens::{Cell, Count, Section, Table};

use super::{MatchmakingConsole, time};
use crate::error::Error;
use crate::wire;

/// How many backfills are listed.
const LISTED: usize = 20;

/// Lists some backfills and how many tickets wait for each game server. The time of the last acknowledgement is left
/// out, because it would change the section every second.
pub(super) async fn list(console: &MatchmakingConsole) -> Result<Section, Error> {
    let store = console.admin.store();
    let ids = store.live_backfills().await?;
    let empty = "No game server asks for more tickets.";
    let mut table = Table::new(
        &["Backfill", "Profile", "#Open places", "#Generation", "#Waiting tickets", "Created"],
        empty,
    );
    for id in ids.iter().take(LISTED) {
        let Some(status) = store.backfill_status(id).await? else { continue };
        let backfill = wire::backfill_from_parts(&status.data);
        let created = backfill.map(|backfill| wire::backfill_filter_input(&backfill).1);
        let cells = [
            Cell::text(id.as_str()),
            // Those of Directors have neither.
            Cell::optional(status.data.room.as_ref(), |room| Cell::text(&*room.origin.profile)),
            Cell::optional(status.data.room.as_ref(), |room| Cell::number(room.open() as u64)),
            Cell::number(status.data.generation),
            Cell::number(status.waiting.len() as u64),
            Cell::optional(created, |created| Cell::Time(time(created.micros()))),
        ];
        table.push(cells, []);
    }
    table.total = Some(Count { counted: ids.len() as u64, capped: false });
    Ok(Section::new("backfills", "Running matches with room").block(table))
}
