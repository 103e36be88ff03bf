//! A rolling restart of gateways while players are connected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use reqwest::{Method, Response};
use testkit::{eventually, free_port, need};
use tokio::task::JoinSet;

use super::flows::{Events, Gateway, Player, Setup, stream_of};
use crate::*;

/// Players who wait for a match. It needs one more, who joins later.
const FOLLOWERS: usize = 20;
const CALLERS: usize = 8;

const RAID: &str = r#"
[matchmaking.queues.raid]
[matchmaking.profiles.raid]
players = 21
assigner = "here"
[matchmaking.assigners.here]
addresses = ["{match_id}.test:7777"]
"#;

/// The addresses of both processes. A client tries the other one if a process does not respond.
#[derive(Clone)]
struct BothGateways([String; 2]);

impl BothGateways {
    /// Returns the response of one of them, trying `first` first.
    async fn get(&self, first: usize, player: &Player, path: &str) -> Response {
        let mut last = None;
        for attempt in 0..4 {
            match player.request(Method::GET, &self.0[(first + attempt) % 2], path).send().await {
                Ok(response) => return response,
                // Refused, or closed before the request was read.
                Err(error) => last = Some(error),
            }
        }
        panic!("neither process responds: {last:?}");
    }
}

#[derive(Default)]
struct Progress {
    stopped: AtomicBool,
    calls: AtomicUsize,
    /// How many streams were opened again.
    resumed: AtomicUsize,
}

/// Sends requests until it is stopped. Each must succeed.
async fn call(player: Player, both: BothGateways, progress: Arc<Progress>) {
    while !progress.stopped.load(Ordering::SeqCst) {
        let turn = progress.calls.fetch_add(1, Ordering::SeqCst);
        let response = both.get(turn, &player, "/v1/me").await;
        let status = response.status();
        let text = response.text().await.unwrap();
        assert_eq!(status, 200, "{text}");
    }
}

/// Follows a ticket at either process until it is assigned. Returns the connection.
async fn follow(
    player: Player,
    both: BothGateways,
    ticket: String,
    mut events: Events,
    progress: Arc<Progress>,
) -> String {
    events.expect("WAITING").await;
    assert_eq!(events.last().await.0, "reconnect");
    let mut at = 1;
    loop {
        assert!(events.retry >= Duration::from_millis(200), "{:?}", events.retry);
        tokio::time::sleep(events.retry).await;
        events = Events::new(both.get(at, &player, &stream_of(&ticket)).await);
        progress.resumed.fetch_add(1, Ordering::SeqCst);
        loop {
            let (name, data) = events.next().await.unwrap();
            match (name.as_str(), data["state"].as_str()) {
                ("ticket", Some("WAITING")) => {}
                ("ticket", Some("ASSIGNED")) => {
                    return data["assignment"]["connection"].as_str().unwrap().to_owned();
                }
                ("reconnect", _) => break,
                other => panic!("{other:?}: {data}"),
            }
        }
        at += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restart_loses_no_request_stream_or_match() {
    let setup = need!(Setup::start().await);
    setup.configure(RAID);
    let other = format!("127.0.0.1:{}", free_port().unwrap());
    let programs = [
        setup.first(),
        setup.program("gateway,service-api").args(["--set".to_owned(), format!("listen.gateway={other}")]),
    ];
    let mut gateways = Vec::new();
    for program in &programs {
        gateways.push(Gateway::start(program).await);
    }
    let engine = setup.program("matchmaking-engine").start().unwrap();
    addresses(&engine).await;
    let both = BothGateways([gateways[0].at.clone(), gateways[1].at.clone()]);
    let progress = Arc::new(Progress::default());

    let ada = setup.sign_in("ada").await;
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(call(ada.clone(), both.clone(), progress.clone()));
    }
    let mut followers = JoinSet::new();
    for n in 0..FOLLOWERS {
        let player = setup.player(&format!("player-{n}")).await;
        let (status, ticket) = player.join(&both.0[n % 2], "raid").await;
        assert_eq!(status, 201, "{ticket}");
        let ticket = ticket["ticket_id"].as_str().unwrap().to_owned();
        let events = player.follow(&both.0[0], &ticket).await;
        followers.spawn(follow(player, both.clone(), ticket, events, progress.clone()));
    }
    let last = setup.player("player-last").await;

    gateways[0].running.sigterm();
    assert_eq!(gateways[0].running.wait(PATIENCE).await.code(), Some(0));
    eventually("most players follow their tickets at the other process", PATIENCE, async || {
        progress.resumed.load(Ordering::SeqCst) >= FOLLOWERS / 2
    })
    .await;
    // The last player joins while one process is down.
    assert_eq!(last.join(&both.0[1], "raid").await.0, 201);
    gateways[0] = Gateway::start(&programs[0]).await;
    assert_eq!(gateways[0].at, both.0[0]);
    let mut connections = Vec::new();
    while let Some(connection) = followers.join_next().await {
        connections.push(connection.unwrap());
    }
    connections.dedup();
    assert_eq!(connections.len(), 1, "{connections:?}");

    gateways[1].running.sigterm();
    assert_eq!(gateways[1].running.wait(PATIENCE).await.code(), Some(0));
    gateways[1] = Gateway::start(&programs[1]).await;
    let calls = progress.calls.load(Ordering::SeqCst);
    eventually("requests continue", PATIENCE, async || progress.calls.load(Ordering::SeqCst) >= calls + 100)
        .await;
    progress.stopped.store(true, Ordering::SeqCst);
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
}
