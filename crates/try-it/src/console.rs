//! The screen "Try it".

#[cfg(test)]
mod tests;

use account::{Account, UserState, UserView};
use base::Timestamp;
use drops::model::DropState;
use drops::{DropId, ListDrops, MAX_LIST};
use entitlement::{EntitlementView, ListOptions};
use http_server::Problem;
use matchmaking::{PlayerState, PlayerTicket};
use notification::{Filter as InboxFilter, Notification};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use screens::{ActionLink, Block, Cell, Filter, Link, Section, Table, Tone, View};
use service::{Menu, Screen, ScreenRequest};

use crate::TryIt;
use crate::tools::{Addresses, Tools, failed};

const PATH: &str = "/console/try-it";
/// The names that the builtin issuer offers, too. The first one is the default.
const NAMES: [&str; 3] = ["ada", "grace", "alan"];
/// How many rows a table has.
const ROWS: u32 = 10;
/// What the player buys.
const RESOURCE: &str = "skin:gold";
/// The beginning of the names of demo drops.
const DROP: &str = "Demo drop";

/// What a sample player has.
struct Player {
    user: UserView,
    account: Option<Account>,
    owned: Vec<EntitlementView>,
    messages: Vec<Notification>,
    tickets: Vec<PlayerTicket>,
}

/// A drop in the list.
struct ListedDrop {
    id: DropId,
    name: String,
    state: DropState,
}

pub(crate) fn screens() -> Vec<Screen> {
    vec![Screen::listed(Menu::Development, PATH, "Try it", "What happens when a player does this?", show)]
}

async fn show(try_it: TryIt, request: ScreenRequest) -> Result<View, Problem> {
    let tools = try_it.tools()?;
    let user = request.query("user").unwrap_or(NAMES[0]);
    let (player, drops) = tokio::try_join!(tools.player(user), tools.listed_drops())?;
    let mut view = View::new().section(player_section(&tools.addresses, user, player.as_ref()));
    if let Some(player) = &player {
        let queues = tools.players.queues();
        let queues = queues.keys().map(String::as_str);
        view = view.section(buy(player)).section(notify(user, player)).section(queue(user, queues, player));
    }
    Ok(view.section(drop_section(&drops)).section(failed_event()))
}

impl Tools {
    /// Reads what a sample player has. None if they have never signed in.
    async fn player(&self, user: &str) -> Result<Option<Player>, Problem> {
        let Some(user) = self.find(user).await? else { return Ok(None) };
        let (id, uuid) = (user.id, *user.id.as_uuid());
        let accounts = async { self.accounts.accounts(id).await.map_err(|error| failed("account", &error)) };
        let messages = async {
            let page = self.inbox.list(uuid, InboxFilter::default(), None, ROWS).await;
            page.map_err(|error| failed("notification", &error))
        };
        let tickets =
            async { self.players.tickets(uuid).await.map_err(|error| failed("matchmaking", &error)) };
        let (accounts, page, tickets) = tokio::try_join!(accounts, messages, tickets)?;
        let account = accounts.into_iter().next();
        let owned = match &account {
            Some(account) => {
                let options = ListOptions { in_force: true, after: String::new(), limit: ROWS };
                let owned = self.entitlements.list(id, account.id, &options).await;
                owned.map_err(|error| failed("entitlement", &error))?
            }
            None => Vec::new(),
        };
        Ok(Some(Player { user, account, owned, messages: page.notifications, tickets }))
    }

    /// Lists all drops, the newest first.
    async fn listed_drops(&self) -> Result<Vec<ListedDrop>, Problem> {
        let found = self.drops.list(ListDrops { state: None, after: None, limit: MAX_LIST }).await;
        let found = found.map_err(|error| failed("drops", &error))?;
        let listed = found.into_iter().rev().map(|drop| ListedDrop {
            id: drop.id,
            name: drop.name,
            state: drop.state,
        });
        Ok(listed.collect())
    }
}

/// Shows who acts, and how to call the API as this player.
fn player_section(addresses: &Addresses, user: &str, player: Option<&Player>) -> Section {
    let names = NAMES.map(|name| Link::new(name, format!("{PATH}?user={name}")));
    let page = Link::new("The game page, where players sign in", format!("{}/", addresses.gateway));
    let section = Section::new("player", "Player")
        .text("Every action of this screen is done for one sample player. Choose any name. A duel needs two players.")
        .block(Filter::new("Choose").text("user", "Name of the player", NAMES[0], Some(user)))
        .block(Block::Links(names.into_iter().chain([page]).collect()));
    let Some(Player { user: found, account, .. }) = player else {
        let text = format!("{user} has never signed in. The first sign-in creates the player.");
        return section.block(Block::Empty { text, link: None }).action(sign_in(user));
    };
    let state = match found.state {
        UserState::Active => Cell::state(Tone::Good, "active"),
        UserState::Banned => Cell::state(Tone::Bad, "banned"),
        UserState::Erased => Cell::state(Tone::Neutral, "erased"),
    };
    section
        .facts([
            ("Player", Cell::id(found.id.to_string(), format!("/console/players/{}", found.id))),
            ("Name", Cell::optional(found.display_name.clone(), Cell::Text)),
            ("State", state),
            ("Account", Cell::optional(account.as_ref(), |account| Cell::code(account.id.to_string()))),
        ])
        .block(Block::Code(commands(addresses, user)))
}

/// Returns commands that get an access token of the player, and use it.
fn commands(Addresses { gateway, admin }: &Addresses, user: &str) -> String {
    let token = format!("playhouse token --user {user} --admin {admin}");
    format!("{token}\ncurl -H \"authorization: Bearer $({token})\" {gateway}/v1/home")
}

fn sign_in(user: &str) -> ActionLink {
    ActionLink::new("POST /try-it/players/{user}/sign-in")
        .with("user", user)
        .label(format!("Sign in as {user}"))
}

fn buy(player: &Player) -> Section {
    let mut table = Table::new(&["Owns", "#Quantity", "Since"], "This player owns nothing yet.");
    for owned in &player.owned {
        let since = owned.as_of.parse::<Timestamp>().ok();
        let name = match &player.account {
            Some(account) => {
                let resource = utf8_percent_encode(&owned.resource, NON_ALPHANUMERIC);
                Cell::link(&owned.resource, format!("/console/entitlements/{}/{resource}", account.id))
            }
            None => Cell::text(&owned.resource),
        };
        table.push(
            [name, Cell::optional(owned.quantity, Cell::Number), Cell::optional(since, Cell::Time)],
            [],
        );
    }
    let section = Section::new("buy", "Buy")
        .text("Grants the item that a shop would grant after the payment. The player is notified of it.")
        .block(table);
    match &player.account {
        Some(account) => section.action(
            ActionLink::new("POST /entitlements/grant")
                .value("account_id", account.id)
                .value("resource", RESOURCE)
                .value("reason", "try-it")
                .label(format!("Buy {RESOURCE}")),
        ),
        None => section,
    }
}

fn notify(user: &str, player: &Player) -> Section {
    let mut table = Table::new(&["Title", "Text", "Received", "Read"], "The inbox of this player is empty.");
    for message in &player.messages {
        let text = message.text(&[]).map(|(_, text)| text);
        let title = text.map_or("", |text| text.title.as_str());
        let link = format!("/console/notifications/{}", message.notification_id);
        let cells = [
            Cell::link(title, link),
            Cell::text(text.map_or("", |text| text.body.as_str())),
            Cell::Time(Timestamp::from_millis(message.created_at)),
            Cell::optional(message.read_at, |at| Cell::Time(Timestamp::from_millis(at))),
        ];
        table.push(cells, []);
    }
    let name = player.user.display_name.as_deref().unwrap_or(user);
    let action = ActionLink::new("POST /try-it/players/{user}/notify")
        .with("user", user)
        .value("title", format!("Hello, {name}"))
        .value("body", "Your reward is waiting.");
    Section::new("notify", "Notify")
        .text("Sends a message, as your game would. An open game page of the player shows it at once.")
        .block(table)
        .action(action)
}

fn queue<'a>(user: &str, queues: impl Iterator<Item = &'a str>, player: &Player) -> Section {
    let mut table =
        Table::new(&["Ticket", "Queue", "State", "Joined", "Server"], "This player waits in no queue.");
    for ticket in &player.tickets {
        let tone = match ticket.state {
            PlayerState::Assigned => Tone::Good,
            PlayerState::Waiting | PlayerState::ReadyCheck | PlayerState::Gone => Tone::Neutral,
        };
        let server = ticket.assignment.as_ref().map(|assignment| assignment.connection.clone());
        let cells = [
            Cell::id(ticket.id.to_string(), format!("/console/tickets/{}", ticket.id)),
            Cell::text(&ticket.queue),
            Cell::state(tone, ticket.state.word()),
            Cell::Time(ticket.created_at),
            Cell::optional(server, Cell::Code),
        ];
        table.push(cells, []);
    }
    let join = |queue: &str| {
        let action = ActionLink::new("POST /try-it/players/{user}/join").with("user", user);
        action.value("queue", queue).label(format!("Join {queue}"))
    };
    let section = Section::new("queue", "Join a queue")
        .text("The player gets a ticket, and waits until a match is found. Choose another player and join again to be matched.")
        .block(table);
    let section = queues.take(ROWS as usize).fold(section, |section, queue| section.action(join(queue)));
    if section.actions.is_empty() {
        return section
            .notice(Tone::Warning, "There is no queue: add [matchmaking.queues.NAME] to the configuration.");
    }
    section
}

fn drop_section(drops: &[ListedDrop]) -> Section {
    let mut table =
        Table::new(&["Drop", "State"], "No drop is open or can be opened. Create one, then open it here.");
    let is_shown = |drop: &&ListedDrop| !matches!(drop.state, DropState::Closed | DropState::Cancelled);
    for drop in drops.iter().filter(is_shown).take(ROWS as usize) {
        let (tone, can_open) = match drop.state {
            DropState::Draft | DropState::Scheduled => (Tone::Neutral, true),
            DropState::Open => (Tone::Good, false),
            DropState::Paused => (Tone::Warning, false),
            DropState::Closed | DropState::Cancelled => (Tone::Neutral, false),
        };
        let open = can_open.then(|| ActionLink::new("POST /drops/{drop_id}/open").with("drop_id", drop.id));
        let name = Cell::link(&drop.name, format!("/console/drops/{}", drop.id));
        table.push([name, Cell::state(tone, drop.state.as_str())], open);
    }
    Section::new("drop", "Open a drop")
        .text("A drop is a limited sale with a waiting room. Create one, open it, and join it on the game page as a player.")
        .block(table)
        .action(create_drop(drops))
        .block(Block::Links(vec![Link::new("All drops", "/console/drops")]))
}

fn failed_event() -> Section {
    Section::new("failed", "Break something")
        .text("Creates an event that the bus refuses, and one that waits behind it. Find both on the screen Pipeline, then skip the failed one.")
        .block(Block::Links(vec![
            Link::new("Pipeline", "/console/pipeline?state=failed"),
            Link::new("Overview", "/console"),
        ]))
        .action(ActionLink::new("POST /try-it/failed-event"))
}

/// Returns the action that creates a small drop, with a name that is not taken.
fn create_drop(drops: &[ListedDrop]) -> ActionLink {
    let name = |number: usize| if number == 1 { DROP.to_owned() } else { format!("{DROP} {number}") };
    let is_free = |name: &String| drops.iter().all(|drop| drop.name != *name);
    // Among one more name than there are drops, one is free.
    let name = (1..=drops.len() + 1).map(name).find(is_free).unwrap_or_default();
    ActionLink::new("POST /drops")
        .value("name", name)
        .value("resource", "golden-hat")
        .value("stock", 10)
        .value("terms.price.amount", 499)
        .value("terms.price.currency", "EUR")
        .value("terms.per_player", 2)
        .value("terms.admission.batch", 2)
        .value("terms.admission.period_ms", 3_000)
        .value("terms.admission.capacity", 20)
        .value("terms.admission.lifetime_ms", 600_000)
        .value("terms.admission.arrive_within_ms", 120_000)
        .value("terms.reservation_ms", 300_000)
        .label("Create a demo drop")
}
