//! The screen of one notification.

use base::{Code, Timestamp};
use http_server::Problem;
use screens::{Block, Cell, Section, Table, View};
use service::ScreenRequest;

use super::{parse_id, state_cell, user_cell};
use crate::http::problem;
use crate::{Notifications, store};

pub(super) async fn show(notifications: Notifications, request: ScreenRequest) -> Result<View, Problem> {
    let id = parse_id(request.parameter("notification"))?;
    let found = store::notification_by_id(&notifications.0.db, id).await;
    let found = found.map_err(|error| problem(error.into()))?;
    let deliveries = notifications.deliveries().for_notification(id).await;
    let deliveries = deliveries.map_err(|error| problem(error.into()))?;
    if found.is_none() && deliveries.is_empty() {
        let detail =
            "There is no such notification, or it and its deliveries were removed after their retention.";
        return Err(Problem::new(Code::NotFound).detail(detail));
    }
    let mut view = View::new();
    if let Some(found) = found {
        let time = |millis: Option<i64>| Cell::optional(millis, |at| Cell::Time(Timestamp::from_millis(at)));
        let title = found.texts.values().next().map(|text| text.title.clone());
        view.title = title;
        let state = Section::new("inbox", "In the inbox").facts([
            ("User", user_cell(found.user_id)),
            ("Position in the inbox", Cell::Number(found.position)),
            ("Template", Cell::text(&found.template)),
            ("Created", Cell::Time(Timestamp::from_millis(found.created_at))),
            ("Seen", time(found.seen_at)),
            ("Read", time(found.read_at)),
            ("Archived", time(found.archived_at)),
            ("Expires", time(found.expires_at)),
            ("Notification", Cell::code(id.to_string())),
        ]);
        let mut texts = Table::new(&["Language", "Title", "Text"], "It has no texts.");
        for (language, text) in &found.texts {
            texts.push([Cell::code(language), Cell::text(&text.title), Cell::text(&text.body)], []);
        }
        let data = serde_json::to_string_pretty(&found.data).unwrap_or_default();
        let words = Section::new("words", "Words").block(texts).block(Block::Code(data));
        view = view.section(state).section(words);
    }
    let mut table = Table::new(
        &["Channel", "State", "#Attempts", "Created", "Ended, or next attempt", "Cause"],
        "It goes to the inbox only, or its deliveries were removed after notification.delivery.retention.",
    );
    for (channel, item) in deliveries {
        let cells = [
            Cell::text(channel.to_string()),
            state_cell(item.state),
            Cell::number(item.attempts),
            Cell::Time(item.created),
            Cell::Time(item.due),
            Cell::optional(item.cause, Cell::Text),
        ];
        table.push(cells, []);
    }
    Ok(view.section(Section::new("deliveries", "Deliveries").block(table)))
}
