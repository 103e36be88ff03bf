//! Allocated game servers: when processes die, no server leaks and none is given back while in use.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::json;
use testkit::{Folder, eventually, need};
use tokio::net::TcpListener;

use super::fleet::Fleet;
use super::*;

/// The game's allocation service, which counts its servers.
#[derive(Clone)]
struct Allocator {
    url: String,
    servers: Arc<Mutex<Servers>>,
}

#[derive(Default)]
struct Servers {
    /// The match ids of all servers, including those given back.
    allocated: BTreeSet<String>,
    given_back: BTreeSet<String>,
    refuses_give_backs: bool,
}

impl Allocator {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let allocator = Self { url, servers: Arc::default() };
        let router = Router::new().route("/", post(Self::serve)).with_state(allocator.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        allocator
    }

    async fn serve(State(allocator): State<Self>, axum::Json(message): axum::Json<Value>) -> Response {
        let mut servers = allocator.servers.lock().unwrap();
        if message["type"] == "match.abandoned" {
            if servers.refuses_give_backs {
                return StatusCode::FORBIDDEN.into_response();
            }
            servers.given_back.insert(message["data"]["match_id"].as_str().unwrap().to_owned());
            return StatusCode::NO_CONTENT.into_response();
        }
        let server = |requested: &Value| {
            let id = requested["match_id"].as_str().unwrap().to_owned();
            servers.allocated.insert(id.clone());
            json!({ "match_id": id, "connection": format!("{id}.game:1") })
        };
        let assignments: Vec<Value> = message["matches"].as_array().unwrap().iter().map(server).collect();
        axum::Json(json!({ "assignments": assignments })).into_response()
    }

    /// Returns the servers that are neither used nor given back.
    fn leaked(&self, used: &BTreeSet<String>) -> Vec<String> {
        let servers = self.servers.lock().unwrap();
        let is_settled = |id: &&String| used.contains(*id) || servers.given_back.contains(*id);
        servers.allocated.iter().filter(|id| !is_settled(id)).cloned().collect()
    }

    fn given_back(&self) -> BTreeSet<String> {
        self.servers.lock().unwrap().given_back.clone()
    }

    /// Writes a configuration that uses this service and gives unused servers back after a second. Returns its file.
    fn config(&self, folder: &Folder) -> String {
        let text = format!(
            "[db]\nmigrate = true\n\
             [matchmaking]\npending_timeout = \"2s\"\nassigned_ttl = \"10m\"\nabandon_after = \"1s\"\n\
             function_timeout = \"500ms\"\nevaluator_timeout = \"500ms\"\nassigner_timeout = \"500ms\"\n\
             [matchmaking.abandoned]\nmax_attempts = 1\n\
             [matchmaking.profiles.duel]\nplayers = 2\nassigner = \"game\"\n\
             [matchmaking.assigners.game]\nkind = \"webhook\"\nurl = \"{}\"\n",
            self.url
        );
        let file = folder.path().join("play.toml");
        std::fs::write(&file, text + &super::shop::operators()).unwrap();
        file.to_str().unwrap().to_owned()
    }
}

async fn create(tickets: &str) -> String {
    let response = reqwest::Client::new().post(tickets).json(&json!({ "ticket": {} })).send().await.unwrap();
    response.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned()
}

/// Returns the match of a ticket.
async fn match_of(tickets: &str, id: &str) -> Option<String> {
    let (_, ticket) = get(format!("{tickets}/{id}")).await;
    let connection = ticket["assignment"]["connection"].as_str()?;
    Some(connection.strip_suffix(".game:1").unwrap().to_owned())
}

async fn open_allocations(admin: &str) -> Option<u32> {
    let (_, metrics) = get(format!("http://{admin}/metrics")).await;
    let line = metrics
        .as_str()?
        .lines()
        .find_map(|line| line.strip_prefix("playhouse_matchmaking_allocations_open "))?;
    line.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_killed_at_any_point_leaks_no_server() {
    let (fleet, allocator) = (need!(Fleet::start().await), Allocator::start().await);
    let folder = Folder::fresh().unwrap();
    let config = allocator.config(&folder);
    let serve = |roles: &str| fleet.serve(&["--config", &config, "--roles", roles]);
    let frontend = serve("matchmaking-frontend").start().unwrap();
    let tickets = format!("http://{}/v1/frontendservice/tickets", addresses(&frontend).await["open_match"]);

    // Before the request, after the response, and after each write of the match.
    let mut players = Vec::new();
    for point in ["allocating", "answered", "assigned", "recorded"] {
        let doomed =
            serve("matchmaking-engine").env("TESTKIT_FAULT", format!("matchmaking.{point}")).start().unwrap();
        players.extend([create(&tickets).await, create(&tickets).await]);
        doomed.wait(PATIENCE).await;
    }
    assert!(!allocator.leaked(&BTreeSet::new()).is_empty());

    let engine = serve("matchmaking-engine,outbox-relay").start().unwrap();
    let admin = addresses(&engine).await["admin"].clone();
    let mut used = BTreeSet::new();
    for id in &players {
        used.insert(
            eventually("every player is in a match", PATIENCE, async || match_of(&tickets, id).await).await,
        );
    }
    eventually("every server is used or given back", PATIENCE, async || {
        let leaked = allocator.leaked(&used);
        if leaked.is_empty() { Ok(()) } else { Err(format!("{leaked:?}")) }
    })
    .await;
    eventually("no allocation is open", PATIENCE, async || open_allocations(&admin).await == Some(0)).await;
    let given_back = allocator.given_back();
    assert!(!given_back.is_empty());
    assert!(used.is_disjoint(&given_back), "given back while in use: {used:?} {given_back:?}");
    for running in [frontend, engine] {
        running.sigterm();
        assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
    }
}

/// The tickets of an embedded process are lost with it, the servers are not. An operator sees refused calls.
#[tokio::test(flavor = "multi_thread")]
async fn restart_gives_back_servers_allocated_before_it() {
    let (allocator, folder) = (Allocator::start().await, Folder::fresh().unwrap());
    allocator.servers.lock().unwrap().refuses_give_backs = true;
    let config = allocator.config(&folder);
    let embedded = || shop::embedded(&folder).env("PLAYHOUSE_CONFIG", &config);
    let doomed = embedded().env("TESTKIT_FAULT", "matchmaking.answered").start().unwrap();
    let tickets = format!("http://{}/v1/frontendservice/tickets", addresses(&doomed).await["open_match"]);
    create(&tickets).await;
    // The process may be killed before it responds.
    let _ = reqwest::Client::new().post(&tickets).json(&json!({ "ticket": {} })).send().await;
    doomed.wait(PATIENCE).await;

    let running = embedded().start().unwrap();
    let admin = addresses(&running).await["admin"].clone();
    let command = async |args: &[&str]| run(playhouse(args).args(["--admin", &admin])).await;
    let failed = eventually("the call has failed", PATIENCE, async || {
        let (code, listed, errors) = command(&["allocations", "list", "--state", "failed"]).await;
        assert_eq!(code, 0, "{errors}");
        listed.contains("FAILED").then_some(listed)
    })
    .await;
    assert!(failed.contains("unsettled") && failed.contains("game") && failed.contains("403"), "{failed}");
    let allocated = allocator.servers.lock().unwrap().allocated.first().unwrap().clone();
    assert!(failed.contains(&allocated), "{failed}");

    allocator.servers.lock().unwrap().refuses_give_backs = false;
    // Filters and the number that the operator saw protect from sending more than was meant.
    let (code, counted, _) = command(&["allocations", "retry", "--all", "--dry-run"]).await;
    assert_eq!((code, counted.trim()), (0, "1 failed call would be sent again"));
    let (code, none, _) = command(&["allocations", "retry", "--assigner", "another"]).await;
    assert_eq!((code, none.trim()), (0, "0 calls will be sent again"));
    let (code, _, errors) = command(&["allocations", "retry", "--cause", "403", "--expected", "2"]).await;
    assert!(code == 1 && errors.contains("now matches 1, you saw 2"), "{errors}");
    let args = ["allocations", "retry", "--assigner", "game", "--cause", "403", "--expected", "1"];
    let (code, retried, errors) = command(&args).await;
    assert_eq!((code, retried.trim()), (0, "1 call will be sent again"), "{errors}");
    let (_, jobs, _) = command(&["jobs", "list"]).await;
    assert!(jobs.contains("allocations.retry") && jobs.contains("tester"), "{jobs}");
    eventually("it is given back", PATIENCE, async || allocator.given_back().contains(&allocated)).await;
    let (code, _, errors) = command(&["allocations", "skip", &allocated]).await;
    assert!(code == 1 && errors.contains("finished already"), "{errors}");
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
}
