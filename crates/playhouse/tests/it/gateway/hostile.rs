//! HTTP/2 clients that never open their window: their memory is bounded, and their streams end in time.
//!
//! `PLAYHOUSE_HOSTILE_CONNECTIONS=1000` makes it a soak test. The bounds hold for any number.

use std::net::SocketAddr;
use std::sync::Arc;

use testkit::eventually;
use testkit::issuer::{Signer, now};
use testkit::raw_http2::{Frame, FrameKind, RawHttp2};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::*;

/// Requests per connection: as many as may be open at once.
const STREAMS: u32 = 200;
/// How many times each connection opens all of them.
const WAVES: u32 = 3;
/// Memory of a request that waits for its client: the state of a stream and a handler in an unoptimised build. Large responses are
/// shared, so that none has a copy of its own.
const MAX_PER_STREAM: u64 = 16 * 1024;
/// How long a response may stay unread, for every 100 connections. Opening all streams takes a small part of it.
const UNREAD_LIMIT: Duration = Duration::from_secs(10);

fn connections() -> u32 {
    let count = std::env::var("PLAYHOUSE_HOSTILE_CONNECTIONS").ok();
    count.map_or(100, |count| count.parse().expect("a number of connections"))
}

/// Starts a process that resets unread responses. It sends no keep-alive pings, which a busy machine might answer too late.
async fn start(limits: &str) -> Gateway {
    let unread = UNREAD_LIMIT.as_secs() * u64::from(connections().div_ceil(100));
    let listen = format!(
        "[listen]\nwrite_timeout = \"{unread}s\"\nheader_timeout = \"5m\"\nmax_connections_per_address = 0\n"
    );
    Gateway::start_with(&format!("[gateway.limits]\n{limits}\n{listen}"), |program| program).await
}

/// Returns the resident memory of a process in bytes.
fn memory(gateway: &Gateway) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.running.pid())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    resident.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn address(gateway: &Gateway) -> SocketAddr {
    gateway.at["gateway"].parse().unwrap()
}

/// Opens all streams of a connection and reads no body. Waits twice at `open`: until every client has opened its streams, and until
/// memory was measured. Repeats this after all its streams were reset.
async fn attack(address: SocketAddr, paths: &'static [&'static str], open: Arc<Barrier>) {
    let mut client = RawHttp2::connect(address, 0).await.unwrap();
    for wave in 0..WAVES {
        let streams = (0..STREAMS).map(|number| 2 * (wave * STREAMS + number) + 1);
        let requests = streams.zip(paths.iter().cycle()).map(|(stream, path)| Frame::get(stream, path, &[]));
        client.send_all(requests).await.unwrap();
        for _ in 0..STREAMS {
            let answers = |frame: &Frame| matches!(frame.kind, FrameKind::Headers | FrameKind::Reset);
            let answer = client.until(answers).await.unwrap().expect("a stream was not answered");
            assert_eq!(answer.kind, FrameKind::Headers, "a stream was reset before all of them were open");
        }
        open.wait().await;
        open.wait().await;
        for _ in 0..STREAMS {
            client
                .until(|frame| frame.kind == FrameKind::Reset)
                .await
                .unwrap()
                .expect("a stream was not reset");
        }
    }
}

/// Runs many such clients at once. Fails if the memory of all open streams grows from wave to wave or exceeds the bound.
async fn assert_flat(gateway: &Gateway, paths: &'static [&'static str]) {
    let before = memory(gateway);
    let all = u64::from(connections() * STREAMS);
    let open = Arc::new(Barrier::new(connections() as usize + 1));
    let mut clients: JoinSet<()> =
        (0..connections()).map(|_| attack(address(gateway), paths, open.clone())).collect();
    let waves = async {
        let mut used = Vec::new();
        for _ in 0..WAVES {
            open.wait().await;
            used.push(memory(gateway));
            open.wait().await;
        }
        used
    };
    let failure = async {
        while let Some(finished) = clients.join_next().await {
            finished.unwrap();
        }
    };
    let (used, ()) = tokio::join!(waves, failure);
    let seen: Vec<u64> = used.iter().map(|bytes| bytes >> 20).collect();
    eprintln!("{paths:?}: {} MiB before, then {seen:?} MiB, {} connections", before >> 20, connections());
    let (first, last) = (used[0], used[used.len() - 1]);
    assert!(last < first + first / 5, "memory grows: {seen:?} MiB");
    assert!(last < before + all * MAX_PER_STREAM, "{seen:?} MiB for {all} streams");
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_responses_do_not_accumulate() {
    let gateway = start("address = \"10000/s burst 10000000\"").await;
    assert_flat(&gateway, &["/openapi.json", "/docs"]).await;
    // Other clients are unaffected.
    assert_eq!(send(gateway.get("/healthz")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_refusals_do_not_accumulate() {
    let gateway = start("address = \"1/h burst 1\"").await;
    let mut client = RawHttp2::connect(address(&gateway), 1 << 20).await.unwrap();
    let mut heads = Vec::new();
    // In turn: streams that are open at once may be answered in any order.
    for stream in [1, 3] {
        client.send(Frame::get(stream, "/healthz", &[])).await.unwrap();
        heads.push(client.until(|frame| frame.kind == FrameKind::Headers).await.unwrap().unwrap().is_ok());
    }
    assert_eq!(heads, [true, false], "the second request was not refused");
    assert_flat(&gateway, &["/v1/me"]).await;
    let refused = gateway
        .metric(
            "playhouse_limits_decisions_total{policy=\"address\",key_kind=\"address\",outcome=\"refused\"}",
        )
        .await;
    assert!(refused >= f64::from(connections() * STREAMS * WAVES), "{refused}");
    // One log line stands for many refusals of an address.
    let lines = gateway.running.lines().iter().filter(|line| line.text.contains("rate_limited")).count();
    assert!((1..=30).contains(&lines), "{lines} lines");
}

/// Starts a process with a long write timeout and connects a client that reads no data.
async fn unread_streams(settings: &str) -> (Gateway, Signer, Issuer, RawHttp2) {
    let signer = Signer::ec("key");
    let issuer = Issuer::start(&[&signer]).await;
    let settings = format!(
        "{settings}[listen]\nwrite_timeout = \"1h\"\n[gateway]\nmax_streams = 100\nstream_heartbeat = \"1s\"\n"
    );
    let gateway = Gateway::with_issuer(&issuer, &settings).await;
    let client = RawHttp2::connect(address(&gateway), 0).await.unwrap();
    (gateway, signer, issuer, client)
}

async fn follow(gateway: &Gateway, client: &mut RawHttp2, token: &str) {
    let bearer = format!("Bearer {token}");
    let request =
        |number: u32| Frame::get(2 * number + 1, "/v1/stream", &[("authorization", bearer.as_str())]);
    client.send_all((0..10).map(request)).await.unwrap();
    for _ in 0..10 {
        client.until(Frame::is_ok).await.unwrap().expect("no stream was opened");
    }
    assert_eq!(gateway.metric("playhouse_gateway_streams").await, 10.0);
}

async fn wait_until_streams_end(gateway: &Gateway) {
    eventually("all streams have ended", PATIENCE, async || {
        gateway.metric("playhouse_gateway_streams").await == 0.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_end_with_their_token() {
    let (gateway, signer, issuer, mut client) = unread_streams("").await;
    let mut claims = issuer.claims("ada");
    claims["exp"] = json!(now() + 5);
    follow(&gateway, &mut client, &signer.sign(&claims)).await;
    wait_until_streams_end(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_end_with_a_ban() {
    let (gateway, signer, issuer, mut client) = unread_streams("").await;
    let token = signer.sign(&issuer.claims("eve"));
    follow(&gateway, &mut client, &token).await;
    let me = send(gateway.get("/v1/me").bearer_auth(&token)).await.json();
    let ban = format!("/users/{}/ban", me["user_id"].as_str().unwrap());
    let banned = gateway.shop().status_of_post(&ban, &json!({ "reason": "holds us up" })).await;
    assert!((200..300).contains(&banned), "{banned}");
    wait_until_streams_end(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_do_not_delay_the_stop() {
    let (gateway, signer, issuer, mut client) = unread_streams("[lifecycle]\ngrace = \"20s\"\n").await;
    follow(&gateway, &mut client, &signer.sign(&issuer.claims("ada"))).await;
    gateway.running.sigterm();
    assert_eq!(
        gateway.running.wait(Duration::from_secs(12)).await.code(),
        Some(0),
        "the process did not stop cleanly"
    );
}
