//! Backfills over REST, as Open Match's HTTP gateway has them, and over Connect.

use matchmaking::ProposedBackfill;
use matchmaking::model::{Moment, TicketId};
use matchmaking::store::{ClaimOutcome, ClaimRequest, Holder};
use proto::openmatch;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{LIMITS, Served};

const BACKFILLS: &str = "/v1/frontendservice/backfills";

fn error(code: u32, message: &str) -> Value {
    json!({ "code": code, "message": message, "details": [] })
}

#[tokio::test(flavor = "multi_thread")]
async fn backfills_over_rest_and_connect() {
    let served = Served::in_memory().await;
    let body = json!({ "backfill": { "search_fields": { "tags": ["desert"] } } });
    let (status, created) = served.rest(Method::POST, BACKFILLS, body.to_string()).await;
    assert_eq!(
        (status, &created["generation"], &created["search_fields"]["tags"]),
        (200, &json!("1"), &json!(["desert"]))
    );
    let id = created["id"].as_str().unwrap();
    let one = format!("{BACKFILLS}/{id}");
    assert_eq!(served.rest(Method::GET, &one, "").await, (200, created.clone()));
    let (_, read) =
        served.connect("openmatch.FrontendService/GetBackfill", json!({ "backfillId": id })).await;
    assert_eq!((&read["id"], &read["createTime"]), (&created["id"], &created["create_time"]));

    // A match function adds a ticket, and the game server takes it.
    let (_, ticket) = served.rest(Method::POST, "/v1/frontendservice/tickets", r#"{"ticket":{}}"#).await;
    let wire = openmatch::Backfill { id: id.to_owned(), generation: 1, ..Default::default() };
    let proposed = ProposedBackfill::read(wire, Moment::default(), LIMITS).unwrap();
    let tickets = vec![TicketId::parse(ticket["id"].as_str().unwrap()).unwrap()];
    let request =
        ClaimRequest { number: None, holder: Holder::default(), tickets, backfill: Some(proposed.change) };
    assert!(matches!(served.store.claim(&[request]).await.unwrap()[..], [ClaimOutcome::Claimed(_)]));
    let assignment = json!({ "assignment": { "connection": "10.0.0.1:7777" } }).to_string();
    let (status, answer) = served.rest(Method::POST, &format!("{one}/acknowledge"), assignment.clone()).await;
    assert_eq!((status, &answer["backfill"]["generation"]), (200, &json!("2")), "{answer}");
    assert_eq!(answer["tickets"][0]["id"], ticket["id"]);
    assert_eq!(answer["tickets"][0]["assignment"]["connection"], "10.0.0.1:7777");
    let acknowledge = json!({ "backfillId": id, "assignment": {} });
    let (status, again) = served.connect("openmatch.FrontendService/AcknowledgeBackfill", acknowledge).await;
    assert_eq!((status, &again["tickets"]), (200, &Value::Null));

    let update = json!({ "backfill": { "id": id, "generation": "42" } });
    let (status, updated) = served.rest(Method::PATCH, BACKFILLS, update.to_string()).await;
    assert_eq!((status, &updated["generation"], &updated["search_fields"]), (200, &json!("3"), &Value::Null));
    for _ in 0..2 {
        assert_eq!(served.rest(Method::DELETE, &one, "").await, (200, json!({})));
    }
    let gone = (404, error(5, &format!("Backfill id: {id} not found")));
    assert_eq!(served.rest(Method::GET, &one, "").await, gone);
    assert_eq!(served.rest(Method::POST, &format!("{one}/acknowledge"), assignment).await, gone);
    assert_eq!(served.rest(Method::PATCH, BACKFILLS, update.to_string()).await, gone);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_calls_about_backfills_are_refused_with_the_messages_of_open_match() {
    let served = Served::in_memory().await;
    let many: serde_json::Map<String, Value> = (0..101).map(|n| (format!("f{n}"), json!(1.0))).collect();
    for (method, path, body, words) in [
        (Method::POST, BACKFILLS, json!({}), ".backfill is required"),
        (
            Method::POST,
            BACKFILLS,
            json!({ "backfill": { "create_time": "2026-03-01T12:00:00Z" } }),
            "backfills cannot be created with create time set",
        ),
        (
            Method::POST,
            BACKFILLS,
            json!({ "backfill": { "search_fields": { "double_args": many } } }),
            "backfill.search_fields.double_args has 101 entries; at most 100 are allowed",
        ),
        (Method::PATCH, BACKFILLS, json!({}), ".backfill is required"),
        (Method::PATCH, BACKFILLS, json!({ "backfill": {} }), "backfill ID should exist"),
        (Method::POST, "/v1/frontendservice/backfills/x/acknowledge", json!({}), ".Assignment is required"),
    ] {
        assert_eq!(served.rest(method, path, body.to_string()).await, (400, error(3, words)));
    }
    for method in ["DeleteBackfill", "AcknowledgeBackfill"] {
        let refused = served.connect(&format!("openmatch.FrontendService/{method}"), json!({})).await;
        assert_eq!(
            refused,
            (400, json!({ "code": "invalid_argument", "message": ".BackfillId is required" }))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn query_finds_backfills_in_pages_over_rest() {
    let served = Served::in_memory().await;
    let query = async |pool: Value| {
        let url = format!("http://{}/v1/queryservice/backfills:query", served.address);
        let response = reqwest::Client::new().post(url).body(pool.to_string()).send().await.unwrap();
        let (status, text) = (response.status().as_u16(), response.text().await.unwrap());
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (status, lines)
    };
    assert_eq!(query(json!({ "pool": {} })).await, (200, vec![]));
    for number in 0..51 {
        let body = json!({ "backfill": { "search_fields": { "double_args": { "slots": number } } } });
        assert_eq!(served.rest(Method::POST, BACKFILLS, body.to_string()).await.0, 200);
    }
    let sizes = |lines: &[Value]| -> Vec<usize> {
        lines.iter().map(|line| line["result"]["backfills"].as_array().unwrap().len()).collect()
    };
    assert_eq!(sizes(&query(json!({ "pool": {} })).await.1), [10, 10, 10, 10, 10, 1]);
    let range = json!({ "double_arg": "slots", "min": 49, "max": 60 });
    let (_, found) = query(json!({ "pool": { "double_range_filters": [range] } })).await;
    assert_eq!(sizes(&found), [2]);
    assert_eq!(found[0]["result"]["backfills"][0]["generation"], "1");
    let refused = json!({ "error": error(3, ".pool is required") });
    assert_eq!(query(json!({})).await, (400, vec![refused]));
}
