//! FrontendService over REST, as Open Match's HTTP gateway has it.

use buffa::{Message, MessageField};
use matchmaking::model::TicketId;
use matchmaking::store::{AfterNotify, AssignmentGroup, Assignments};
use proto::{openmatch, playhouse};
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::Served;

const TICKETS: &str = "/v1/frontendservice/tickets";

async fn create(served: &Served) -> String {
    let (status, ticket) = served.rest(Method::POST, TICKETS, r#"{"ticket":{}}"#).await;
    assert_eq!(status, 200, "{ticket}");
    ticket["id"].as_str().unwrap().to_owned()
}

/// Assigns a ticket as an engine does.
pub(crate) async fn assign(served: &Served, id: &str, connection: &str) {
    let assignment = openmatch::Assignment { connection: connection.to_owned(), ..Default::default() };
    let made = playhouse::MatchMade {
        match_id: "match".to_owned(),
        ticket_ids: vec![id.to_owned()],
        assignment: MessageField::some(assignment.clone()),
        ..Default::default()
    };
    let made = playhouse::MatchesMade { matches: vec![made], ..Default::default() };
    let group = AssignmentGroup {
        fence: None,
        claim: None,
        tickets: vec![TicketId::parse(id).unwrap()],
        assignments: Assignments::Shared(assignment.encode_to_bytes()),
        encoded_match: made.encode_to_bytes(),
        room: None,
    };
    let assigned = served.store.assign(&[group]).await.unwrap();
    served.store.notify(&assigned.batches, AfterNotify::Remove).await.unwrap();
}

fn error(code: u32, message: &str) -> Value {
    json!({ "code": code, "message": message, "details": [] })
}

#[tokio::test(flavor = "multi_thread")]
async fn both_spellings_are_read_and_that_of_the_proto_files_is_written() {
    let served = Served::in_memory().await;
    let fields = json!({ "string_args": { "gameMode": "duel" }, "doubleArgs": { "mmr": 1.5 } });
    let body = json!({ "ticket": { "searchFields": fields }, "unknown": 1 });
    let (status, ticket) = served.rest(Method::POST, TICKETS, body.to_string()).await;
    let expected = json!({ "string_args": { "gameMode": "duel" }, "double_args": { "mmr": 1.5 } });
    assert_eq!((status, &ticket["search_fields"]), (200, &expected), "{ticket}");
    assert!(ticket["create_time"].is_string(), "{ticket}");
    let one = format!("{TICKETS}/{}", ticket["id"].as_str().unwrap());
    assert_eq!(served.rest(Method::GET, &one, "").await, (200, ticket.clone()));
    // Connect keeps the names of JSON.
    let get = json!({ "ticketId": ticket["id"] });
    let (_, ticket) = served.connect("openmatch.FrontendService/GetTicket", get).await;
    assert!(ticket["createTime"].is_string() && ticket["searchFields"].is_object(), "{ticket}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_tickets_are_refused_with_the_messages_of_open_match() {
    let served = Served::in_memory().await;
    for (ticket, words) in [
        (json!(null), ".ticket is required"),
        (json!({ "assignment": {} }), "tickets cannot be created with an assignment"),
        (json!({ "create_time": "2026-03-01T12:00:00Z" }), "tickets cannot be created with create time set"),
    ] {
        let body = json!({ "ticket": ticket });
        let refused = served.rest(Method::POST, TICKETS, body.to_string()).await;
        assert_eq!(refused, (400, error(3, words)));
        let (status, refused) = served.connect("openmatch.FrontendService/CreateTicket", body).await;
        assert_eq!((status, refused), (400, json!({ "code": "invalid_argument", "message": words })));
    }
    assert_eq!(served.rest(Method::POST, TICKETS, "").await, (400, error(3, ".ticket is required")));
    for wrong in [r#"{"ticket""#, "[]", "1", r#"{"ticket":{"search_fields":{"tags":"eu"}}}"#] {
        let (status, refused) = served.rest(Method::POST, TICKETS, wrong).await;
        assert_eq!((status, &refused["code"]), (400, &json!(3)), "{wrong}: {refused}");
    }
    let (status, refused) = served.rest(Method::POST, TICKETS, "x".repeat(1 << 20)).await;
    assert_eq!((status, &refused["code"]), (429, &json!(8)), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_and_unknown_tickets_are_not_found() {
    let served = Served::in_memory().await;
    let id = create(&served).await;
    let one = format!("{TICKETS}/{id}");
    assert_eq!(served.rest(Method::DELETE, &one, "").await, (200, json!({})));
    assert_eq!(served.rest(Method::DELETE, &one, "").await, (200, json!({})), "also again");
    let odd = ["x".repeat(300), "%20%2F%C3%BC".to_owned(), "nobody".to_owned()];
    for odd in odd.into_iter().chain([id]) {
        let name = odd.replace("%20%2F%C3%BC", " /ü");
        let expected = error(5, &format!("Ticket id: {name} not found"));
        let path = format!("{TICKETS}/{odd}");
        assert_eq!(served.rest(Method::GET, &path, "").await, (404, expected.clone()));
        assert_eq!(served.rest(Method::DELETE, &path, "").await, (200, json!({})));
        let watch = served.rest(Method::GET, &format!("{path}/assignments"), "").await;
        assert_eq!(watch, (404, json!({ "error": expected })));
    }
    for (method, status) in [("GetTicket", 404), ("DeleteTicket", 200)] {
        let answer = served.connect(&format!("openmatch.FrontendService/{method}"), json!({})).await;
        assert_eq!(answer.0, status, "{method} without an id: {}", answer.1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_is_one_line_per_assignment() {
    let served = Served::in_memory().await;
    let id = create(&served).await;
    let watch = format!("{TICKETS}/{id}/assignments");
    let mut early = served.open(&watch).await;
    assign(&served, &id, "10.0.0.1:7777").await;
    let expected = json!({ "result": { "assignment": { "connection": "10.0.0.1:7777" } } });
    let mut late = served.open(&watch).await;
    for lines in [&mut early, &mut late] {
        let line = lines.chunk().await.unwrap().unwrap();
        assert!(line.ends_with(b"\n"));
        assert_eq!(serde_json::from_slice::<Value>(&line).unwrap(), expected);
    }
    let words = format!("ticket {id} is already assigned");
    let refused = served.rest(Method::DELETE, &format!("{TICKETS}/{id}"), "").await;
    assert_eq!(refused, (400, error(9, &words)), "FAILED_PRECONDITION");

    // A failure during the stream is its last line.
    let other = create(&served).await;
    let mut lines = served.open(&format!("{TICKETS}/{other}/assignments")).await;
    assert_eq!(lines.status(), 200);
    served.rest(Method::DELETE, &format!("{TICKETS}/{other}"), "").await;
    let line: Value = serde_json::from_slice(&lines.chunk().await.unwrap().unwrap()).unwrap();
    assert_eq!(line, json!({ "error": error(5, &format!("Ticket id: {other} not found")) }));
    assert_eq!(lines.chunk().await.unwrap(), None);
}
