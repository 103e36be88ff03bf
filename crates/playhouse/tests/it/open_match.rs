//! The Open Match listener with clients of all protocols.

use std::path::Path;
use std::process::Command;

use reqwest::Client;
use serde_json::{Value, json};
use testkit::{Folder, RunningProgram, eventually, need};

use super::{PATIENCE, addresses, dev};

/// Starts `playhouse dev`. Returns it with the address of its Open Match listener.
async fn open_match() -> (RunningProgram, String) {
    let running = dev(&["--ephemeral"]).start().unwrap();
    let address = addresses(&running).await["open_match"].clone();
    (running, address)
}

async fn post(url: String, body: Value) -> (u16, Value) {
    let response = Client::new().post(url).json(&body).send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

async fn post_text(url: &str, body: &str) -> (u16, Value) {
    let response = Client::new().post(url).body(body.to_owned()).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// Fails if the tools that generate a Python client are missing.
pub(crate) fn tools() -> Result<(), testkit::Error> {
    let exists = |path: &str| Path::new(path).exists();
    let missing = |program| testkit::Error::Missing { program, remedy: "`cargo xtask test` installs it" };
    if !exists("/usr/bin/protoc") || !exists("/usr/include/google/protobuf") {
        return Err(missing("protoc"));
    }
    if !exists("/usr/bin/grpc_python_plugin") || !exists("/usr/lib/python3/dist-packages/grpc") {
        return Err(missing("Python's gRPC"));
    }
    Ok(())
}

/// Runs a command. Returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}\n{text}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Generates Python code of all services of Open Match, as the example does.
pub(crate) fn generate_python(folder: &Folder) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/open-match-director/make-stubs.sh");
    run(Command::new("/bin/sh").arg(script).arg(folder.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_python_client_works() {
    need!(tools());
    let (_running, address) = open_match().await;
    let generated = Folder::fresh().unwrap();
    generate_python(&generated);
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/foreign/client.py");
    let client = tokio::task::spawn_blocking(move || {
        run(Command::new("/usr/bin/python3").arg(client).arg(address).arg(generated.path()))
    });
    assert_eq!(client.await.unwrap().trim(), "passed");
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_can_use_connect_with_json() {
    let (_running, address) = open_match().await;
    let call = async |method: &str, body: Value| {
        post(format!("http://{address}/openmatch.FrontendService/{method}"), body).await
    };
    let (status, ticket) =
        call("CreateTicket", json!({ "ticket": { "searchFields": { "tags": ["eu"] } } })).await;
    assert_eq!(status, 200, "{ticket}");
    assert_eq!(ticket["searchFields"]["tags"][0], "eu");
    let id = ticket["id"].as_str().unwrap().to_owned();
    call("CreateTicket", json!({ "ticket": {} })).await;
    let connection = eventually("the ticket is assigned", PATIENCE, async || {
        let (_, ticket) = call("GetTicket", json!({ "ticketId": id })).await;
        ticket["assignment"]["connection"].as_str().map(ToOwned::to_owned)
    })
    .await;

    // In a stream each message has a prefix of five bytes: a flag and its length in four bytes.
    let message = json!({ "ticketId": id }).to_string();
    let mut body = vec![0];
    body.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    body.extend_from_slice(message.as_bytes());
    let request = Client::new()
        .post(format!("http://{address}/openmatch.FrontendService/WatchAssignments"))
        .header("content-type", "application/connect+json")
        .body(body);
    let mut response = request.send().await.unwrap();
    let chunk = response.chunk().await.unwrap().unwrap();
    let update: Value = serde_json::from_slice(&chunk[5..]).unwrap();
    assert_eq!(update["assignment"]["connection"], connection.as_str());

    let (status, refused) = call("DeleteTicket", json!({ "ticketId": id })).await;
    assert_eq!((status, &refused["code"]), (400, &json!("failed_precondition")));
    let (status, unknown) = call("GetTicket", json!({ "ticketId": "nobody" })).await;
    assert_eq!((status, &unknown["code"]), (404, &json!("not_found")));
}

#[tokio::test(flavor = "multi_thread")]
async fn extension_of_a_known_type_survives_json() {
    let (_running, address) = open_match().await;
    let text = json!({ "@type": "type.googleapis.com/google.protobuf.StringValue", "value": "hi" });
    let (status, ticket) = post(
        format!("http://{address}/v1/frontendservice/tickets"),
        json!({ "ticket": { "extensions": { "a": text } } }),
    )
    .await;
    assert_eq!((status, &ticket["extensions"]["a"]), (200, &text), "{ticket}");
}

#[tokio::test(flavor = "multi_thread")]
async fn extension_with_invalid_bytes_is_an_error() {
    let (_running, address) = open_match().await;
    let mut ticket = proto::openmatch::Ticket::default();
    let claim = buffa_types::google::protobuf::Any {
        type_url: "type.googleapis.com/google.protobuf.StringValue".to_owned(),
        value: vec![0x0a, 0xff].into(),
        ..Default::default()
    };
    ticket.extensions.insert("odd".to_owned(), claim);
    let request = proto::openmatch::CreateTicketRequest { ticket: Some(ticket).into(), ..Default::default() };
    let made = Client::new()
        .post(format!("http://{address}/openmatch.FrontendService/CreateTicket"))
        .header("content-type", "application/proto")
        .body(buffa::Message::encode_to_vec(&request))
        .send();
    let data = made.await.unwrap().bytes().await.unwrap();
    let id = <proto::openmatch::Ticket as buffa::Message>::decode_from_slice(&data).unwrap().id;
    let (status, problem) = super::get(format!("http://{address}/v1/frontendservice/tickets/{id}")).await;
    assert_eq!((status, &problem["code"]), (500, &json!(13)), "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rest_follows_the_open_match_mapping() {
    let (_running, address) = open_match().await;
    let tickets = format!("http://{address}/v1/frontendservice/tickets");
    let (status, ticket) = post(tickets.clone(), json!({ "ticket": {} })).await;
    assert_eq!(status, 200);
    let one = format!("{tickets}/{}", ticket["id"].as_str().unwrap());
    assert_eq!(super::get(one.clone()).await, (200, ticket));
    let client = Client::new();
    assert_eq!(client.delete(&one).send().await.unwrap().status(), 200);
    let (status, problem) = super::get(one.clone()).await;
    let words = format!("Ticket id: {} not found", one.rsplit('/').next().unwrap());
    let error = json!({ "code": 5, "message": words, "details": [] });
    assert_eq!((status, &problem), (404, &error));
    assert_eq!(super::get(format!("{one}/assignments")).await, (404, json!({ "error": error })));
    assert_eq!(client.delete(&one).send().await.unwrap().status(), 200);
    let (status, problem) =
        post(tickets.clone(), json!({ "ticket": { "searchFields": { "tags": "eu" } } })).await;
    assert_eq!(status, 400);
    assert_eq!(problem["code"], 3, "{problem}");
    let (status, problem) = post_text(&tickets, "{\"ticket\"").await;
    assert_eq!(status, 400);
    assert!(problem["message"].as_str().unwrap().contains("CreateTicketRequest"), "{problem}");
    let (status, problem) = post_text(&tickets, "").await;
    assert_eq!((status, &problem["message"]), (400, &json!(".ticket is required")));
    let (status, problem) = post_text(&tickets, &"x".repeat(1 << 20)).await;
    assert_eq!((status, &problem["code"]), (429, &json!(8)), "{problem}");

    // Both spellings are read, and the one of the .proto files is written.
    let fields = json!({ "string_args": { "gameMode": "duel" }, "doubleArgs": { "mmr": 1.5 } });
    let (_, ticket) = post(tickets.clone(), json!({ "ticket": { "searchFields": fields } })).await;
    let expected = json!({ "string_args": { "gameMode": "duel" }, "double_args": { "mmr": 1.5 } });
    assert_eq!(ticket["search_fields"], expected, "{ticket}");
    assert!(ticket["create_time"].is_string() && ticket["persistent_field"]["ttl"].is_object(), "{ticket}");
    client.delete(format!("{tickets}/{}", ticket["id"].as_str().unwrap())).send().await.unwrap();
    let (status, problem) = post(format!("http://{address}/v1/frontendservice/backfills"), json!({})).await;
    assert_eq!((status, &problem["code"]), (400, &json!(3)), "a backfill is required: {problem}");

    // A watch is one line per message.
    let (_, first) = post(tickets.clone(), json!({ "ticket": {} })).await;
    let watch = format!("{tickets}/{}/assignments", first["id"].as_str().unwrap());
    let mut lines = client.get(watch).send().await.unwrap();
    post(tickets.clone(), json!({ "ticket": {} })).await;
    let line: Value = serde_json::from_slice(&lines.chunk().await.unwrap().unwrap()).unwrap();
    assert!(line["result"]["assignment"]["connection"].is_string(), "{line}");
    let assigned = format!("{tickets}/{}", first["id"].as_str().unwrap());
    let refused = client.delete(assigned).send().await.unwrap();
    assert_eq!(refused.status(), 400, "FAILED_PRECONDITION as the gateway maps it");
}

#[tokio::test(flavor = "multi_thread")]
async fn ticket_limits_are_enforced_and_explained() {
    let (_running, address) = open_match().await;
    let tickets = format!("http://{address}/v1/frontendservice/tickets");
    let tags: Vec<String> = (0..101).map(|tag| tag.to_string()).collect();
    let ttl = |nanos: i64| {
        let ttl =
            json!({ "@type": "type.googleapis.com/google.protobuf.Int64Value", "value": nanos.to_string() });
        json!({ "ticket": { "persistentField": { "ttl": ttl } } })
    };
    for (body, words) in [
        (json!({}), ".ticket is required"),
        (
            json!({ "ticket": { "assignment": { "connection": "x" } } }),
            "tickets cannot be created with an assignment",
        ),
        (
            json!({ "ticket": { "create_time": "2026-03-01T12:00:00Z" } }),
            "tickets cannot be created with create time set",
        ),
        (json!({ "ticket": { "searchFields": { "tags": tags } } }), "at most 100"),
        (json!({ "ticket": { "searchFields": { "tags": ["x".repeat(70_000)] } } }), "bytes"),
        (ttl(0), "ttl"),
        (ttl(-1), "ttl"),
        (ttl(3_600_000_000_001), "3600s"),
    ] {
        let (status, problem) = post(tickets.clone(), body.clone()).await;
        let message = problem["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(words), "{status} {problem}");
    }
    assert_eq!(post(tickets, ttl(1_000_000_000)).await.0, 200);
}
