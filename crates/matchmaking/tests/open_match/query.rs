//! QueryService by gRPC and REST: what the end-to-end tests of Open Match expect of it.

use std::collections::BTreeSet;
use std::time::Duration;

use buffa::{Message, MessageField};
use matchmaking::model::{Moment, TicketId};
use matchmaking::store::{AfterNotify, AssignmentGroup, Assignments, NewTicket};
use proto::{openmatch, playhouse};
use reqwest::{Client, Response};
use serde_json::{Value, json};

use crate::server::Served;

const TICKETS: &str = "/v1/queryservice/tickets:query";
const IDS: &str = "/v1/queryservice/ticketids:query";

/// Creates ticket number `n` with a rating of `n` and this many bytes more.
async fn create(served: &Served, number: u32, size: usize) -> String {
    let fields = openmatch::SearchFields {
        double_args: [("mmr".to_owned(), f64::from(number))].into_iter().collect(),
        tags: vec!["x".repeat(size)],
        ..Default::default()
    };
    let id = TicketId::parse(&format!("t{number:05}")).unwrap();
    let ticket = openmatch::Ticket {
        id: id.to_string(),
        search_fields: MessageField::some(fields),
        ..Default::default()
    };
    let (created, ttl) = (Moment::from_micros(i64::from(number)), Duration::from_secs(600));
    let new = NewTicket { id: id.clone(), created, ttl, data: ticket.encode_to_bytes() };
    served.store.create(new).await.unwrap();
    id.to_string()
}

fn pool(min: f64, max: f64) -> openmatch::Pool {
    let range = openmatch::DoubleRangeFilter { double_arg: "mmr".to_owned(), min, max, ..Default::default() };
    openmatch::Pool { double_range_filters: vec![range], ..Default::default() }
}

/// Starts a call of gRPC.
async fn grpc(client: &Client, served: &Served, method: &str, pool: Option<openmatch::Pool>) -> Response {
    let request = openmatch::QueryTicketsRequest { pool: pool.into(), ..Default::default() };
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let request = client.post(format!("http://{}/openmatch.QueryService/{method}", served.address));
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    request.body([&[0][..], &length, &message].concat()).send().await.unwrap()
}

fn http2() -> Client {
    Client::builder().http2_prior_knowledge().build().unwrap()
}

/// Returns the messages of a stream.
fn messages(mut body: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    while let Some((head, rest)) = body.split_at_checked(5) {
        let length = usize::try_from(u32::from_be_bytes(head[1..].try_into().unwrap())).unwrap();
        messages.push(&rest[..length]);
        body = &rest[length..];
    }
    messages
}

/// Returns the ids in each response of a call by gRPC.
async fn pages_by_grpc(served: &Served, method: &str, pool: openmatch::Pool) -> Vec<Vec<String>> {
    let response = grpc(&http2(), served, method, Some(pool)).await;
    assert_eq!(response.status(), 200);
    let body = response.bytes().await.unwrap();
    let ids = |page: &[u8]| match method {
        "QueryTickets" => {
            let page = openmatch::QueryTicketsResponse::decode_from_slice(page).unwrap();
            page.tickets.into_iter().map(|ticket| ticket.id).collect()
        }
        _ => openmatch::QueryTicketIdsResponse::decode_from_slice(page).unwrap().ids,
    };
    messages(&body).into_iter().map(ids).collect()
}

/// Returns the ids in each response of a call by REST.
async fn pages_by_rest(served: &Served, path: &str, pool: Value) -> Vec<Vec<String>> {
    let request = Client::new().post(format!("http://{}{path}", served.address));
    let response = request.body(json!({ "pool": pool }).to_string()).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let text = response.text().await.unwrap();
    let ids = |line: &str| {
        let page: Value = serde_json::from_str(line).unwrap();
        let id = |item: &Value| item["id"].as_str().or(item.as_str()).unwrap().to_owned();
        let items = page["result"].get("tickets").or(page["result"].get("ids"));
        items.unwrap().as_array().unwrap().iter().map(id).collect()
    };
    text.lines().map(ids).collect()
}

/// Returns the ids in each response of all four calls, after checking that they agree.
async fn pages(served: &Served, min: f64, max: f64) -> Vec<Vec<String>> {
    let wire = pool(min, max);
    let json = json!({ "double_range_filters": [{ "double_arg": "mmr", "min": min, "max": max }] });
    let tickets = pages_by_grpc(served, "QueryTickets", wire.clone()).await;
    assert_eq!(pages_by_grpc(served, "QueryTicketIds", wire).await, tickets);
    assert_eq!(pages_by_rest(served, TICKETS, json.clone()).await, tickets);
    assert_eq!(pages_by_rest(served, IDS, json).await, tickets);
    tickets
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_is_required() {
    let served = Served::in_memory().await;
    for path in [TICKETS, IDS] {
        let request = Client::new().post(format!("http://{}{path}", served.address));
        let refused = request.body("{}").send().await.unwrap();
        assert_eq!(refused.status(), 400);
        let refused: Value = refused.json().await.unwrap();
        let refused = refused.get("error").unwrap_or(&refused);
        assert_eq!(refused, &json!({ "code": 3, "message": ".pool is required", "details": [] }));
    }
    for method in ["QueryTickets", "QueryTicketIds"] {
        let refused = grpc(&http2(), &served, method, None).await;
        assert_eq!(refused.headers()["grpc-status"], "3");
        assert_eq!(refused.headers()["grpc-message"], ".pool is required");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_times_are_refused() {
    let served = Served::in_memory().await;
    for (seconds, nanos) in [(0, -1), (0, 1_000_000_000), (-62_135_596_801, 0), (253_402_300_800, 0)] {
        let time = buffa_types::google::protobuf::Timestamp { seconds, nanos, ..Default::default() };
        for is_before in [true, false] {
            let (before, after) = match is_before {
                true => (Some(time.clone()), None),
                false => (None, Some(time.clone())),
            };
            let pool = openmatch::Pool {
                created_before: before.into(),
                created_after: after.into(),
                ..Default::default()
            };
            let refused = grpc(&http2(), &served, "QueryTickets", Some(pool)).await;
            assert_eq!(refused.headers()["grpc-status"], "3");
            let name = if is_before { "created_before" } else { "created_after" };
            assert_eq!(refused.headers()["grpc-message"], format!(".invalid {name} value"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_ticket_is_no_response() {
    let served = Served::in_memory().await;
    assert_eq!(pages(&served, 0.0, 100.0).await, [[]; 0] as [[String; 0]; 0]);
    create(&served, 101, 0).await;
    assert_eq!(pages(&served, 0.0, 100.0).await, [[]; 0] as [[String; 0]; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_one_tickets_are_five_pages_of_ten_and_one_ticket() {
    let served = Served::in_memory().await;
    let mut created = BTreeSet::new();
    for number in 0..51 {
        created.insert(create(&served, number, 0).await);
    }
    let pages = pages(&served, 0.0, 100.0).await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<usize>>(), [10, 10, 10, 10, 10, 1]);
    assert_eq!(pages.concat().into_iter().collect::<BTreeSet<String>>(), created);
}

#[tokio::test(flavor = "multi_thread")]
async fn ticket_is_found_by_a_pool_that_it_is_in_and_by_no_other() {
    let served = Served::in_memory().await;
    let id = create(&served, 5, 0).await;
    assert_eq!(pages(&served, 5.0, 6.0).await, [[id.as_str()]]);
    assert_eq!(pages(&served, 4.0, 5.0).await, [[id.as_str()]]);
    assert_eq!(pages(&served, 5.1, 6.0).await, [[]; 0] as [[String; 0]; 0]);
    // All fields of the ticket arrive.
    let pool = json!({ "doubleRangeFilters": [{ "doubleArg": "mmr", "max": 5 }] });
    let request = Client::new().post(format!("http://{}{TICKETS}", served.address));
    let found = request.body(json!({ "pool": pool }).to_string()).send().await.unwrap();
    let found: Value = serde_json::from_str(&found.text().await.unwrap()).unwrap();
    let fields = json!({ "double_args": { "mmr": 5.0 }, "tags": [""] });
    assert_eq!(found["result"]["tickets"], json!([{ "id": id, "search_fields": fields }]));
}

#[tokio::test(flavor = "multi_thread")]
async fn assigned_ticket_is_not_found() {
    let served = Served::in_memory().await;
    let (assigned, waiting) = (create(&served, 1, 0).await, create(&served, 2, 0).await);
    assert_eq!(pages(&served, 0.0, 5.0).await.concat().len(), 2);
    let assignment = openmatch::Assignment { connection: "host:1".to_owned(), ..Default::default() };
    let made = playhouse::MatchMade { ticket_ids: vec![assigned.clone()], ..Default::default() };
    let made = playhouse::MatchesMade { matches: vec![made], ..Default::default() };
    let group = AssignmentGroup {
        claim: None,
        fence: None,
        tickets: vec![TicketId::parse(&assigned).unwrap()],
        assignments: Assignments::Shared(assignment.encode_to_bytes()),
        encoded_match: made.encode_to_bytes(),
        room: None,
    };
    let done = served.store.assign(&[group]).await.unwrap();
    served.store.notify(&done.batches, AfterNotify::Remove).await.unwrap();
    assert_eq!(pages(&served, 0.0, 5.0).await, [[waiting]]);
}

/// Returns the resident memory of this process in MiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_cost_no_memory() {
    const TICKETS: u32 = 4_000;
    let served = Served::in_memory().await;
    for number in 0..TICKETS {
        create(&served, number, 8 << 10).await;
    }
    // The index is filled, and the allocator has what one answer takes.
    assert_eq!(pages_by_grpc(&served, "QueryTickets", pool(0.0, 1e9)).await.concat().len(), 4_000);
    let before = memory();
    let mut slow = Vec::new();
    for _ in 0..40 {
        // A connection each, and 32 MiB of tickets.
        slow.push(grpc(&http2(), &served, "QueryTickets", Some(pool(0.0, 1e9))).await);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let grown = memory().saturating_sub(before);
    // Of 1,280 MiB. Each connection has a window of 2 MiB, which the client buffers in this process.
    assert!(grown < 320, "{grown} MiB");
    // None of them has lost anything.
    let body = slow.swap_remove(7).bytes().await.unwrap();
    let count = |page: &[u8]| openmatch::QueryTicketsResponse::decode_from_slice(page).unwrap().tickets.len();
    assert_eq!(messages(&body).into_iter().map(count).sum::<usize>(), 4_000);
}
