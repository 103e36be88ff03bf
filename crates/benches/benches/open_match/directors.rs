//! FetchMatches with a trivial match function: tickets per second, and the time from CreateTicket to the Director's match.
//!
//! The reference is the floor of Open Match: the same process with a registration window of 250 ms, which is the original's
//! default. The engine in process, which needs no Director, is beside them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use redis::aio::MultiplexedConnection;
use serde_json::json;
use testkit::bench::Report;
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::connect::Connection;
use crate::subject::Subject;
use crate::tickets::{self, bytes};

const CREATE_TICKET: &str = "/openmatch.FrontendService/CreateTicket";
const FETCH_MATCHES: &str = "/openmatch.BackendService/FetchMatches";
const ASSIGN_TICKETS: &str = "/openmatch.BackendService/AssignTickets";

/// Open Match's default.
const WINDOW: &str = "matchmaking.director.registration_window = \"250ms\"";
const WINDOW_LENGTH: Duration = Duration::from_millis(250);
/// The profile of the engine in process, which makes the same matches.
const ENGINE: &str = r#"
    matchmaking.profiles.duel = { players = 2, assigner = "one" }
    matchmaking.assigners.one = { addresses = ["10.0.0.1:7777"] }
"#;
/// How many matches one call proposes at most.
const PROPOSED: usize = 1_000;
/// How many matches are assigned at a time.
const ASSIGNED: usize = 250;
/// How often the time to a match is measured.
const SAMPLES: u32 = 40;
/// The pause of a Director that got no match.
const PAUSE: Duration = Duration::from_millis(5);

/// The tickets that the match function has not proposed yet.
type Waiting = Arc<Mutex<VecDeque<String>>>;

/// Measures Directors and the engine at this many waiting tickets.
pub(crate) async fn measure(count: u32, report: &mut Report) {
    let immediate = measure_director("", count).await;
    let windows = measure_director(WINDOW, count).await;
    let engine = measure_engine(count).await;
    for (name, (rate, time)) in [("director", immediate), ("window", windows), ("engine", engine)] {
        report.measure(&format!("{name}_tickets_s"), rate);
        report.measure(&format!("{name}_match_ms"), time.as_secs_f64() * 1000.0);
    }
    report.measure("director_time_ratio", windows.1.as_secs_f64() / immediate.1.as_secs_f64());
}

/// Returns tickets per second, and the median time from CreateTicket to the match.
async fn measure_director(settings: &str, count: u32) -> (f64, Duration) {
    let subject = Subject::start_with(&["matchmaking-frontend"], settings).await;
    let mut redis = subject.connect_to_redis().await;
    tickets::fill(&mut redis, count).await;
    let waiting = Waiting::default();
    let port = serve_function(waiting.clone()).await;
    let mut director = Connection::open(&subject.address).await;

    waiting.lock().unwrap().extend((0..count).map(tickets::id));
    let (started, mut assigned) = (Instant::now(), 0);
    while assigned < count as usize {
        let matches = fetch(&mut director, port).await;
        for matches in matches.chunks(ASSIGNED) {
            assign(&mut director, matches).await;
            assigned += matches.iter().map(Vec::len).sum::<usize>();
        }
    }
    let rate = f64::from(count) / started.elapsed().as_secs_f64();
    assert_eq!(tickets_left(&mut redis).await, 0);

    let mut creator = Connection::open(&subject.address).await;
    let mut times = Vec::new();
    for sample in 0..SAMPLES {
        let first = create(&mut creator).await;
        let fetching = async {
            loop {
                let matches = fetch(&mut director, port).await;
                if !matches.is_empty() {
                    return matches;
                }
                sleep(PAUSE).await;
            }
        };
        let creating = async {
            // Spreads the samples evenly over a window, since the Director may be anywhere in its call.
            sleep(WINDOW_LENGTH * sample / SAMPLES).await;
            let start = Instant::now();
            let second = create(&mut creator).await;
            waiting.lock().unwrap().extend([first, second]);
            start
        };
        let (matches, start) = tokio::join!(fetching, creating);
        times.push(start.elapsed());
        assign(&mut director, &matches).await;
    }
    times.sort();
    (rate, times[times.len() / 2])
}

/// Measures the engine in process. Its time ends with the assignment, which a Director makes later.
async fn measure_engine(count: u32) -> (f64, Duration) {
    let subject = Subject::start_with(&["matchmaking-frontend", "matchmaking-engine"], ENGINE).await;
    let mut redis = subject.connect_to_redis().await;
    let started = Instant::now();
    tickets::fill(&mut redis, count).await;
    while tickets_left(&mut redis).await > 0 {
        sleep(Duration::from_millis(1)).await;
    }
    let rate = f64::from(count) / started.elapsed().as_secs_f64();
    let mut creator = Connection::open(&subject.address).await;
    let mut times = Vec::new();
    for _ in 0..SAMPLES {
        create(&mut creator).await;
        let start = Instant::now();
        let second = create(&mut creator).await;
        while !is_assigned(&mut redis, &second).await {
            tokio::task::yield_now().await;
        }
        times.push(start.elapsed());
    }
    times.sort();
    (rate, times[times.len() / 2])
}

/// Serves a match function that pairs what waits.
async fn serve_function(waiting: Waiting) -> u16 {
    let run = async move || {
        let mut waiting = waiting.lock().unwrap();
        let mut lines = String::new();
        for _ in 0..PROPOSED.min(waiting.len() / 2) {
            let (Some(a), Some(b)) = (waiting.pop_front(), waiting.pop_front()) else { break };
            let proposal = json!({ "matchId": a, "tickets": [{ "id": a }, { "id": b }] });
            lines += &format!("{}\n", json!({ "result": { "proposal": proposal } }));
        }
        lines
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = Router::new().route("/v1/matchfunction:run", post(run));
    tokio::spawn(async move { axum::serve(listener, router).await });
    port
}

async fn create(connection: &mut Connection) -> String {
    let created = connection.call(CREATE_TICKET, &bytes(1, &tickets::search_fields(1))).await;
    let mut id = String::new();
    tickets::find(&created, 1, |found| id = String::from_utf8_lossy(found).into_owned());
    id
}

/// Returns the tickets of each match.
async fn fetch(connection: &mut Connection, port: u16) -> Vec<Vec<String>> {
    // The port and the type are numbers: fields 2 and 3 of kind 0.
    let low = (port & 127) as u8 | 128;
    let port = [&[2 << 3, low, (port >> 7 & 127) as u8 | 128, (port >> 14) as u8][..], &[3 << 3, 1]].concat();
    let config = bytes(1, &[bytes(1, b"127.0.0.1"), port].concat());
    let request = [config, bytes(2, &bytes(1, b"bench"))].concat();
    let mut matches = Vec::new();
    for response in connection.stream(FETCH_MATCHES, &request).await {
        tickets::find(&response, 1, |match_| {
            let mut players = Vec::new();
            tickets::find(match_, 4, |ticket| {
                tickets::find(ticket, 1, |id| players.push(String::from_utf8_lossy(id).into_owned()));
            });
            matches.push(players);
        });
    }
    matches
}

async fn assign(connection: &mut Connection, matches: &[Vec<String>]) {
    let groups = matches.iter().flat_map(|players| {
        let ids: Vec<u8> = players.iter().flat_map(|id| bytes(1, id.as_bytes())).collect();
        bytes(1, &[ids, bytes(2, &bytes(1, b"10.0.0.1:7777"))].concat())
    });
    let failures = connection.call(ASSIGN_TICKETS, &groups.collect::<Vec<u8>>()).await;
    assert!(failures.is_empty(), "{failures:?}");
}

async fn tickets_left(redis: &mut MultiplexedConnection) -> u64 {
    redis::cmd("SCARD").arg("allTickets").query_async(redis).await.unwrap()
}

async fn is_assigned(redis: &mut MultiplexedConnection, id: &str) -> bool {
    redis::cmd("EXISTS").arg(format!("assign:{id}")).query_async(redis).await.unwrap()
}
