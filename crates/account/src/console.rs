//! Screens of the console: the search for players, and one player.

use base::Code;
use futures::future::join_all;
use http_server::Problem;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use screens::{ActionLink, Block, Cell, Filter, Link, Section, Subject, Table, Tone, View};
use service::{Menu, Provided, Screen, ScreenRequest, Services};

use crate::http::problem;
use crate::steps::screen_of;
use crate::{Accounts, Error, LinkedIdentity, Note, Role, UserId, UserState, UserView};

/// How many users a page lists.
const PAGE: u32 = 50;
/// How many notes are shown.
const NOTES: u32 = 20;
/// How many steps of each service the timeline has.
const STEPS: u32 = 50;

const QUESTION: &str = "What happened to this player?";

/// The users, and the services whose steps make up a user's timeline.
#[derive(Clone, Debug)]
pub(crate) struct PlayerConsole {
    pub(crate) accounts: Accounts,
    pub(crate) services: Services,
    pub(crate) provided: Provided,
}

pub(crate) fn screens() -> Vec<Screen> {
    vec![
        Screen::listed(Menu::Players, "/console/players", "Players", QUESTION, search),
        Screen::linked("/console/players/{user_id}", "Player", QUESTION, show),
    ]
}

async fn search(console: PlayerConsole, request: ScreenRequest) -> Result<View, Problem> {
    let (find, issuer) = (request.query("find"), request.query("issuer"));
    let hint = "a name or its beginning, a user or account id, a subject, an order or idempotency key";
    let filter = Filter::new("Search").text("find", "Player", hint, find).text(
        "issuer",
        "Issuer",
        "https://id.example.com, to search only for a subject of this issuer",
        issuer,
    );
    let mut section = Section::new("players", if find.is_some() { "Found" } else { "Newest players" });
    section = section.block(filter);
    let after = request.query("after").map(Cursor::parse).transpose()?;
    let mut table = Table::new(
        &["Player", "Name", "State", "Roles", "Registered"],
        if find.is_some() { NOT_FOUND } else { "No player has signed in yet." },
    );
    let found = match (find, issuer) {
        (None, _) => newest(&console.accounts, after).await,
        (Some(subject), Some(issuer)) => match console.accounts.find(issuer, subject).await {
            Err(Error::UnknownIdentity) => Ok((Vec::new(), None)),
            found => found.map(|user| (vec![user], None)),
        },
        (Some(text), None) => by_text(&console.accounts, text, after.as_ref()).await,
    };
    let (users, next) = found.map_err(problem)?;
    table.next = next.map(|next| format!("after={}", next.text()));
    table.page_key = Some("after");
    for user in &users {
        table.push(row(user), []);
    }
    let mut view = View::new().section(section.block(table));
    if let (true, Some(text)) = (users.is_empty(), find) {
        // Orders, keys and events are known to other services.
        let subject = Subject::Id(text.to_owned());
        let (steps, _) = console.services.steps(&console.provided, &subject, STEPS).await;
        if !steps.is_empty() {
            let found = Section::new("steps", "What is known about this id").block(Block::Timeline(steps));
            view = view.section(found);
        }
    }
    Ok(view)
}

const NOT_FOUND: &str = "No player found. Names match from their beginning, with upper and lower case; ids, subjects and order \
    references match in full.";

/// A page of users, and where the next one begins.
type Page = (Vec<UserView>, Option<Cursor>);

async fn newest(accounts: &Accounts, after: Option<Cursor>) -> Result<Page, Error> {
    let users = accounts.newest(after.map(|after| after.user), PAGE).await?;
    let next = next_of(&users);
    Ok((users, next))
}

/// Finds users by id, account, subject or full name, then by the beginning of the name.
async fn by_text(accounts: &Accounts, text: &str, after: Option<&Cursor>) -> Result<Page, Error> {
    let mut users = match after {
        None => accounts.search(text, None, PAGE).await?,
        Some(_) => Vec::new(),
    };
    let after = after.map(|after| (after.name.as_str(), after.user));
    let mut named = accounts.search_by_prefix(text, after, PAGE).await?;
    let next = next_of(&named);
    named.retain(|user| !users.iter().any(|found| found.id == user.id));
    users.append(&mut named);
    Ok((users, next))
}

fn next_of(page: &[UserView]) -> Option<Cursor> {
    page.last().filter(|_| page.len() as u32 == PAGE).map(Cursor::of)
}

fn row(user: &UserView) -> [Cell; 5] {
    [
        Cell::id(user.id.to_string(), screen_of(user.id)),
        Cell::optional(user.display_name.clone(), Cell::Text),
        state(user.state),
        roles(&user.roles),
        Cell::Time(user.created_at),
    ]
}

fn state(state: UserState) -> Cell {
    match state {
        UserState::Active => Cell::state(Tone::Good, "active"),
        UserState::Banned => Cell::state(Tone::Bad, "banned"),
        UserState::Erased => Cell::state(Tone::Neutral, "erased"),
    }
}

fn roles(roles: &[Role]) -> Cell {
    Cell::text(roles.iter().map(|role| role.word()).collect::<Vec<_>>().join(", "))
}

async fn show(console: PlayerConsole, request: ScreenRequest) -> Result<View, Problem> {
    let user: UserId = request.parameter("user_id").parse().map_err(|_| no_user())?;
    let accounts = &console.accounts;
    let (view, identities, owned, notes) = tokio::try_join!(
        accounts.user(user),
        accounts.identities(user),
        accounts.accounts(user),
        accounts.notes(user, NOTES)
    )
    .map_err(problem)?;
    let subject = Subject::User(*user.as_uuid());
    let data = console.services.player_data();
    let (timeline, parts) = tokio::join!(
        console.services.steps(&console.provided, &subject, STEPS),
        join_all(data.iter().map(|data| async {
            (data.name, data.sections(console.provided.clone(), *user.as_uuid()).await)
        }))
    );
    let mut screen = View::titled(view.display_name.clone().unwrap_or_else(|| user.to_string()));
    screen = screen.section(facts(&view, &identities, &owned));
    if view.state != UserState::Erased {
        screen = screen.section(notes_section(user, notes));
    }
    for (name, sections) in parts {
        match sections {
            Ok(sections) => screen.sections.extend(sections),
            Err(_) => {
                let text =
                    format!("The part {name} does not answer. Reload the page, or run `playhouse doctor`.");
                screen = screen.section(Section::new(name, name).notice(Tone::Warning, text));
            }
        }
    }
    Ok(screen.section(timeline_section(timeline)))
}

fn facts(user: &UserView, identities: &[LinkedIdentity], accounts: &[crate::Account]) -> Section {
    let id = user.id.to_string();
    let account = |account: &crate::Account| {
        Cell::Many(vec![Cell::text(account.name.clone()), Cell::code(account.id.to_string())])
    };
    let identity =
        |identity: &LinkedIdentity| Cell::text(format!("{} at {}", identity.subject, identity.issuer));
    let mut facts = vec![
        ("User id", Cell::code(id.clone())),
        ("State", state(user.state)),
        ("Registered", Cell::Time(user.created_at)),
        ("Roles", roles(&user.roles)),
        ("Signs in as", Cell::Many(identities.iter().map(identity).collect())),
        ("Accounts", Cell::Many(accounts.iter().map(account).collect())),
    ];
    if let Some(reason) = &user.ban_reason {
        facts.insert(2, ("Banned because", Cell::text(reason.clone())));
    }
    let mut section = Section::new("facts", "Player").facts(facts);
    if user.state == UserState::Erased {
        return section.notice(
            Tone::Neutral,
            "All personal data of this player was removed. What remains is without it.",
        );
    }
    let action = |route| ActionLink::new(route).with("user_id", &id);
    section = section
        .action(action("POST /users/{user_id}/notes"))
        .action(action("POST /users/{user_id}/end-sessions"));
    section = match user.state {
        UserState::Banned => section.action(action("POST /users/{user_id}/unban")),
        _ => section.action(action("POST /users/{user_id}/ban")),
    };
    section = section.action(action("POST /users/{user_id}/erase"));
    section.block(Block::Links(vec![Link::new(
        "Export everything as JSON",
        format!("{}/export", screen_of(user.id)),
    )]))
}

fn notes_section(user: UserId, notes: Vec<Note>) -> Section {
    let mut table = Table::new(&["Time", "Operator", "Note"], "No notes yet.");
    for note in notes {
        table.push([Cell::Time(note.at), Cell::text(note.author), Cell::text(note.text)], []);
    }
    let add = ActionLink::new("POST /users/{user_id}/notes").with("user_id", user);
    Section::new("notes", "Notes").block(table).action(add)
}

fn timeline_section((mut steps, failed): (Vec<screens::Step>, Vec<&'static str>)) -> Section {
    // The newest steps answer most questions.
    steps.reverse();
    let mut section = Section::new("timeline", "Timeline");
    if !failed.is_empty() {
        let text = format!("These parts did not answer, so their steps are missing: {}.", failed.join(", "));
        section = section.notice(Tone::Warning, text);
    }
    section.block(Block::Timeline(steps))
}

fn no_user() -> Problem {
    Problem::new(Code::NotFound).detail("There is no such player: the id of a player is a UUID.")
}

/// The last user of a page.
struct Cursor {
    user: UserId,
    name: String,
}

impl Cursor {
    fn of(user: &UserView) -> Self {
        Self { user: user.id, name: user.display_name.clone().unwrap_or_default() }
    }

    /// Parses `USER_ID` or `USER_ID,NAME`.
    fn parse(text: &str) -> Result<Self, Problem> {
        let (user, name) = text.split_once(',').unwrap_or((text, ""));
        let bad =
            |_| Problem::new(Code::InvalidArgument).detail("after must be that of a link to the next page.");
        Ok(Self { user: user.parse().map_err(bad)?, name: name.to_owned() })
    }

    fn text(&self) -> String {
        let name = utf8_percent_encode(&self.name, NON_ALPHANUMERIC);
        format!("{}%2C{name}", self.user)
    }
}
