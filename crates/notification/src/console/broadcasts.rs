//! The screens of broadcasts.

use http_server::Problem;
use jobs::COUNT_CAP;
use screens::{ActionLink, Block, Cell, Count, Filter as FilterForm, Section, Table, Tone, View};
use service::ScreenRequest;
use work_queue::{Filter, State};

use super::{parse_id, state_cell};
use crate::admin::broadcasts::Draft;
use crate::http::problem;
use crate::model::derived;
use crate::{Notifications, Progress};

/// How many broadcasts are listed.
const MAX_LISTED: u32 = 50;

/// The fields of a draft in the URL.
const FIELDS: [&str; 8] =
    ["template", "language", "title", "body", "texts", "channels", "data", "expires_at"];

pub(super) async fn list(notifications: Notifications, request: ScreenRequest) -> Result<View, Problem> {
    let broadcasts = notifications.broadcasts().list(Filter::All, MAX_LISTED).await.map_err(problem)?;
    let draft = draft(&notifications, &request, broadcasts.first()).await;
    let mut table = Table::new(
        &["Broadcast", "State", "#Players who have it", "Sent", "Since, or continues", "Cause"],
        "No broadcast was sent within notification.delivery.retention. Write one above.",
    );
    for broadcast in &broadcasts {
        let title = if broadcast.title.is_empty() { "Unreadable" } else { &broadcast.title };
        let cells = [
            Cell::link(title, format!("/console/broadcasts/{}", broadcast.id)),
            state_cell(broadcast.state),
            Cell::number(broadcast.notified),
            Cell::Time(broadcast.created),
            Cell::Time(broadcast.due),
            Cell::optional(broadcast.cause.as_deref(), Cell::text),
        ];
        table.push(cells, actions(broadcast));
    }
    Ok(View::new().section(draft).section(Section::new("broadcasts", "Broadcasts").block(table)))
}

/// Shows the form of a new broadcast and, once it is filled in, its texts and the number of recipients.
async fn draft(notifications: &Notifications, request: &ScreenRequest, latest: Option<&Progress>) -> Section {
    let form = FilterForm::new("Preview")
        .text("title", "Title", "Maintenance tonight", request.query("title"))
        .text("body", "Text", "From 22:00 to 23:00 UTC", request.query("body"))
        .text("language", "Language", "en", request.query("language"))
        .text("template", "Or a template", "its name", request.query("template"))
        .text("texts", "Or texts by language", "{\"en\": {\"title\": \"Hi\"}}", request.query("texts"))
        .text("channels", "Channels", "live", request.query("channels"))
        .text("data", "Data", "{}", request.query("data"))
        .text("expires_at", "Expires", "2026-03-01T12:00:00Z", request.query("expires_at"));
    let section = Section::new("draft", "New broadcast").block(form);
    let draft = match Draft::from_query(&request.query) {
        Ok(draft) if draft.is_empty() => {
            return section.text("Fill in a title, a template or texts to see the words and who will get them. Nothing is sent yet.");
        }
        Ok(draft) => draft,
        Err(refused) => return section.notice(Tone::Bad, refused.text()),
    };
    let (message, recipients) = match draft.preview(notifications).await {
        Ok(preview) => preview,
        Err(refused) => return section.notice(Tone::Bad, refused.text()),
    };
    let mut texts = Table::new(&["Language", "Title", "Text"], "");
    for (language, text) in &message.texts {
        texts.push([Cell::code(language), Cell::text(&text.title), Cell::text(&text.body)], []);
    }
    let channels: Vec<String> = message.channels.iter().map(ToString::to_string).collect();
    let send = ActionLink::new("POST /broadcasts").value("expected", recipients);
    let send = FIELDS.into_iter().fold(send, |send, field| match request.query(field) {
        Some(value) => send.value(field, value),
        None => send,
    });
    section
        .block(Block::Figures(vec![(
            "Players who will get it".to_owned(),
            Cell::Count(Count::up_to(recipients, COUNT_CAP)),
            None,
        )]))
        .facts([("Channels, beside the inbox", Cell::text(channels.join(", ")))])
        .block(texts)
        .action(send.value("key", key(request, latest)))
}

/// Returns the idempotency key of a draft. A form that is posted twice sends one broadcast: the key changes only when another broadcast
/// was sent.
fn key(request: &ScreenRequest, latest: Option<&Progress>) -> String {
    let mut parts: Vec<&[u8]> =
        FIELDS.iter().map(|field| request.query(field).unwrap_or_default().as_bytes()).collect();
    let latest = latest.map(|latest| latest.id).unwrap_or_default();
    parts.push(latest.as_bytes());
    derived(&parts).to_string()
}

pub(super) async fn show(notifications: Notifications, request: ScreenRequest) -> Result<View, Problem> {
    let id = parse_id(request.parameter("broadcast"))?;
    let found = notifications.broadcasts().progress(id).await.map_err(problem)?;
    let found = found.ok_or_else(|| problem(crate::Error::BroadcastNotFound(id)))?;
    let due = match found.state {
        State::Pending => "Continues",
        State::InFlight => "Lease ends",
        _ => "Since",
    };
    let mut progress = Section::new("progress", "Progress").facts([
        ("State", state_cell(found.state)),
        ("Players who have it", Cell::number(found.notified)),
        ("Cause of the last interruption", Cell::optional(found.cause.as_deref(), Cell::text)),
        ("Attempts since it last made progress", Cell::number(found.attempts)),
        ("Sent", Cell::Time(found.created)),
        (due, Cell::Time(found.due)),
        ("Broadcast", Cell::code(found.id.to_string())),
    ]);
    progress.actions = actions(&found);
    let mut texts = Table::new(&["Language", "Title", "Text"], "The texts cannot be read.");
    for (language, text) in notifications.broadcasts().texts(id).await.map_err(problem)? {
        texts.push([Cell::code(language), Cell::text(text.title), Cell::text(text.body)], []);
    }
    let texts = Section::new("texts", "Words").block(texts);
    Ok(View::titled(found.title).section(progress).section(texts))
}

fn actions(broadcast: &Progress) -> Vec<ActionLink> {
    let action = |route| vec![ActionLink::new(route).with("broadcast", broadcast.id)];
    match broadcast.state {
        State::Pending | State::InFlight => action("POST /broadcasts/{broadcast}/stop"),
        State::Held | State::Failed => action("POST /broadcasts/{broadcast}/resume"),
        State::Done | State::Skipped => Vec::new(),
    }
}
