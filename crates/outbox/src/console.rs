//! The screens of the outbox: the pipeline, and one event.

use base::Code;
use base::id::Uuid;
use http_server::Problem;
use jobs::COUNT_CAP;
use screens::{ActionLink, Block, Cell, Count, Filter as FilterForm, Link, Section, Table, Tone, View};
use service::{Menu, Screen, ScreenRequest};
use work_queue::{Filter, ItemView, PageKey, State};

use crate::admin::{OutboxAdmin, content, internal, state_word};
use crate::bulk::FailedEvents;
use crate::{Outbox, event};

/// How many events a page lists, and how many rows it reads at most to find them.
const PAGE: usize = 50;
const SCANNED: u32 = 500;
/// How many causes and blocked keys are shown, and up to which number the events behind a key are counted.
const MAX_CAUSES: u32 = 20;
const MAX_BLOCKED: u32 = 20;
const WAITING_CAP: u64 = 1_000;

pub(crate) fn screens() -> Vec<Screen> {
    const QUESTION: &str = "What is not published, which key blocks, what failed and why?";
    vec![
        Screen::listed(Menu::Events, "/console/pipeline", "Pipeline", QUESTION, pipeline),
        Screen::linked("/console/pipeline/{event}", "Event", "Was this event published?", one),
    ]
}

/// What the operator wants to see, from the URL.
struct Selection {
    state: Option<String>,
    failed: FailedEvents,
    after: Option<PageKey>,
}

impl Selection {
    fn new(request: &ScreenRequest) -> Self {
        let text = |name: &str| request.query(name).map(ToOwned::to_owned);
        Self {
            state: text("state"),
            failed: FailedEvents {
                cause: text("cause"),
                kind: text("kind"),
                key: text("key"),
                since: text("since"),
                until: text("until"),
            },
            after: request.query("after").and_then(PageKey::parse),
        }
    }

    fn filter(&self) -> Filter {
        match self.state.as_deref() {
            Some("open") => Filter::Open,
            Some("published") => Filter::Done,
            Some("failed") => Filter::Failed,
            Some("skipped") => Filter::Skipped,
            // A cause is that of a failure.
            _ if self.failed.cause.is_some() => Filter::Failed,
            _ => Filter::All,
        }
    }

    fn matches(&self, item: &ItemView) -> bool {
        let FailedEvents { cause, kind, key, .. } = &self.failed;
        let has =
            |wanted: &Option<String>, is_met: &dyn Fn(&str) -> bool| wanted.as_deref().is_none_or(is_met);
        has(cause, &|cause| item.cause.as_deref().is_some_and(|own| own.contains(cause)))
            && has(kind, &|kind| kind_of(item).as_deref() == Some(kind))
            && has(key, &|key| item.key == key)
    }

    /// Adds the filter as values of an action's form.
    fn fill(&self, action: ActionLink) -> ActionLink {
        let FailedEvents { cause, kind, key, since, until } = &self.failed;
        let fields = [("cause", cause), ("kind", kind), ("key", key), ("since", since), ("until", until)];
        fields.into_iter().fold(action, |action, (name, value)| match value {
            Some(value) => action.value(name, value),
            None => action,
        })
    }
}

async fn pipeline(admin: OutboxAdmin, request: ScreenRequest) -> Result<View, Problem> {
    let outbox = &admin.outbox;
    let selection = Selection::new(&request);
    Ok(View::new()
        .section(now(outbox).await.map_err(internal)?)
        .section(causes(outbox).await.map_err(internal)?)
        .section(blocked(outbox).await.map_err(internal)?)
        .section(events(outbox, &selection).await?))
}

async fn now(outbox: &Outbox) -> Result<Section, db::Error> {
    let queue = outbox.queue();
    let open = queue.count(Filter::Open, COUNT_CAP).await?;
    let failed = queue.count(Filter::Failed, COUNT_CAP).await?;
    let oldest = queue.list(Filter::Open, 1).await?.pop();
    let figure = |name: &str, value, href: &str| (name.to_owned(), value, Some(href.to_owned()));
    let count = |count| Cell::Count(Count::up_to(count, COUNT_CAP));
    let section = Section::new("now", "Now").block(Block::Figures(vec![
        figure("Not published", count(open), "/console/pipeline?state=open"),
        figure(
            "Next in line since",
            Cell::optional(oldest, |item| Cell::Time(item.created)),
            "/console/pipeline?state=open",
        ),
        figure("Failed", count(failed), "/console/pipeline?state=failed"),
    ]));
    Ok(match failed {
        0 => section.notice(Tone::Good, "No event has failed."),
        _ => section.notice(
            Tone::Bad,
            "Failed events block the later events of their keys. Repair the cause, then retry them.",
        ),
    })
}

async fn causes(outbox: &Outbox) -> Result<Section, db::Error> {
    let newest = u32::try_from(COUNT_CAP + 1).unwrap_or(u32::MAX);
    let groups = outbox.queue().causes(newest, MAX_CAUSES).await?;
    let mut table = Table::new(&["Cause", "#Events", "First", "Last"], "No event has failed.");
    for group in groups {
        let cause = group.cause.unwrap_or_default();
        let bulk = |route| {
            let action = ActionLink::new(route).value("expected", group.items);
            if cause.is_empty() { action } else { action.value("cause", &cause) }
        };
        let href = format!("/console/pipeline?state=failed&cause={}", encoded(&cause));
        let cells = [
            Cell::link(if cause.is_empty() { "unknown" } else { &cause }, href),
            Cell::Count(Count::up_to(group.items, COUNT_CAP)),
            Cell::Time(group.first),
            Cell::Time(group.last),
        ];
        table.push(
            cells,
            [bulk("POST /outbox/retry").label("Retry"), bulk("POST /outbox/skip").label("Skip")],
        );
    }
    Ok(Section::new("causes", "Failed, by cause").block(table))
}

async fn blocked(outbox: &Outbox) -> Result<Section, db::Error> {
    let queue = outbox.queue();
    let mut table = Table::new(
        &["Key", "First event", "Cause", "Since", "#Waiting behind it"],
        "No key is blocked: every key can publish its next event.",
    );
    for item in queue.list(Filter::Failed, MAX_BLOCKED).await? {
        let waiting = queue.count_behind(&item, WAITING_CAP).await?;
        let cells = [
            Cell::link(&item.key, format!("/console/pipeline?key={}", encoded(&item.key))),
            event_link(&item),
            Cell::optional(item.cause.as_deref(), Cell::text),
            Cell::Time(item.due),
            Cell::Count(Count::up_to(waiting, WAITING_CAP)),
        ];
        table.push(cells, actions(&item));
    }
    Ok(Section::new("blocked", "Blocked keys, the longest first").block(table))
}

async fn events(outbox: &Outbox, selection: &Selection) -> Result<Section, Problem> {
    let (queue, filter) = (outbox.queue(), selection.filter());
    let state = selection.state.as_deref().or((filter == Filter::Failed).then_some("failed"));
    let choices = [
        ("", "Any state"),
        ("open", "Not published"),
        ("failed", "Failed"),
        ("published", "Published"),
        ("skipped", "Skipped"),
    ];
    let FailedEvents { cause, kind, key, since, until } = &selection.failed;
    let form = FilterForm::new("Filter")
        .choice("state", "State", &choices, state)
        .text("cause", "Cause contains", "too large", cause.as_deref())
        .text("kind", "Type", "playhouse.entitlement.granted.v1", kind.as_deref())
        .text("key", "Ordering key", "the id of an account", key.as_deref())
        .text("since", "Since", "2026-03-01T12:00:00Z", since.as_deref())
        .text("until", "Until", "2026-03-01T13:00:00Z", until.as_deref());
    let (rows, next) = page(outbox, selection).await.map_err(internal)?;
    let mut table = Table::new(
        &["Event", "Type", "State", "Key", "Appended", "In this state since, or due", "#Attempts", "Cause"],
        "No event matches. Published events are removed after outbox.retention.",
    );
    (table.next, table.page_key) = (next, Some("after"));
    for item in &rows {
        let cells = [
            event_link(item),
            Cell::optional(kind_of(item), Cell::text),
            state_cell(item.state),
            Cell::code(&item.key),
            Cell::Time(item.created),
            Cell::Time(item.due),
            Cell::number(item.attempts),
            Cell::optional(item.cause.as_deref(), Cell::text),
        ];
        table.push(cells, actions(item));
    }
    let mut section = Section::new("events", "Events").block(form);
    let invalid = |detail: String| Problem::new(Code::InvalidArgument).detail(detail);
    let failed = selection.failed.filter().map_err(invalid)?;
    match filter {
        Filter::Failed => {
            let matching = queue.count_failed_up_to(&failed, COUNT_CAP).await.map_err(internal)?;
            table.total = Some(Count::up_to(matching, COUNT_CAP));
            if matching > 0 {
                let bulk = |route| selection.fill(ActionLink::new(route).value("expected", matching));
                section = section.action(bulk("POST /outbox/retry")).action(bulk("POST /outbox/skip"));
            }
        }
        Filter::Done => {
            let mut again = ActionLink::new("POST /outbox/republish");
            if let Some(since) = failed.since {
                again = again.value("since", since.to_rfc3339());
                if let Some(until) = failed.until {
                    let matching = queue.count_done(since, until, COUNT_CAP).await.map_err(internal)?;
                    table.total = Some(Count::up_to(matching, COUNT_CAP));
                    again = again.value("until", until.to_rfc3339()).value("expected", matching);
                }
            }
            section = section.action(again);
        }
        Filter::Open | Filter::Skipped => {
            let count = queue.count(filter, COUNT_CAP).await.map_err(internal)?;
            let is_whole = selection.failed == FailedEvents::default();
            table.total = is_whole.then(|| Count::up_to(count, COUNT_CAP));
        }
        Filter::All | Filter::Held => {}
    }
    Ok(section.block(table))
}

/// Reads a page of events and the query of the next page. Reads a limited number of rows, so a page with a rare type may be short.
async fn page(outbox: &Outbox, selection: &Selection) -> Result<(Vec<ItemView>, Option<String>), db::Error> {
    let (queue, filter) = (outbox.queue(), selection.filter());
    if let Some(key) = &selection.failed.key {
        let mut rows = queue.newest_of_key(key, SCANNED).await?;
        let has_state = |item: &ItemView| match filter {
            Filter::All => true,
            Filter::Open => matches!(item.state, State::Pending | State::InFlight),
            Filter::Done => item.state == State::Done,
            Filter::Failed => item.state == State::Failed,
            Filter::Skipped => item.state == State::Skipped,
            Filter::Held => item.state == State::Held,
        };
        rows.retain(|item| has_state(item) && selection.matches(item));
        rows.truncate(PAGE);
        return Ok((rows, None));
    }
    let rows = queue.page(filter, selection.after, SCANNED.min(window(selection))).await?;
    let read = rows.len();
    let (mut shown, mut last) = (Vec::new(), None);
    for item in rows {
        last = Some(PageKey { due: item.due, number: item.number });
        if selection.matches(&item) {
            shown.push(item);
            if shown.len() == PAGE {
                break;
            }
        }
    }
    let has_more = shown.len() == PAGE || read == window(selection) as usize;
    let next = last.filter(|_| has_more).map(|last| format!("after={}", last.to_text()));
    Ok((shown, next))
}

/// Returns how many rows a page reads: more if it shows only some of them.
fn window(selection: &Selection) -> u32 {
    let FailedEvents { cause, kind, .. } = &selection.failed;
    if cause.is_none() && kind.is_none() { PAGE as u32 } else { SCANNED }
}

async fn one(admin: OutboxAdmin, request: ScreenRequest) -> Result<View, Problem> {
    let item = admin.find(request.parameter("event")).await?;
    let kind = kind_of(&item);
    let due = match item.state {
        State::Pending => "Next attempt",
        State::InFlight => "Lease ends",
        _ => "Since",
    };
    let mut state = Section::new("state", "State").facts([
        ("State", state_cell(item.state)),
        ("Cause", Cell::optional(item.cause.as_deref(), Cell::text)),
        ("Event", Cell::code(item.id.to_string())),
        ("Number in the outbox", Cell::Number(item.number)),
        ("Ordering key", Cell::link(&item.key, format!("/console/pipeline?key={}", encoded(&item.key)))),
        ("User", user(item.user)),
        ("Appended", Cell::Time(item.created)),
        (due, Cell::Time(item.due)),
        ("Attempts", Cell::number(item.attempts)),
        ("Fencing number", Cell::Number(item.lease)),
        ("Claimed by process", Cell::optional(item.holder, |holder| Cell::code(holder.to_string()))),
        ("Trace", Cell::Link(Link::new("All steps of this event", format!("/console/trace?id={}", item.id)))),
    ]);
    state.actions = actions(&item);
    let payload = match event::decode_all(item.id, &item.payload) {
        Ok(events) => {
            let events: Vec<String> = events
                .iter()
                .map(|event| {
                    let content = serde_json::to_string_pretty(&content(event)).unwrap_or_default();
                    format!("{} {}\n{content}", event.kind, event.id)
                })
                .collect();
            Section::new("payload", "Content").block(Block::Code(events.join("\n\n")))
        }
        Err(error) => Section::new("payload", "Content")
            .notice(Tone::Bad, format!("The event cannot be read: {error}. It can only be skipped."))
            .block(Block::Code(String::from_utf8_lossy(&item.payload).into_owned())),
    };
    Ok(View::titled(kind.unwrap_or_else(|| "Unreadable event".to_owned())).section(state).section(payload))
}

fn actions(item: &ItemView) -> Vec<ActionLink> {
    let action = |route| ActionLink::new(route).with("event", item.id);
    match item.state {
        State::Failed => vec![action("POST /outbox/{event}/retry"), action("POST /outbox/{event}/skip")],
        State::Pending if item.cause.is_some() => vec![action("POST /outbox/{event}/skip")],
        _ => Vec::new(),
    }
}

fn event_link(item: &ItemView) -> Cell {
    Cell::id(item.id.to_string(), format!("/console/pipeline/{}", item.id))
}

fn state_cell(state: State) -> Cell {
    let tone = match state {
        State::Done => Tone::Good,
        State::Failed => Tone::Bad,
        State::Skipped => Tone::Warning,
        State::Pending | State::InFlight | State::Held => Tone::Neutral,
    };
    Cell::state(tone, state_word(state))
}

fn user(user: Uuid) -> Cell {
    if user.is_nil() { Cell::None } else { Cell::id(user.to_string(), format!("/console/players/{user}")) }
}

/// Returns the type of the row's events, and their number if it is a batch.
fn kind_of(item: &ItemView) -> Option<String> {
    let events = event::decode_all(item.id, &item.payload).ok()?;
    events.first().map(|event| event.kind.clone())
}

/// Escapes a value for the query of a URL.
fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
