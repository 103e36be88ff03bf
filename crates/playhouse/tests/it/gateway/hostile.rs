//! HTTP/2 clients that open no window: what they hold is bounded, and nothing of theirs outlives its time.
//!
//! `PLAYHOUSE_HOSTILE_CONNECTIONS=1000` makes it a soak: the bounds are the same for any number.

use std::net::SocketAddr;

use testkit::eventually;
use testkit::issuer::{Signer, now};
use testkit::raw_http2::{Frame, Kind, RawHttp2};

use super::*;

/// As many requests as a connection may have open.
const STREAMS: u32 = 200;
/// How often each connection opens all of them.
const WAVES: u32 = 3;
/// What a request that waits for its client may take: 16 KiB that are read ahead, and the state of a stream and a handler in a program that
/// was built without optimisation.
const MOST_PER_STREAM: u64 = 32 * 1024;
/// Answers are given up soon. No connection is asked whether its client is still there, as the machine may be too busy to answer.
const SOON: &str =
    "[listen]\nwrite_timeout = \"1s\"\nheader_timeout = \"5m\"\nmax_connections_per_address = 0\n";

fn connections() -> u32 {
    let wanted = std::env::var("PLAYHOUSE_HOSTILE_CONNECTIONS").ok();
    wanted.map_or(100, |wanted| wanted.parse().expect("a number of connections"))
}

/// The resident memory of a process, in bytes.
fn memory(door: &Door) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", door.running.pid())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    resident.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn address(door: &Door) -> SocketAddr {
    door.at["gateway"].parse().unwrap()
}

/// Opens all streams of a connection, takes nothing, and goes on when they were all reset.
async fn hostile(address: SocketAddr, path: &'static str, headers: &[(&str, &str)]) {
    let mut client = RawHttp2::connect(address, 0).await.unwrap();
    for wave in 0..WAVES {
        let streams = (0..STREAMS).map(|number| 2 * (wave * STREAMS + number) + 1);
        client.send_all(streams.map(|stream| Frame::get(stream, path, headers))).await.unwrap();
        for _ in 0..STREAMS {
            client.until(|frame| frame.kind == Kind::Reset).await.unwrap().expect("a reset of every stream");
        }
    }
}

/// Has many such clients at once. Fails if what they hold grows from wave to wave, or is more than was said.
async fn assert_flat(door: &Door, path: &'static str) {
    let before = memory(door);
    let clients: Vec<_> =
        (0..connections()).map(|_| tokio::spawn(hostile(address(door), path, &[]))).collect();
    let (all, each) = (u64::from(connections() * STREAMS), Duration::from_millis(100));
    let mut peaks = [0; WAVES as usize];
    while !clients.iter().all(tokio::task::JoinHandle::is_finished) {
        let reset = door.metric("playhouse_http_streams_reset_total{listener=\"gateway\"}").await as u64;
        let wave = usize::try_from(reset / all).unwrap().min(peaks.len() - 1);
        peaks[wave] = peaks[wave].max(memory(door));
        tokio::time::sleep(each).await;
    }
    futures::future::try_join_all(clients).await.unwrap();
    let seen: Vec<u64> = peaks.iter().map(|peak| peak / 1024 / 1024).collect();
    eprintln!("{path}: {} MiB before, peaks of {seen:?} MiB, {} connections", before >> 20, connections());
    let [first, .., last] = peaks;
    assert!(last < first + first / 5, "it grows: {seen:?} MiB");
    assert!(last < before + all * MOST_PER_STREAM, "{seen:?} MiB for {all} streams");
    // Nobody else is disturbed.
    assert_eq!(sent(door.get("/healthz")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_takes_do_not_pile_up() {
    let limits = "[gateway.limits]\naddress = \"10000/s burst 10000000\"\n";
    let door = Door::with(&format!("{limits}{SOON}"), |program| program).await;
    assert_flat(&door, "/openapi.json").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_that_nobody_takes_do_not_pile_up() {
    let limits = "[gateway.limits]\naddress = \"1/m burst 1\"\n";
    let door = Door::with(&format!("{limits}{SOON}"), |program| program).await;
    let before = memory(&door);
    let mut client = RawHttp2::connect(address(&door), 1 << 20).await.unwrap();
    let ask = [Frame::get(1, "/healthz", &[]), Frame::get(3, "/healthz", &[])];
    client.send_all(ask).await.unwrap();
    let mut heads = Vec::new();
    for _ in 0..2 {
        heads.push(client.until(|frame| frame.kind == Kind::Headers).await.unwrap().unwrap().is_ok());
    }
    assert_eq!(heads, [true, false], "from here on everything is refused");
    let clients = (0..connections()).map(|_| tokio::spawn(hostile(address(&door), "/v1/me", &[])));
    let clients: Vec<_> = clients.collect();
    let mut peaks = Vec::new();
    while !clients.iter().all(tokio::task::JoinHandle::is_finished) {
        peaks.push(memory(&door));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    futures::future::try_join_all(clients).await.unwrap();
    let (half, most) = (peaks.len() / 2, before + u64::from(connections() * STREAMS) * MOST_PER_STREAM);
    let peak = |part: &[u64]| part.iter().copied().max().unwrap_or_default();
    let (first, last) = (peak(&peaks[..half]), peak(&peaks[half..]));
    println!("429: {} MiB before, {} and then {} MiB", before >> 20, first >> 20, last >> 20);
    assert!(last < first + first / 5 && last < most, "it grows from {first} to {last} bytes");
    let refused =
        door.metric("playhouse_limits_decisions_total{policy=\"address\",outcome=\"refused\"}").await;
    assert!(refused >= f64::from(connections() * STREAMS * WAVES), "{refused}");
    // One line stands for many: the log of one address is no flood either.
    let lines = door.running.lines().iter().filter(|line| line.text.contains("rate_limited")).count();
    assert!((1..=30).contains(&lines), "{lines} lines");
}

/// A player's streams of events on one connection that takes nothing, from a process that would wait for an hour.
async fn unread_streams(settings: &str) -> (Door, Signer, Issuer, RawHttp2) {
    let signer = Signer::ec("key");
    let issuer = Issuer::start(&[&signer]).await;
    let settings = format!(
        "{settings}[listen]\nwrite_timeout = \"1h\"\n[gateway]\nmax_streams = 100\nstream_heartbeat = \"1s\"\n"
    );
    let door = Door::of(&issuer, &settings).await;
    let client = RawHttp2::connect(address(&door), 0).await.unwrap();
    (door, signer, issuer, client)
}

async fn follow(door: &Door, client: &mut RawHttp2, token: &str) {
    let bearer = format!("Bearer {token}");
    let request =
        |number: u32| Frame::get(2 * number + 1, "/v1/stream", &[("authorization", bearer.as_str())]);
    client.send_all((0..10).map(request)).await.unwrap();
    for _ in 0..10 {
        client.until(Frame::is_ok).await.unwrap().expect("a stream");
    }
    assert_eq!(door.metric("playhouse_gateway_streams").await, 10.0);
}

async fn until_ended(door: &Door) {
    eventually("no stream is left", PATIENCE, async || door.metric("playhouse_gateway_streams").await == 0.0)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_end_with_their_token() {
    let (door, signer, issuer, mut client) = unread_streams("").await;
    let mut claims = issuer.claims("ada");
    claims["exp"] = json!(now() + 5);
    follow(&door, &mut client, &signer.sign(&claims)).await;
    until_ended(&door).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_end_with_a_ban() {
    let (door, signer, issuer, mut client) = unread_streams("").await;
    let token = signer.sign(&issuer.claims("eve"));
    follow(&door, &mut client, &token).await;
    let me = sent(door.get("/v1/me").bearer_auth(&token)).await.json();
    let ban = format!("/users/{}/ban", me["user_id"].as_str().unwrap());
    let banned = door.shop().status_of_post(&ban, &json!({ "reason": "holds us up" })).await;
    assert!((200..300).contains(&banned), "{banned}");
    until_ended(&door).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_do_not_hold_up_the_end_of_the_process() {
    let (door, signer, issuer, mut client) = unread_streams("[lifecycle]\ngrace = \"20s\"\n").await;
    follow(&door, &mut client, &signer.sign(&issuer.claims("ada"))).await;
    door.running.sigterm();
    assert_eq!(door.running.wait(Duration::from_secs(12)).await.code(), Some(0), "nothing is cut off");
}
