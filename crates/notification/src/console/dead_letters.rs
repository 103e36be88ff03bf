//! The screens of dead letters.

use base::Code;
use http_server::Problem;
use jobs::COUNT_CAP;
use screens::{ActionLink, Block, Cell, Count, Filter, Section, Table, Tone, View};
use service::ScreenRequest;

use super::{encoded, notification_cell, parse_id, user_cell};
use crate::http::problem;
use crate::{DeadLetter, DeadLetterFilter, Notifications};

/// How many dead letters and groups are listed, and how many dead letters are grouped.
const PAGE: u32 = 50;
const MAX_GROUPS: u32 = 20;
const GROUPED: u32 = 10_001;

/// Returns the fields of the filter as the URL has them.
const FIELDS: [&str; 5] = ["kind", "destination", "user", "cause", "since"];

fn filter(request: &ScreenRequest) -> Result<DeadLetterFilter, Problem> {
    let text = |name: &str| request.query(name).map(ToOwned::to_owned);
    let since = request.query("since").map(str::parse).transpose();
    let since = since.map_err(|error: base::InvalidTime| {
        Problem::new(Code::InvalidArgument).detail(format!("since: {error}"))
    })?;
    Ok(DeadLetterFilter {
        kind: text("kind"),
        destination: text("destination"),
        user: request.query("user").map(parse_id).transpose()?,
        cause: text("cause"),
        since,
        after: request.query("after").and_then(|after| after.parse().ok()).unwrap_or_default(),
        up_to: None,
    })
}

pub(super) async fn list(notifications: Notifications, request: ScreenRequest) -> Result<View, Problem> {
    let filter = filter(&request)?;
    Ok(View::new()
        .section(groups(&notifications).await?)
        .section(letters(&notifications, &request, &filter).await?))
}

async fn groups(notifications: &Notifications) -> Result<Section, Problem> {
    let groups = notifications.group_dead_letters(GROUPED, MAX_GROUPS).await.map_err(problem)?;
    let mut table = Table::new(
        &["Kind", "Cause", "#Dead letters", "First", "Last"],
        "There are no dead letters: nothing was given up.",
    );
    for group in &groups {
        let query = format!("kind={}&cause={}", encoded(&group.kind), encoded(&group.cause));
        let bulk = |route| {
            let action = ActionLink::new(route).value("kind", &group.kind).value("cause", &group.cause);
            action.value("expected", group.count)
        };
        let cells = [
            Cell::text(&group.kind),
            Cell::link(&group.cause, format!("/console/dead-letters?{query}")),
            Cell::Count(Count::up_to(group.count, COUNT_CAP)),
            Cell::Time(group.first),
            Cell::Time(group.last),
        ];
        table.push(cells, [bulk("POST /dlq/replay"), bulk("POST /dlq/discard")]);
    }
    let section = Section::new("groups", "By cause");
    let section = match groups.is_empty() {
        true => section,
        false => section
            .text("Repair the cause first. Then replay the dead letters, or discard what nobody needs."),
    };
    Ok(section.block(table))
}

async fn letters(
    notifications: &Notifications,
    request: &ScreenRequest,
    filter: &DeadLetterFilter,
) -> Result<Section, Problem> {
    let page = notifications.dead_letters(filter, PAGE).await.map_err(problem)?;
    let whole = DeadLetterFilter { after: 0, ..filter.clone() };
    let matching = notifications.count_matching_dead_letters(&whole, COUNT_CAP).await.map_err(problem)?;
    let kinds = [
        ("", "Any kind"),
        ("event", "Event"),
        ("webhook", "Webhook"),
        ("live", "Stream"),
        ("log", "Log"),
        ("broadcast", "Broadcast"),
    ];
    let form = Filter::new("Filter")
        .choice("kind", "Kind", &kinds, request.query("kind"))
        .text("destination", "Destination", "webhook:crm", request.query("destination"))
        .text("cause", "Cause contains", "timeout", request.query("cause"))
        .text("user", "User", "the id of a user", request.query("user"))
        .text("since", "Given up since", "2026-03-01T12:00:00Z", request.query("since"));
    let mut table = Table::new(
        &["Dead letter", "Kind", "Destination", "Cause", "User", "#Attempts", "Given up"],
        "No dead letter matches.",
    );
    table.total = Some(Count::up_to(matching, COUNT_CAP));
    table.next = page.next.map(|next| format!("after={next}"));
    table.page_key = Some("after");
    for letter in &page.dead_letters {
        let cells = [
            Cell::id(letter.id.to_string(), format!("/console/dead-letters/{}", letter.id)),
            Cell::text(&letter.kind),
            Cell::code(&letter.destination),
            Cell::text(&letter.cause),
            Cell::optional(letter.user, user_cell),
            Cell::number(letter.attempts),
            Cell::Time(letter.died),
        ];
        table.push(cells, actions(letter));
    }
    let mut section = Section::new("letters", "Dead letters, the oldest first").block(form).block(table);
    if matching > 0 {
        let bulk = |route| {
            let action = ActionLink::new(route).value("expected", matching);
            FIELDS.into_iter().fold(action, |action, field| match request.query(field) {
                Some(value) => action.value(field, value),
                None => action,
            })
        };
        section = section
            .action(bulk("POST /dlq/replay").label("Replay all that match"))
            .action(bulk("POST /dlq/discard").label("Discard all that match"));
    }
    Ok(section)
}

pub(super) async fn show(notifications: Notifications, request: ScreenRequest) -> Result<View, Problem> {
    let letter = notifications.dead_letter(parse_id(request.parameter("letter"))?).await.map_err(problem)?;
    let mut facts = Section::new("state", "Given up").notice(Tone::Bad, &letter.cause).facts([
        ("Kind", Cell::text(&letter.kind)),
        ("Destination", Cell::code(&letter.destination)),
        ("Dead letter", Cell::code(letter.id.to_string())),
        ("Notification", Cell::optional(letter.notification, notification_cell)),
        ("User", Cell::optional(letter.user, user_cell)),
        ("Position in the event stream", Cell::optional(letter.stream_position, Cell::Number)),
        ("Attempts", Cell::number(letter.attempts)),
        ("Created", Cell::Time(letter.created)),
        ("Given up", Cell::Time(letter.died)),
    ]);
    facts.actions = actions(&letter);
    let payload = match serde_json::from_slice::<serde_json::Value>(&letter.payload) {
        Ok(json) => serde_json::to_string_pretty(&json).unwrap_or_default(),
        Err(_) => String::from_utf8_lossy(&letter.payload).into_owned(),
    };
    let content = Section::new("content", "Content").block(Block::Code(payload));
    Ok(View::titled(format!("Dead letter: {}", letter.destination)).section(facts).section(content))
}

fn actions(letter: &DeadLetter) -> Vec<ActionLink> {
    let action = |route| ActionLink::new(route).with("letter", letter.id);
    vec![action("POST /dlq/{letter}/replay"), action("POST /dlq/{letter}/discard")]
}
