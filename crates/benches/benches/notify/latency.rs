//! The latency from a grant to the player's stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use testkit::bench::Report;
use tokio::time::MissedTickBehavior;

use crate::Times;
use crate::bare::Bare;
use crate::fleet::{Fleet, Player};

/// How often each way is measured, in turns, without other load.
const ROUNDS: u64 = 500;
/// The load: grants per second, duration, players and connections.
const RATE: u64 = 2_000;
const LOAD: Duration = Duration::from_secs(10);
const PLAYERS: usize = 200;
const CONNECTIONS: usize = 32;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Measures one grant at a time, in turns with the bare hops. Returns the ratio of the medians.
///
/// The first row counts from the commit: the duration of a bare commit plus the time from the grant's response to the event. The
/// second row counts from the request. The benchmark `outbox` measures the part before the commit.
pub(crate) async fn idle(fleet: &Fleet, report: &mut Report) -> f64 {
    let player = fleet.players(1).await.remove(0);
    let (mut shop, mut events) = (fleet.shop().await, fleet.events(&player).await);
    let mut bare = Bare::open(fleet).await;
    let (mut from_commit, mut from_request, mut hops) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..ROUNDS {
        let sent = Instant::now();
        let granting = async {
            shop.grant(&player, number).await;
            Instant::now()
        };
        let (answered, (arrived, granted)) = tokio::join!(granting, events.granted());
        assert_eq!(granted, [number]);
        pause().await;
        let (commit, all) = bare.run().await;
        from_request.push(arrived - sent);
        from_commit.push(commit + arrived.saturating_duration_since(answered));
        hops.push(all);
        pause().await;
    }
    // Skips the first ones, which prepare statements and open connections.
    let warm = |times: Vec<Duration>| Times(times.into_iter().skip(50).collect());
    let (from_commit, from_request, hops) = (warm(from_commit), warm(from_request), warm(hops));
    let ratio = hops.quantile(0.5) / from_commit.quantile(0.5);
    report.row([
        "commit of a grant to event on the stream, idle, ms (p50 / p99)".to_owned(),
        from_commit.shown(),
        hops.shown(),
        format!("{ratio:.2}"),
        ">= 0.5; p50 < 10, p99 < 50".to_owned(),
        "bare hops: commit, publish, receive, commit, write".to_owned(),
    ]);
    report.row([
        "  from the request: authorise, lock, read, decide".to_owned(),
        from_request.shown(),
        hops.shown(),
        format!("{:.2}", hops.quantile(0.5) / from_request.quantile(0.5)),
    ]);
    report.measure("p50_ms", from_commit.quantile(0.5));
    report.measure("p99_ms", from_commit.quantile(0.99));
    report.measure("from_request_p50_ms", from_request.quantile(0.5));
    report.measure("from_request_p99_ms", from_request.quantile(0.99));
    report.measure("bare_p50_ms", hops.quantile(0.5));
    report.measure("bare_p99_ms", hops.quantile(0.99));
    ratio
}

/// Measures at a fixed rate of grants, whether or not earlier ones are done.
pub(crate) async fn under_load(fleet: &Fleet, report: &mut Report) {
    let players = Arc::new(fleet.players(PLAYERS).await);
    let sent: Arc<Mutex<HashMap<u64, Instant>>> = Arc::default();
    let times: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let mut readers = Vec::new();
    for player in players.iter() {
        let mut events = fleet.events(player).await;
        let (sent, times) = (sent.clone(), times.clone());
        readers.push(tokio::spawn(async move {
            loop {
                let (arrived, granted) = events.granted().await;
                let started: Vec<Instant> = {
                    let mut sent = sent.lock().unwrap();
                    granted.iter().filter_map(|number| sent.remove(number)).collect()
                };
                times.lock().unwrap().extend(started.into_iter().map(|started| arrived - started));
            }
        }));
    }
    let began = Instant::now();
    let mut shops = Vec::new();
    for connection in 0..CONNECTIONS {
        let mut shop = fleet.shop().await;
        let (players, sent): (Arc<Vec<Player>>, _) = (players.clone(), sent.clone());
        shops.push(tokio::spawn(async move {
            let every = Duration::from_secs(1) * CONNECTIONS as u32 / RATE as u32;
            let mut due = tokio::time::interval(every);
            due.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut number = 1_000_000 + connection as u64;
            while began.elapsed() < LOAD {
                // A late grant counts from its scheduled time.
                let since = due.tick().await.into_std();
                sent.lock().unwrap().insert(number, since);
                shop.grant(&players[number as usize % PLAYERS], number).await;
                number += CONNECTIONS as u64;
            }
        }));
    }
    for shop in shops {
        shop.await.unwrap();
    }
    let granting = began.elapsed();
    let deadline = Instant::now() + TIMEOUT;
    while !sent.lock().unwrap().is_empty() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let delivered = began.elapsed();
    readers.iter().for_each(tokio::task::JoinHandle::abort);
    assert_eq!(sent.lock().unwrap().len(), 0, "some grants were never delivered");
    let times = Times(times.lock().unwrap().drain(..).collect());
    let rate = times.0.count() as f64 / granting.as_secs_f64();
    report.row([
        format!("request to event on the stream, at {RATE} grants/s to {PLAYERS} streams, ms (p50 / p99)"),
        times.shown(),
        format!(
            "{rate:.0} grants/s done, all delivered {:.0} ms later",
            (delivered - granting).as_secs_f64() * 1e3
        ),
    ]);
    report.measure("load_p50_ms", times.quantile(0.5));
    report.measure("load_p99_ms", times.quantile(0.99));
    report.measure("load_per_second", rate);
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}
