//! Screens of the console: changes of entitlements, and one entitlement.

use std::collections::HashSet;

use account::{AccountId, Accounts, UserId};
use base::{Code, Timestamp};
use http_server::Problem;
use outbox::Outbox;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use screens::{ActionLink, Block, Cell, Filter, Link, Section, Table, Tone, View};
use serde_json::{Value, json};
use service::{Menu, PlayerData, Screen, ScreenRequest};

use crate::admin::{FoundEntry, cursor, next_of};
use crate::http::problem;
use crate::model::{Action, Effect, Holding};
use crate::response::EntitlementView;
use crate::store::{FoundRecord, HistoryCursor, HistoryFilter};
use crate::{Entitlements, State, event};

/// How many rows a page has.
const PAGE: u32 = 50;

/// How many entitlements and changes one query of an export reads.
const EXPORT_PAGE: u32 = 1_000;

const EMPTY: &str = "No change found. Search for an account, for the reference that the shop sent, or for an idempotency key.";

/// What the screens of entitlements read. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct EntitlementConsole {
    pub(crate) entitlements: Entitlements,
    pub(crate) accounts: Accounts,
    pub(crate) outbox: Outbox,
}

pub(crate) fn screens() -> Vec<Screen> {
    const QUESTION: &str = "Who granted what, was it published?";
    vec![
        Screen::listed(Menu::Players, "/console/entitlements", "Entitlements", QUESTION, search),
        Screen::linked("/console/entitlements/{account_id}/{resource}", "Entitlement", QUESTION, show),
    ]
}

async fn search(console: EntitlementConsole, request: ScreenRequest) -> Result<View, Problem> {
    let query = |name| request.query(name);
    let filter = Filter::new("Search")
        .text("account", "Account", "the id of an account", query("account"))
        .text("resource", "Resource", "only this resource of the account", query("resource"))
        .text("reference", "Reference", "the shop's name for the purchase, or an order", query("reference"))
        .text("key", "Idempotency key", "the key of a request", query("key"))
        .text("caller", "Service", "that sent the request with the key", query("caller"));
    let section = Section::new("changes", "Changes").block(filter);
    let section = section.action(grant_action(query("account"), query("resource")));
    if let Some(key) = query("key") {
        return Ok(View::new().section(by_key(&console, section, query("caller"), key).await?));
    }
    let Some(filter) = history_filter(&console, &request).await? else {
        let text = "Search for an account, for the reference of a purchase, or for an idempotency key. A player's screen lists all \
                    that the player owns.";
        let link = Some(Link::new("Players", "/console/players"));
        return Ok(View::new().section(section.block(Block::Empty { text: text.to_owned(), link })));
    };
    let table = console.changes(&filter, query("after")).await?;
    Ok(View::new().section(section.block(table)))
}

/// Returns the filter of the query. None if it has none.
async fn history_filter(
    console: &EntitlementConsole,
    request: &ScreenRequest,
) -> Result<Option<HistoryFilter>, Problem> {
    let (account, reference) = (request.query("account"), request.query("reference"));
    match (account, request.query("resource"), reference) {
        (_, _, Some(reference)) => Ok(Some(HistoryFilter::Reference(reference.to_owned()))),
        (Some(account), resource, None) => {
            let (user, account) = console.owner(account).await?;
            let resource = resource.map(str::to_owned);
            Ok(Some(match resource {
                Some(resource) => HistoryFilter::Resource(Holding { user, account, resource }),
                None => HistoryFilter::Account(user, account),
            }))
        }
        _ => Ok(None),
    }
}

/// Shows the recorded response to the request with a key.
async fn by_key(
    console: &EntitlementConsole,
    section: Section,
    caller: Option<&str>,
    key: &str,
) -> Result<Section, Problem> {
    let Some(caller) = caller else {
        return Ok(section.notice(
            Tone::Warning,
            "Also enter the service that sent the key: each service has its own keys.",
        ));
    };
    let found = console.entitlements.db().recorded_request(caller, key).await;
    let Some(found) = found.map_err(|error| problem(error.into()))? else {
        let text = format!(
            "{caller} has applied no request with this key: it never arrived, was refused, or is older than \
             service_api.idempotency_retention."
        );
        return Ok(section.block(Block::Empty { text, link: None }));
    };
    let user = UserId::from_uuid(found.user);
    let response: Value = serde_json::from_str(&found.response).unwrap_or_default();
    Ok(section
        .facts([
            ("Applied", Cell::Time(found.recorded_at)),
            ("Player", Cell::id(user.to_string(), format!("/console/players/{user}"))),
        ])
        .block(Block::Code(format!("{response:#}"))))
}

async fn show(console: EntitlementConsole, request: ScreenRequest) -> Result<View, Problem> {
    let (user, account) = console.owner(request.parameter("account_id")).await?;
    let resource = request.parameter("resource").to_owned();
    let holding = Holding { user, account, resource };
    let current = console.entitlements.get(&holding).await.map_err(problem)?;
    let entries = console.changes(&HistoryFilter::Resource(holding.clone()), request.query("after")).await?;
    let unpublished = console.unpublished([&holding]).await?;
    let key = format!("console{:x}-{}", Outbox::key_hash(&event::key(&holding)), current.version);
    let change = |route| {
        let link = ActionLink::new(route).value("account_id", account).value("resource", &holding.resource);
        link.value("idempotency_key", &key)
    };
    let facts = Section::new("entitlement", "Entitlement")
        .facts([
            ("Player", Cell::id(user.to_string(), format!("/console/players/{user}"))),
            ("Account", Cell::code(account.to_string())),
            ("Resource", Cell::code(holding.resource.clone())),
            ("State", state(&current)),
            ("Quantity", Cell::optional(current.quantity, Cell::Number)),
            ("Valid until", time(current.valid_until.as_deref())),
            ("Version", Cell::Number(current.version)),
            ("As of", time(Some(&current.as_of))),
            ("Events", published(!unpublished.is_empty())),
        ])
        .action(change("POST /entitlements/grant"))
        .action(change("POST /entitlements/revoke"));
    let title = format!("{} of account {account}", holding.resource);
    Ok(View::titled(title).section(facts).section(Section::new("history", "History").block(entries)))
}

impl EntitlementConsole {
    /// Returns the user and id of an account. Fails with 404 if there is no such account.
    pub(crate) async fn owner(&self, account: &str) -> Result<(UserId, AccountId), Problem> {
        let bad = |_| Problem::new(Code::InvalidArgument).detail("The account must be a UUID.");
        let account: AccountId = account.parse().map_err(bad)?;
        let found = self.accounts.account(account).await.map_err(|error| problem(error.into()))?;
        let none = || Problem::new(Code::NotFound).detail(format!("There is no account {account}."));
        found.map(|found| (found.user, account)).ok_or_else(none)
    }

    /// Reads a page of changes, newest first.
    async fn changes(&self, filter: &HistoryFilter, after: Option<&str>) -> Result<Table, Problem> {
        let after = cursor(after)?.map_or_else(HistoryCursor::first, HistoryCursor::from_parts);
        let found = self.entitlements.search(filter, &after, PAGE).await.map_err(problem)?;
        let unpublished = self.unpublished(found.iter().map(|found| &found.holding)).await?;
        let titles =
            ["Time", "Change", "Resource", "Account", "By", "Reference", "# Version", "Effect", "Event"];
        let mut table = Table::new(&titles, EMPTY);
        table.page_key = Some("after");
        table.next = next_of(&found, PAGE)
            .map(|next| format!("after={}", utf8_percent_encode(&next, NON_ALPHANUMERIC)));
        for FoundRecord { holding, record } in found {
            let is_unpublished = unpublished.contains(&holding);
            let event = record.event.map(|event| {
                let id = Cell::id(event.to_string(), format!("/console/pipeline/{event}"));
                Cell::Many(vec![id, published(is_unpublished)])
            });
            let account = format!("/console/entitlements?account={}", holding.account);
            let cells = [
                Cell::Time(record.recorded_at),
                Cell::text(describe(&record.action)),
                Cell::link(holding.resource.clone(), screen_of(&holding)),
                Cell::id(holding.account.to_string(), account),
                Cell::text(record.caller),
                Cell::optional(record.reference, Cell::Text),
                Cell::Number(record.version),
                match record.effect {
                    Effect::Applied => Cell::state(Tone::Good, "applied"),
                    Effect::Superseded => Cell::state(Tone::Neutral, "superseded by a newer change"),
                },
                event.unwrap_or(Cell::None),
            ];
            table.push(cells, []);
        }
        Ok(table)
    }

    /// Returns the entitlements that have events which are not published yet.
    async fn unpublished<'a>(
        &self,
        holdings: impl IntoIterator<Item = &'a Holding>,
    ) -> Result<HashSet<Holding>, Problem> {
        let keyed: Vec<(i64, &Holding)> = holdings
            .into_iter()
            .map(|holding| (Outbox::key_hash(&event::key(holding)), holding))
            .collect::<std::collections::BTreeMap<_, _>>()
            .into_iter()
            .collect();
        if keyed.is_empty() {
            return Ok(HashSet::new());
        }
        let keys: Vec<i64> = keyed.iter().map(|(key, _)| *key).collect();
        let read = self.entitlements.db().bounded(async {
            let mut tx = self.entitlements.db().begin().await?;
            let unfinished = self.outbox.unfinished_in(&mut tx, &keys).await?;
            tx.commit().await?;
            Ok::<_, db::Error>(unfinished)
        });
        let unfinished = read.await.map_err(|error| problem(error.into()))?;
        let is_unfinished = |(key, _): &(i64, &Holding)| unfinished.contains(key);
        Ok(keyed.into_iter().filter(is_unfinished).map(|(_, holding)| holding.clone()).collect())
    }
}

/// Returns what entitlements know about users.
pub(crate) fn player_data() -> Vec<PlayerData> {
    let sections =
        |console: EntitlementConsole, user| async move { console.inventory(UserId::from_uuid(user)).await };
    let export =
        |console: EntitlementConsole, user| async move { console.export(UserId::from_uuid(user)).await };
    vec![PlayerData::new("entitlements", export).with_sections(sections)]
}

impl EntitlementConsole {
    /// Shows what a user owns.
    async fn inventory(&self, user: UserId) -> Result<Vec<Section>, Problem> {
        let owned = self.entitlements.list_of_user(user, Default::default(), PAGE).await.map_err(problem)?;
        let mut table = Table::new(
            &["Resource", "State", "# Quantity", "Valid until", "# Version", "As of", "Account"],
            "This player owns nothing and never has.",
        );
        let first = owned.first().map(|owned| owned.account_id.clone());
        let is_full = owned.len() as u32 == PAGE;
        for owned in owned {
            let href = screen_path(&owned.account_id, &owned.resource);
            let revoke = ActionLink::new("POST /entitlements/revoke")
                .value("account_id", &owned.account_id)
                .value("resource", &owned.resource);
            let actions = (owned.state == State::Active.word()).then_some(revoke);
            let cells = [
                Cell::link(owned.resource.clone(), href),
                state(&owned),
                Cell::optional(owned.quantity, Cell::Number),
                time(owned.valid_until.as_deref()),
                Cell::Number(owned.version),
                time(Some(&owned.as_of)),
                Cell::id(
                    owned.account_id.clone(),
                    format!("/console/entitlements?account={}", owned.account_id),
                ),
            ];
            table.push(cells, actions);
        }
        let mut section = Section::new("inventory", "Inventory");
        if is_full {
            section = section.text(format!("The first {PAGE}. The changes of an account are on its screen."));
        }
        Ok(vec![section.block(table).action(grant_action(first.as_deref(), None))])
    }

    /// Returns everything that a user owns or owned, and all changes.
    async fn export(&self, user: UserId) -> Result<Value, Problem> {
        let (mut owned, mut changes) = (Vec::new(), Vec::new());
        let mut after = (base::id::Uuid::nil(), String::new());
        loop {
            let page = self.entitlements.list_of_user(user, (after.0, &after.1), EXPORT_PAGE).await;
            let page = page.map_err(problem)?;
            let last = page.last().filter(|_| page.len() as u32 == EXPORT_PAGE);
            let next = last.map(|last| (last.account_id.parse().unwrap_or_default(), last.resource.clone()));
            owned.extend(page);
            match next {
                Some(next) => after = next,
                None => break,
            }
        }
        let mut after = HistoryCursor::first();
        loop {
            let page = self.entitlements.search(&HistoryFilter::User(user), &after, EXPORT_PAGE).await;
            let page = page.map_err(problem)?;
            let last = page.last().filter(|_| page.len() as u32 == EXPORT_PAGE).map(HistoryCursor::after);
            changes.extend(page.into_iter().map(FoundEntry::new));
            match last {
                Some(last) => after = last,
                None => break,
            }
        }
        Ok(json!({ "owned": owned, "changes": changes }))
    }
}

fn grant_action(account: Option<&str>, resource: Option<&str>) -> ActionLink {
    let mut action = ActionLink::new("POST /entitlements/grant");
    for (field, value) in [("account_id", account), ("resource", resource)] {
        if let Some(value) = value {
            action = action.value(field, value);
        }
    }
    action
}

/// Describes a change: "grant of 3".
pub(crate) fn describe(action: &Action) -> String {
    let quantity = action.quantity().map(|quantity| format!(" of {quantity}"));
    format!("{}{}", action.word(), quantity.unwrap_or_default())
}

fn state(owned: &EntitlementView) -> Cell {
    match (owned.in_force, owned.state.as_str()) {
        (true, _) => Cell::state(Tone::Good, "in force"),
        (false, "ACTIVE") => Cell::state(Tone::Neutral, "ended"),
        _ => Cell::state(Tone::Neutral, "revoked"),
    }
}

fn published(is_unpublished: bool) -> Cell {
    if is_unpublished {
        Cell::state(Tone::Warning, "not all published yet")
    } else {
        Cell::state(Tone::Good, "published")
    }
}

fn time(text: Option<&str>) -> Cell {
    Cell::optional(text.and_then(|text| text.parse::<Timestamp>().ok()), Cell::Time)
}

/// Returns the path of the screen of an entitlement.
pub(crate) fn screen_of(holding: &Holding) -> String {
    screen_path(&holding.account.to_string(), &holding.resource)
}

fn screen_path(account: &str, resource: &str) -> String {
    format!("/console/entitlements/{account}/{}", utf8_percent_encode(resource, NON_ALPHANUMERIC))
}
