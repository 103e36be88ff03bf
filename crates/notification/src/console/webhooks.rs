//! The screen of webhook destinations.

use http_server::Problem;
use jobs::COUNT_CAP;
use screens::{ActionLink, Block, Cell, Count, Link, Section, Table, Tone, View};
use service::ScreenRequest;
use work_queue::{Filter, ItemView, OpenKey, WorkQueue};

use super::{state_cell, user_cell};
use crate::http::problem;
use crate::model::{Channel, Notification};
use crate::{DeadLetterFilter, Notifications, WEBHOOK};

/// How many recent outcomes are shown, and how many open deliveries are counted.
const OUTCOMES: u32 = 20;
const COUNTED: u32 = 10_001;

pub(super) async fn list(notifications: Notifications, _: ScreenRequest) -> Result<View, Problem> {
    let Some(queue) = notifications.deliveries().queue("webhook") else { return Ok(View::new()) };
    Ok(View::new()
        .section(destinations(&notifications, queue).await?)
        .section(outcomes(queue).await.map_err(|error| problem(error.into()))?))
}

async fn destinations(notifications: &Notifications, queue: &WorkQueue) -> Result<Section, Problem> {
    let section = Section::new("destinations", "Destinations");
    let disabled = notifications.webhooks().all_disabled().await.map_err(problem)?;
    let open = queue.open_keys(COUNTED).await.map_err(|error| problem(error.into()))?;
    let total: u64 = open.iter().map(|key| key.items).sum();
    let mut table = Table::new(
        &["Destination", "State", "#Open deliveries", "Oldest open", "Next attempt", "#Given up", "Cause"],
        "There are no destinations. Add a table [notification.webhooks.NAME] to the configuration.",
    );
    for name in notifications.webhooks().names() {
        let key = Channel::Webhook(name.to_owned()).to_string();
        let waiting = open.iter().find(|open| open.key == key);
        let filter = DeadLetterFilter { destination: Some(key.clone()), ..DeadLetterFilter::default() };
        let given_up =
            notifications.count_matching_dead_letters(&filter, COUNT_CAP).await.map_err(problem)?;
        let (state, cause) = match (disabled.get(name), waiting.and_then(|open| open.retry)) {
            (Some((since, cause)), _) => {
                let state = Cell::Many(vec![Cell::state(Tone::Bad, "Disabled since"), Cell::Time(*since)]);
                (state, Some(cause.clone()))
            }
            (None, Some(_)) => (
                Cell::state(Tone::Warning, "Resting after a failure"),
                waiting.and_then(|open| open.cause.clone()),
            ),
            (None, None) => (Cell::state(Tone::Good, "In use"), None),
        };
        let dead_letters = format!("/console/dead-letters?destination={}", super::encoded(&key));
        let cells = [
            Cell::text(name),
            state,
            Cell::Count(Count::up_to(waiting.map_or(0, |open| open.items), COUNT_CAP)),
            Cell::optional(waiting, |open: &OpenKey| Cell::Time(open.oldest)),
            Cell::optional(waiting.and_then(|open| open.retry), Cell::Time),
            Cell::Many(vec![
                Cell::Count(Count::up_to(given_up, COUNT_CAP)),
                Cell::Link(Link::new("Show", dead_letters)),
            ]),
            Cell::optional(cause, Cell::Text),
        ];
        let action = |route| ActionLink::new(route).with("name", name);
        let mut actions = vec![action("POST /webhooks/{name}/test")];
        if disabled.contains_key(name) {
            actions.push(action("POST /webhooks/{name}/enable"));
        } else if given_up > 0 {
            actions.push(action("POST /webhooks/{name}/recover"));
        }
        table.push(cells, actions);
    }
    Ok(if total > COUNT_CAP {
        let text = "More than 10,000 deliveries are open. The numbers per destination count only those that are due first.";
        section.block(Block::Notice { tone: Tone::Warning, text: text.to_owned(), link: None }).block(table)
    } else {
        section.block(table)
    })
}

/// Shows the last deliveries, whatever their outcome.
async fn outcomes(queue: &WorkQueue) -> Result<Section, db::Error> {
    debug_assert_eq!(queue.name(), WEBHOOK);
    let mut items = queue.page(Filter::Done, None, OUTCOMES).await?;
    items.extend(queue.page(Filter::Failed, None, OUTCOMES).await?);
    items.sort_by_key(|item| std::cmp::Reverse((item.due, item.number)));
    items.truncate(OUTCOMES as usize);
    let mut table = Table::new(
        &["Ended", "Destination", "Outcome", "Notification", "User", "#Attempts", "Cause"],
        "No delivery has ended yet, or they were removed after their retention.",
    );
    for item in &items {
        table.push(
            [
                Cell::Time(item.due),
                Cell::text(item.key.trim_start_matches("webhook:")),
                state_cell(item.state),
                notification(item),
                user_cell(item.user),
                Cell::number(item.attempts),
                Cell::optional(item.cause.as_deref(), Cell::text),
            ],
            [],
        );
    }
    Ok(Section::new("outcomes", "Last outcomes").block(table))
}

fn notification(item: &ItemView) -> Cell {
    let read: Option<Notification> = serde_json::from_slice(&item.payload).ok();
    Cell::optional(read.map(|read| read.notification_id), super::notification_cell)
}
