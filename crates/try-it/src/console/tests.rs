use account::{AccountId, UserId};
use base::id::Uuid;
use matchmaking::PlayerAssignment;
use matchmaking::model::TicketId;
use notification::Text;
use serde_json::json;

use super::*;

const AT: Timestamp = Timestamp::from_millis(1_700_000_000_000);

fn addresses() -> Addresses {
    let admin = "127.0.0.1:8082".parse().unwrap();
    Addresses { gateway: "http://127.0.0.1:8080".to_owned(), admin }
}

fn player() -> Player {
    let (user, account) = (UserId::generate(), AccountId::generate());
    let view = UserView {
        id: user,
        state: UserState::Active,
        display_name: Some("Ada Lovelace".to_owned()),
        roles: Vec::new(),
        ban_reason: None,
        created_at: AT,
    };
    let account = Account { id: account, user, name: "default".to_owned(), created_at: AT };
    Player {
        user: view,
        account: Some(account),
        owned: Vec::new(),
        messages: Vec::new(),
        tickets: Vec::new(),
    }
}

fn value<'a>(action: &'a ActionLink, field: &str) -> &'a str {
    let found = action.values.iter().chain(&action.parameters).find(|(name, _)| *name == field);
    &found.unwrap_or_else(|| panic!("no {field} in {action:?}")).1
}

fn table(section: &Section) -> &Table {
    let mut tables = section.blocks.iter().filter_map(|block| match block {
        Block::Table(table) => Some(table),
        _ => None,
    });
    tables.next_back().unwrap()
}

#[test]
fn player_who_never_signed_in_is_offered_the_sign_in() {
    let section = player_section(&addresses(), "bob", None);
    let [action] = &section.actions[..] else { panic!("{:?}", section.actions) };
    assert_eq!(action.route, "POST /try-it/players/{user}/sign-in");
    assert_eq!((value(action, "user"), action.label.as_deref()), ("bob", Some("Sign in as bob")));
    assert!(matches!(section.blocks.last(), Some(Block::Empty { .. })));
}

#[test]
fn known_player_has_a_link_and_commands_that_can_be_pasted() {
    let player = player();
    let section = player_section(&addresses(), "ada", Some(&player));
    assert!(section.actions.is_empty());
    let Some(Block::Code(commands)) = section.blocks.last() else { panic!("{:?}", section.blocks) };
    let token = "playhouse token --user ada --admin 127.0.0.1:8082";
    let expected =
        format!("{token}\ncurl -H \"authorization: Bearer $({token})\" http://127.0.0.1:8080/v1/home");
    assert_eq!(*commands, expected);
    let id = player.user.id.to_string();
    let link = Cell::id(&id, format!("/console/players/{id}"));
    let has_link =
        |block: &Block| matches!(block, Block::Facts(facts) if facts.iter().any(|(_, cell)| *cell == link));
    assert!(section.blocks.iter().any(has_link), "{:?}", section.blocks);
}

#[test]
fn purchase_is_the_grant_of_entitlements_for_the_players_account() {
    let player = player();
    let section = buy(&player);
    let [action] = &section.actions[..] else { panic!("{:?}", section.actions) };
    assert_eq!(action.route, "POST /entitlements/grant");
    assert_eq!(value(action, "account_id"), player.account.unwrap().id.to_string());
    assert_eq!(value(action, "resource"), RESOURCE);
}

#[test]
fn messages_and_tickets_lead_to_their_screens() {
    let mut player = player();
    let text = Text { title: "Hello".to_owned(), body: "You".to_owned() };
    let notification_id = Uuid::now_v7();
    player.messages.push(Notification {
        notification_id,
        user_id: *player.user.id.as_uuid(),
        position: 1,
        template: String::new(),
        texts: [("en".to_owned(), text)].into(),
        data: json!({}),
        created_at: AT.as_millis(),
        expires_at: None,
        seen_at: None,
        read_at: None,
        archived_at: None,
        traceparent: None,
    });
    player.tickets.push(PlayerTicket {
        estimate: None,
        id: TicketId::parse("dbt8pcfejq8o287bsa0g").unwrap(),
        queue: "duel".to_owned(),
        state: PlayerState::Assigned,
        created_at: AT,
        expires_at: None,
        assignment: Some(PlayerAssignment {
            connection: "a.example:1".to_owned(),
            ..PlayerAssignment::default()
        }),
        ready_check: None,
        reason: None,
    });
    let inbox = notify("ada", &player);
    let row = &table(&inbox).rows[0].cells;
    assert_eq!(row[0], Cell::link("Hello", format!("/console/notifications/{notification_id}")));
    assert_eq!(value(&inbox.actions[0], "title"), "Hello, Ada Lovelace");
    let tickets = queue("ada", ["duel", "ranked"].into_iter(), &player);
    assert_eq!(table(&tickets).rows[0].cells[4], Cell::code("a.example:1"));
    let queues: Vec<&str> = tickets.actions.iter().map(|action| value(action, "queue")).collect();
    assert_eq!(queues, ["duel", "ranked"]);
}

#[test]
fn missing_queues_are_reported() {
    let section = queue("ada", std::iter::empty(), &player());
    assert!(matches!(section.blocks.last(), Some(Block::Notice { tone: Tone::Warning, .. })));
}

#[test]
fn drops_that_can_be_opened_are_offered_and_new_ones_get_a_free_name() {
    let drop = |name: &str, state| ListedDrop { id: DropId::generate(), name: name.to_owned(), state };
    let drops = [
        drop("Demo drop 2", DropState::Draft),
        drop("Demo drop", DropState::Closed),
        drop("Golden hat", DropState::Open),
    ];
    let section = drop_section(&drops);
    let rows = &table(&section).rows;
    assert_eq!(rows.len(), 2, "drops that have ended are left out");
    assert_eq!(rows[0].actions[0].route, "POST /drops/{drop_id}/open");
    assert_eq!(value(&rows[0].actions[0], "drop_id"), drops[0].id.to_string());
    assert!(rows[1].actions.is_empty(), "it is open");
    assert_eq!(value(&section.actions[0], "name"), "Demo drop 3");
    assert_eq!(value(&create_drop(&[]), "name"), "Demo drop");
}
