//! BackendService over REST and gRPC, as Directors call it.

use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use connectrpc::client::{ClientConfig, HttpClient};
use connectrpc::{ErrorCode, Protocol};
use futures::StreamExt;
use proto::openmatch::{self, BackendServiceClient};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::server::Served;

const TICKETS: &str = "/v1/frontendservice/tickets";
const FETCH: &str = "/v1/backendservice/matches:fetch";

async fn create(served: &Served) -> String {
    let (status, ticket) = served.rest(Method::POST, TICKETS, r#"{"ticket":{}}"#).await;
    assert_eq!(status, 200, "{ticket}");
    ticket["id"].as_str().unwrap().to_owned()
}

/// Serves a REST match function that answers with these lines.
pub(crate) async fn function(lines: Vec<Value>) -> u16 {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let router = Router::new().route("/v1/matchfunction:run", post(async move || body));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    port
}

fn error(code: u32, message: &str) -> Value {
    json!({ "code": code, "message": message, "details": [] })
}

#[tokio::test(flavor = "multi_thread")]
async fn director_fetches_assigns_and_releases_over_rest() {
    let served = Served::in_memory().await;
    let (a, b) = (create(&served).await, create(&served).await);
    let proposal = json!({ "match_id": "1", "match_profile": "duel", "tickets": [{ "id": a }, { "id": b }] });
    let lines = vec![
        json!({ "result": { "proposal": proposal } }),
        json!({ "error": { "code": 2, "message": "no such map" } }),
    ];
    let port = function(lines).await;
    let config = json!({ "host": "127.0.0.1", "port": port, "type": "REST" });
    let request = json!({ "config": config, "profile": { "name": "duel" } });
    let url = format!("http://{}{FETCH}", served.address);
    let fetched = reqwest::Client::new().post(&url).body(request.to_string()).send().await.unwrap();
    let fetched: Vec<Value> =
        fetched.text().await.unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(fetched.len(), 2, "{fetched:?}");
    assert_eq!(fetched[0]["result"]["match"]["match_id"], "1");
    assert_eq!(fetched[0]["result"]["match"]["tickets"][1]["id"], b);
    assert_eq!(fetched[1]["error"]["code"], 2);
    let text = fetched[1]["error"]["message"].as_str().unwrap();
    assert!(
        text.starts_with("error(s) in FetchMatches call. syncErr=[<nil>], mmfErr=[")
            && text.contains("no such map")
    );

    let release = json!({ "ticket_ids": [b] }).to_string();
    assert_eq!(
        served.rest(Method::POST, "/v1/backendservice/tickets:release", release).await,
        (200, json!({}))
    );
    assert_eq!(
        served.rest(Method::POST, "/v1/backendservice/tickets:releaseall", "{}").await,
        (200, json!({}))
    );
    let group = json!({ "ticket_ids": [a, "gone"], "assignment": { "connection": "10.0.0.1:1" } });
    let assign = json!({ "assignments": [group] }).to_string();
    let (status, assigned) = served.rest(Method::POST, "/v1/backendservice/tickets:assign", assign).await;
    let failures = json!([{ "ticket_id": "gone", "cause": "TICKET_NOT_FOUND" }]);
    assert_eq!((status, &assigned["failures"]), (200, &failures), "{assigned}");
    let (_, ticket) = served.rest(Method::GET, &format!("{TICKETS}/{a}"), "").await;
    assert_eq!(ticket["assignment"]["connection"], "10.0.0.1:1");
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_of_a_director_are_refused_with_the_messages_of_open_match() {
    let served = Served::in_memory().await;
    let config = json!({ "host": "127.0.0.1", "port": 1 });
    for (path, body, words) in [
        ("matches:fetch", json!({ "profile": {} }), ".config is required"),
        ("matches:fetch", json!({ "config": config }), ".profile is required"),
        ("tickets:assign", json!({ "assignments": [{}] }), "AssignmentGroup.Assignment is required"),
        (
            "tickets:assign",
            json!({ "assignments": [{ "assignment": {} }] }),
            "AssignmentGroupTicketIds is empty",
        ),
    ] {
        let path = format!("/v1/backendservice/{path}");
        let (status, refused) = served.rest(Method::POST, &path, body.to_string()).await;
        let refused = if refused["error"].is_object() { refused["error"].clone() } else { refused };
        assert_eq!((status, refused), (400, error(3, words)));
    }
    assert_eq!(served.rest(Method::POST, "/v1/backendservice/tickets:assign", "{}").await.0, 200);
}

/// Tells when it is dropped.
struct OnDrop(tokio::sync::mpsc::UnboundedSender<String>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.send("cancelled".to_owned());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn call_ends_at_the_deadline_of_its_director() {
    let served = Served::in_memory().await;
    // A match function that never ends. It tells what it hears.
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let run = async move |headers: http::HeaderMap| {
        told.send(headers["grpc-timeout"].to_str().unwrap().to_owned()).unwrap();
        let guard = OnDrop(told.clone());
        let silence = futures::stream::pending::<Result<String, std::convert::Infallible>>();
        axum::body::Body::from_stream(silence.inspect(move |_| _ = &guard))
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = Router::new().route("/v1/matchfunction:run", post(run));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let config = json!({ "host": "127.0.0.1", "port": port, "type": "REST" });
    let request = json!({ "config": config, "profile": {} });
    let rest = async |timeout: &str| {
        let call = reqwest::Client::new().post(format!("http://{}{FETCH}", served.address));
        let answer = call.header("grpc-timeout", timeout).body(request.to_string()).send().await.unwrap();
        let text = answer.text().await.unwrap();
        serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let grpc_web = async || {
        let r#type = openmatch::function_config::Type::REST;
        let config = openmatch::FunctionConfig {
            host: "127.0.0.1".to_owned(),
            port: port.into(),
            r#type: r#type.into(),
            ..Default::default()
        };
        let request = openmatch::FetchMatchesRequest {
            config: Some(config).into(),
            profile: Some(openmatch::MatchProfile::default()).into(),
            ..Default::default()
        };
        let message = buffa::Message::encode_to_vec(&request);
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let url = format!("http://{}/openmatch.BackendService/FetchMatches", served.address);
        let call = reqwest::Client::new().post(url).header("content-type", "application/grpc-web+proto");
        let call = call.header("grpc-timeout", "400m").body([&[0][..], &length, &message].concat());
        String::from_utf8_lossy(&call.send().await.unwrap().bytes().await.unwrap()).into_owned()
    };
    for is_rest in [true, false] {
        let started = Instant::now();
        if is_rest {
            let answer = rest("400m").await;
            assert_eq!(answer["error"]["code"], 4, "{answer}");
        } else {
            let answer = grpc_web().await;
            assert!(answer.contains("grpc-status: 4") || answer.contains("grpc-status:4"), "{answer:?}");
        }
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(10), "{took:?}");
        let timeout = heard.recv().await.unwrap();
        let left: u64 = timeout.strip_suffix('m').unwrap().parse().unwrap();
        assert!((1..=400).contains(&left), "{timeout}");
        let last = tokio::time::timeout(crate::PATIENCE, heard.recv()).await.unwrap();
        assert_eq!(last.unwrap(), "cancelled");
    }
    for odd in ["", "1", "s", "+1S", "1s", "123456789m", "1.5S"] {
        let answer = rest(odd).await;
        assert_eq!(answer, error(3, &format!("invalid grpc-timeout: {odd}")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_has_the_codes_of_open_match() {
    let served = Served::in_memory().await;
    let config = ClientConfig::new(format!("http://{}", served.address).parse().unwrap());
    let client =
        BackendServiceClient::new(HttpClient::plaintext_http2_only(), config.with_protocol(Protocol::Grpc));
    let fetch = async |config: Option<openmatch::FunctionConfig>| {
        let request = openmatch::FetchMatchesRequest {
            config: config.into(),
            profile: Some(openmatch::MatchProfile::default()).into(),
            ..Default::default()
        };
        match client.fetch_matches(request).await {
            Ok(mut matches) => matches.message().await.err(),
            Err(error) => Some(error),
        }
    };
    let refused = fetch(None).await.unwrap();
    assert_eq!(
        (refused.code, refused.message.as_deref()),
        (ErrorCode::InvalidArgument, Some(".config is required"))
    );
    let gone = openmatch::FunctionConfig { host: "127.0.0.1".to_owned(), port: 1, ..Default::default() };
    let failed = fetch(Some(gone)).await.unwrap();
    assert_eq!(failed.code, ErrorCode::Unknown, "{failed}");
    assert!(failed.message.unwrap().contains("mmfErr=[rpc error: code = Unavailable"));
}
