//! Pages in a real browser (Chromium), of an origin that may call and of one that may not.

use std::sync::Arc;

use axum::Router;
use axum::extract::RawQuery;
use axum::response::Html;
use axum::routing::get;
use serde_json::{Value, json};
use testkit::{Browser, need};
use tokio::net::TcpListener;

use crate::frontend::assign;
use crate::server::Served;

/// Serves an empty page. Returns its origin.
async fn page() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().route("/", get(async || Html("<!doctype html><title>game</title>")));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    origin
}

/// A call in the page: its text mode is what gRPC-Web clients use for streams.
const CALLS: &str = r#"
    const at = ADDRESS;
    const rpc = `${at}/openmatch.FrontendService`;
    try {
        // CreateTicketRequest { ticket { search_fields { tags: "eu" } } }, behind the head of a gRPC-Web frame.
        const message = [10, 6, 34, 4, 26, 2, 101, 117];
        const frame = String.fromCharCode(0, 0, 0, 0, message.length, ...message);
        const text = await fetch(`${rpc}/CreateTicket`, {
            method: 'POST',
            headers: { 'content-type': 'application/grpc-web-text', 'x-grpc-web': '1' },
            body: btoa(frame),
        });
        const parts = (await text.text()).match(/[^=]+=*/g).map(atob).join('');
        const length = (parts.charCodeAt(3) << 8) + parts.charCodeAt(4);
        // Field 1 of a ticket is its id.
        const id = parts.slice(7, 7 + parts.charCodeAt(6));
        const trailers = parts.slice(5 + length + 5);
        const json = async (path, body) => {
            const headers = { 'content-type': 'application/json', 'connect-protocol-version': '1' };
            const response = await fetch(path, { method: 'POST', headers, body: JSON.stringify(body) });
            return [response.status, await response.json()];
        };
        const created = await json(`${rpc}/CreateTicket`, { ticket: { searchFields: { tags: ['us'] } } });
        const read = await json(`${rpc}/GetTicket`, { ticketId: id });
        // WatchAssignmentsRequest { ticket_id }. The answer is read until its first message is there.
        const request = [10, id.length, ...new TextEncoder().encode(id)];
        const watch = await fetch(`${rpc}/WatchAssignments`, {
            method: 'POST',
            headers: { 'content-type': 'application/grpc-web-text', 'x-grpc-web': '1' },
            body: btoa(String.fromCharCode(0, 0, 0, 0, request.length, ...request)),
        });
        const reader = watch.body.getReader();
        await fetch(`${ASSIGN}?${id}`, { mode: 'no-cors' });
        let watched = '';
        let assignment = '';
        while (!assignment.includes('10.0.0.1:7777')) {
            const { value, done } = await reader.read();
            if (done) break;
            watched += new TextDecoder().decode(value);
            // What has arrived of a part may end within four characters.
            const whole = (part) => part.slice(0, part.length - (part.length % 4));
            assignment = (watched.match(/[^=]+=*/g) ?? []).map((part) => atob(whole(part))).join('');
        }
        await reader.cancel();
        const other = created[1].id;
        const rest = await fetch(`${at}/v1/frontendservice/tickets/${other}`, { method: 'DELETE' });
        return { kind: text.headers.get('content-type'), trailers, created, read, assignment, rest: rest.status };
    } catch (error) {
        return { error: String(error) };
    }
"#;

/// Serves what the page calls when its ticket should be assigned. Returns the URL.
async fn engine(served: Arc<Served>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let run = async move |id: RawQuery| assign(&served, &id.0.unwrap(), "10.0.0.1:7777").await;
    let router = Router::new().route("/", get(run));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

async fn call(browser: &Browser, served: &Arc<Served>, origin: &str) -> Value {
    let engine = engine(served.clone()).await;
    let address = format!("http://{}", served.address);
    let script = CALLS.replace("${ASSIGN}", &engine).replace("ADDRESS", &json!(address).to_string());
    browser.goto(origin).await;
    browser.script_async(&script).await
}

#[tokio::test(flavor = "multi_thread")]
async fn page_of_an_allowed_origin_creates_tickets_and_other_pages_do_not() {
    let browser = need!(Browser::start().await);
    let (allowed, foreign) = (page().await, page().await);
    let served = Arc::new(Served::for_pages(std::slice::from_ref(&allowed)).await);
    let answer = call(&browser, &served, &allowed).await;
    let errors = browser.console_errors().await;
    assert_eq!(answer["kind"], "application/grpc-web-text+proto", "{answer} {errors:?}");
    assert!(answer["trailers"].as_str().unwrap().contains("grpc-status: 0"), "{answer}");
    assert_eq!(answer["created"][0], 200, "{answer}");
    assert_eq!(answer["created"][1]["searchFields"]["tags"], json!(["us"]), "{answer}");
    assert_eq!(answer["read"][0], 200, "{answer}");
    assert_eq!(answer["read"][1]["searchFields"]["tags"], json!(["eu"]), "{answer}");
    let assignment = answer["assignment"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(assignment.contains("10.0.0.1:7777"), "the assignment did not arrive: {answer}");
    assert_eq!(answer["rest"], 200, "{answer}");
    let refused = call(&browser, &served, &foreign).await;
    assert!(refused["error"].as_str().unwrap().contains("Failed to fetch"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_text_is_refused() {
    let served = Served::in_memory().await;
    let url = format!("http://{}/openmatch.FrontendService/GetTicket", served.address);
    let request = reqwest::Client::new().post(url).header("content-type", "application/grpc-web-text");
    let response = request.body("a").send().await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "3");
}
