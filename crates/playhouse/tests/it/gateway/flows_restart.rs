//! Processes that are replaced one after the other while people play.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use reqwest::{Method, Response};
use testkit::{eventually, free_port, need};
use tokio::task::JoinSet;

use super::flows::{Door, Events, Player, Scene, stream_of};
use crate::*;

/// How many wait for each other, and one more for whom they all wait.
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

/// Both processes, as a client knows them: it tries the other one when nobody answers.
#[derive(Clone)]
struct Both([String; 2]);

impl Both {
    /// What one of them answers; this one is asked first.
    async fn answer(&self, first: usize, player: &Player, path: &str) -> Response {
        let mut last = None;
        for attempt in 0..4 {
            match player.request(Method::GET, &self.0[(first + attempt) % 2], path).send().await {
                Ok(response) => return response,
                // Nothing was answered: refused, or closed before the request was read.
                Err(error) => last = Some(error),
            }
        }
        panic!("neither answers: {last:?}");
    }
}

#[derive(Default)]
struct Seen {
    over: AtomicBool,
    calls: AtomicUsize,
    /// Streams that have been taken up again.
    resumed: AtomicUsize,
}

/// Calls until it is over; everything must be answered.
async fn call(player: Player, both: Both, seen: Arc<Seen>) {
    while !seen.over.load(Ordering::SeqCst) {
        let turn = seen.calls.fetch_add(1, Ordering::SeqCst);
        let response = both.answer(turn, &player, "/v1/me").await;
        let status = response.status();
        let text = response.text().await.unwrap();
        assert_eq!(status, 200, "{text}");
    }
}

/// Follows a ticket wherever it can be followed, until the match is found. Returns where that is.
async fn follow(player: Player, both: Both, ticket: String, mut events: Events, seen: Arc<Seen>) -> String {
    events.expect("WAITING").await;
    assert_eq!(events.last().await, "reconnect");
    let mut at = 1;
    loop {
        assert!(events.retry >= Duration::from_millis(200), "{:?}", events.retry);
        tokio::time::sleep(events.retry).await;
        events = Events::of(both.answer(at, &player, &stream_of(&ticket)).await);
        seen.resumed.fetch_add(1, Ordering::SeqCst);
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
async fn replacing_all_processes_costs_nobody_a_request_a_stream_or_a_match() {
    let scene = need!(Scene::start().await);
    scene.configure(RAID);
    let other = format!("127.0.0.1:{}", free_port().unwrap());
    let programs = [
        scene.first(),
        scene.program("gateway,service-api").args(["--set".to_owned(), format!("listen.gateway={other}")]),
    ];
    let mut doors = Vec::new();
    for program in &programs {
        doors.push(Door::open(program).await);
    }
    let engine = scene.program("matchmaking-engine").start().unwrap();
    addresses(&engine).await;
    let both = Both([doors[0].at.clone(), doors[1].at.clone()]);
    let seen = Arc::new(Seen::default());

    let ada = scene.sign_in("ada").await;
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(call(ada.clone(), both.clone(), seen.clone()));
    }
    let mut followers = JoinSet::new();
    for n in 0..FOLLOWERS {
        let player = scene.player(&format!("player-{n}")).await;
        let (status, ticket) = player.join(&both.0[n % 2], "raid").await;
        assert_eq!(status, 201, "{ticket}");
        let ticket = ticket["ticket_id"].as_str().unwrap().to_owned();
        let events = player.follow(&both.0[0], &ticket).await;
        followers.spawn(follow(player, both.clone(), ticket, events, seen.clone()));
    }
    let last = scene.player("player-last").await;

    doors[0].running.sigterm();
    assert_eq!(doors[0].running.wait(PATIENCE).await.code(), Some(0));
    eventually("most follow their tickets at the other process", PATIENCE, async || {
        seen.resumed.load(Ordering::SeqCst) >= FOLLOWERS / 2
    })
    .await;
    // While one of the two is away.
    assert_eq!(last.join(&both.0[1], "raid").await.0, 201);
    doors[0] = Door::open(&programs[0]).await;
    assert_eq!(doors[0].at, both.0[0]);
    let mut places = Vec::new();
    while let Some(place) = followers.join_next().await {
        places.push(place.unwrap());
    }
    places.dedup();
    assert_eq!(places.len(), 1, "{places:?}");

    doors[1].running.sigterm();
    assert_eq!(doors[1].running.wait(PATIENCE).await.code(), Some(0));
    doors[1] = Door::open(&programs[1]).await;
    let calls = seen.calls.load(Ordering::SeqCst);
    eventually("it goes on", PATIENCE, async || seen.calls.load(Ordering::SeqCst) >= calls + 100).await;
    seen.over.store(true, Ordering::SeqCst);
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
}
