//! Directors on a fleet: processes and Directors are killed, and no ticket is lost or in two matches.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::matchmaking::model::BackfillId;
use axum::Router;
use axum::routing::{MethodRouter, post};
use redis::aio::MultiplexedConnection;
use tokio::net::TcpListener;

use super::backfills::acknowledge;
use super::*;
use crate::crashes::assert_killed;

/// Claims of killed Directors expire soon. No profiles: Directors make all matches.
const CONFIG: &str = r#"
[db]
migrate = true
[matchmaking]
pending_timeout = "2s"
assigned_ttl = "10m"
watch_check = "200ms"
function_timeout = "200ms"
evaluator_timeout = "200ms"
assigner_timeout = "200ms"
[matchmaking.director]
proposal_window = "1500ms"
"#;

const PYTHON: &str = "/usr/bin/python3";

/// How many tickets a match function proposes at once.
const PROPOSED: usize = 400;

pub(super) async fn start() -> Result<Matchmaking, testkit::Error> {
    let matchmaking = Matchmaking::start().await?;
    let config = format!("{CONFIG}{}", shop::operators());
    std::fs::write(matchmaking.folder.path().join("playhouse.toml"), config).unwrap();
    Ok(matchmaking)
}

/// Returns the number of tickets. `OPEN_MATCH_TICKETS=50000` makes a long run.
fn count() -> i64 {
    std::env::var("OPEN_MATCH_TICKETS").map_or(3_000, |count| count.parse().unwrap())
}

/// The addresses of the processes that serve Open Match, in a file that Directors read.
#[derive(Clone)]
struct Places(PathBuf);

impl Places {
    fn new(folder: &Folder) -> Self {
        Self(folder.path().join("places"))
    }

    /// Replaces the addresses, so that a reader sees the old ones or the new ones.
    fn set(&self, addresses: &[String]) {
        let new = self.0.with_extension("new");
        std::fs::write(&new, addresses.join("\n")).unwrap();
        std::fs::rename(new, &self.0).unwrap();
    }

    fn get(&self) -> Vec<String> {
        std::fs::read_to_string(&self.0).unwrap().split_whitespace().map(ToOwned::to_owned).collect()
    }
}

/// Queries active tickets at the first process that answers. Stops reading when it has this many.
async fn query(client: &Client, places: &Places, enough: usize) -> Vec<String> {
    'places: for address in places.get() {
        let url = format!("http://{address}/v1/queryservice/tickets:query");
        let request = client.post(url).json(&json!({ "pool": {} }));
        let Ok(mut response) = request.send().await else { continue };
        let (mut read, mut ids) = (Vec::new(), Vec::new());
        while ids.len() < enough {
            match response.chunk().await {
                Ok(Some(chunk)) => read.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(_) => continue 'places,
            }
            while let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                let page: Value = serde_json::from_slice(&read[..end]).unwrap();
                read.drain(..=end);
                let Some(tickets) = page["result"]["tickets"].as_array() else { continue 'places };
                ids.extend(tickets.iter().map(|ticket| ticket["id"].as_str().unwrap().to_owned()));
            }
        }
        return ids;
    }
    Vec::new()
}

/// Serves a match function that pairs active tickets. Each call pairs them differently, so that its proposals
/// overlap with those of calls at the same time.
async fn pairing_function(places: Places) -> u16 {
    let (calls, client) = (Arc::new(AtomicUsize::new(0)), Client::new());
    let run = async move |body: String| {
        let request: Value = serde_json::from_str(&body).unwrap();
        let profile = request["profile"]["name"].as_str().unwrap().to_owned();
        let call = calls.fetch_add(1, Ordering::Relaxed);
        let mut ids = query(&client, &places, PROPOSED).await;
        ids.truncate(PROPOSED);
        ids.sort();
        let mut lines = String::new();
        for (at, pair) in ids[(call % 3).min(ids.len())..].chunks_exact(2).enumerate() {
            let tickets: Vec<Value> = pair.iter().map(|id| json!({ "id": id })).collect();
            let proposal =
                json!({ "match_id": format!("{call}-{at}"), "match_profile": profile, "tickets": tickets });
            lines += &format!("{}\n", json!({ "result": { "proposal": proposal } }));
        }
        lines
    };
    serve_function(post(run)).await
}

/// Serves a match function. Returns its port.
async fn serve_function(run: MethodRouter) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = Router::new().route("/v1/matchfunction:run", run);
    tokio::spawn(async move { axum::serve(listener, router).await });
    port
}

/// Fails if Directors cannot be started.
fn python() -> Result<(), testkit::Error> {
    let missing = testkit::Error::Missing { program: "python3", remedy: "`cargo xtask test` installs it" };
    if Path::new(PYTHON).exists() { Ok(()) } else { Err(missing) }
}

/// Starts a Director of one profile, which runs until it is killed.
fn direct(profile: &str, function: u16, places: &Places) -> RunningProgram {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/matchmaking/director.py");
    let program = Program::new(PYTHON).args([script, profile, &function.to_string()]).arg(&places.0);
    program.start().unwrap()
}

/// A Director that was killed while it held tickets.
struct Killed {
    at: Duration,
    /// The tickets that it held, each with its claim.
    held: Vec<(TicketId, f64)>,
}

/// Returns the time of Redis.
async fn redis_time(redis: &mut MultiplexedConnection) -> Duration {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(redis).await.unwrap();
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

/// Returns the claims on tickets, live or not.
async fn claims(redis: &mut MultiplexedConnection, tickets: &[TicketId]) -> Vec<Option<f64>> {
    let ids: Vec<&str> = tickets.iter().map(TicketId::as_str).collect();
    redis::cmd("ZMSCORE").arg("proposed_ticket_ids").arg(ids).query_async(redis).await.unwrap()
}

/// Kills a Director at a moment at which it holds tickets.
async fn kill_holder(
    director: &RunningProgram,
    profile: &str,
    store: &Store,
    redis: &MultiplexedConnection,
    tickets: &[TicketId],
) -> Killed {
    let killed = eventually(&format!("{profile} holds tickets"), PATIENCE, async || {
        director.pause().await;
        let mut redis = redis.clone();
        let (holders, claims) = (store.holders(tickets).await.unwrap(), claims(&mut redis, tickets).await);
        let at = redis_time(&mut redis).await;
        let live = |claim: &f64| *claim + 2.0 > at.as_secs_f64();
        let own = tickets.iter().zip(holders).zip(claims).filter_map(|((ticket, holder), claim)| {
            let claim = claim.filter(live)?;
            holder.is_some_and(|holder| holder.profile == profile).then(|| (ticket.clone(), claim))
        });
        let held: Vec<(TicketId, f64)> = own.collect();
        if held.is_empty() {
            director.resume();
            return None;
        }
        Some(Killed { at, held })
    })
    .await;
    director.kill();
    killed
}

impl Killed {
    /// Waits for the pending timeout and a second. Then each ticket is active, or somebody else has claimed or assigned it.
    async fn assert_tickets_are_free(self, mut redis: MultiplexedConnection, places: Places) {
        let free = self.at + Duration::from_secs(3);
        while let now = redis_time(&mut redis).await
            && now < free
        {
            tokio::time::sleep(free - now).await;
        }
        let active = query(&Client::new(), &places, usize::MAX).await;
        let tickets: Vec<TicketId> = self.held.iter().map(|(ticket, _)| ticket.clone()).collect();
        for ((ticket, old), claim) in self.held.into_iter().zip(claims(&mut redis, &tickets).await) {
            let is_active = active.iter().any(|active| *active == ticket.as_str());
            assert!(is_active || claim != Some(old), "{ticket} is held by a dead Director");
        }
    }
}

/// Returns all keys but `matchEvents`: that stream stays when it is empty, because the ids of its entries must not repeat.
async fn all_keys(redis: &mut MultiplexedConnection) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        let (next, page): (u64, Vec<String>) =
            scan.arg(cursor).arg("COUNT").arg(1000).query_async(redis).await.unwrap();
        keys.extend(page);
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    let entries: u64 = redis::cmd("XLEN").arg("matchEvents").query_async(redis).await.unwrap();
    keys.retain(|key| entries > 0 || key != "matchEvents");
    keys
}

/// What is killed: a process, or a Director with its profile.
enum Doomed {
    Process(usize),
    Director(usize, &'static str),
}

#[tokio::test(flavor = "multi_thread")]
async fn directors_and_processes_killed_under_load_lose_and_duplicate_nothing() {
    need!(python());
    let matchmaking = need!(start().await);
    let (store, count) = (matchmaking.store().await, count());
    let tickets = make_tickets(&store, count).await;
    let redis = matchmaking.fleet.redis.namespace().connect().await;
    let roles = "matchmaking-frontend,outbox-relay";
    let mut processes: Vec<RunningProgram> = (0..3).map(|_| matchmaking.serve(roles)).collect();
    let mut running = Vec::new();
    for process in &processes {
        running.push(addresses(process).await["open_match"].clone());
    }
    let places = Places::new(&matchmaking.folder);
    places.set(&running);
    let function = pairing_function(places.clone()).await;
    let mut directors = ["first", "second"].map(|profile| direct(profile, function, &places));

    let started = Instant::now();
    let waiting = async || i64::try_from(store.list(0).await.unwrap().1).unwrap();
    let mut checks = Vec::new();
    // Each Director and each process is killed once, at another point of the way. The others go on.
    for (left, doomed) in [
        (9, Doomed::Process(0)),
        (8, Doomed::Director(0, "first")),
        (6, Doomed::Director(1, "second")),
        (4, Doomed::Process(1)),
        (2, Doomed::Process(2)),
    ] {
        eventually("more tickets are matched", PATIENCE * 6, async || waiting().await <= count * left / 10)
            .await;
        match doomed {
            Doomed::Process(at) => {
                processes[at].kill();
                processes[at] = matchmaking.serve(roles);
                running[at] = addresses(&processes[at]).await["open_match"].clone();
                places.set(&running);
            }
            Doomed::Director(at, profile) => {
                let killed = kill_holder(&directors[at], profile, &store, &redis, &tickets).await;
                checks.push(tokio::spawn(killed.assert_tickets_are_free(redis.clone(), places.clone())));
                directors[at] = direct(&format!("replacement of {profile}"), function, &places);
            }
        }
    }
    eventually("all tickets are matched", PATIENCE * 6, async || {
        let waiting = waiting().await;
        if waiting == 0 { Ok(()) } else { Err(format!("{waiting} left")) }
    })
    .await;
    eprintln!("{count} tickets, {} ms, kills and starts included", started.elapsed().as_millis());
    directors.iter().for_each(RunningProgram::kill);
    for check in checks {
        check.await.unwrap();
    }
    eventually("every match is recorded", PATIENCE * 3, async || {
        store.unrecorded_size().await.unwrap().0 == 0
    })
    .await;

    let mut servers: HashMap<String, Vec<String>> = HashMap::new();
    for (id, seen) in tickets.iter().zip(store.watch_states(&tickets).await.unwrap()) {
        let WatchState::Assigned(assignment) = seen else { panic!("{id} was lost") };
        let assignment = proto::openmatch::Assignment::decode_from_slice(&assignment).unwrap();
        servers.entry(assignment.connection).or_default().push(id.to_string());
    }
    // Each event names the tickets of one server, and all of them.
    let mut events = matches_on_the_bus(&matchmaking.fleet.nats.url(), servers.len()).await;
    events.values_mut().for_each(|tickets| tickets.sort());
    servers.values_mut().for_each(|tickets| tickets.sort());
    let (published, assigned): (HashSet<_>, HashSet<_>) =
        (events.values().collect(), servers.values().collect());
    assert_eq!(published, assigned, "the events are the assignments");
    assert_eq!(events.values().flatten().count(), tickets.len(), "no ticket is in two matches");

    let mut redis = redis;
    for key in ["allTickets", "ticketQueue", "proposed_ticket_ids"] {
        let exists: bool = redis::cmd("EXISTS").arg(key).query_async(&mut redis).await.unwrap();
        assert!(!exists, "{key} is left over");
    }
    for key in all_keys(&mut redis).await {
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut redis).await.unwrap();
        // The assignments expire; -2 has done so meanwhile.
        assert!(ttl == -2 || (1..=600_000).contains(&ttl), "{key} is never removed: {ttl}");
    }
    let held: Vec<String> = redis::cmd("KEYS").arg("holder:*").query_async(&mut redis).await.unwrap();
    for key in held.iter().map(String::as_str).chain(["claimNumber"]) {
        let ttl: i64 = redis::cmd("PTTL").arg(key).query_async(&mut redis).await.unwrap();
        assert!(ttl == -2 || (1..=4_000).contains(&ttl), "{key} does not expire: {ttl}");
    }
    for process in processes {
        process.sigterm();
        assert_eq!(process.wait(PATIENCE).await.code(), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_remains_in_redis_after_tickets_end() {
    need!(python());
    let matchmaking = need!(start().await);
    let file = matchmaking.folder.path().join("playhouse.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    let soon = "assigned_ttl = \"2s\"\nquery_idle_timeout = \"1s\"";
    std::fs::write(&file, config.replace("assigned_ttl = \"10m\"", soon)).unwrap();
    let (store, roles) = (matchmaking.store().await, "matchmaking-frontend,outbox-relay");
    let running = matchmaking.serve(roles);
    let address = addresses(&running).await["open_match"].clone();
    let client = Client::new();
    let url = format!("http://{address}/v1/frontendservice");
    let create = async |ttl: u32| {
        let ttl = json!({ "@type": "type.googleapis.com/google.protobuf.Int64Value", "value": format!("{ttl}000000000") });
        let body = json!({ "ticket": { "persistent_field": { "ttl": ttl } } });
        let made = client.post(format!("{url}/tickets")).json(&body).send().await.unwrap();
        made.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned()
    };
    // Some are cancelled, some expire, the others are matched or expire in pairs that a Director never assigns.
    for number in 0..40 {
        let id = create(if number % 4 == 0 { 1 } else { 4 }).await;
        if number % 4 == 1 {
            client.delete(format!("{url}/tickets/{id}")).send().await.unwrap();
        }
    }
    let backfill =
        client.post(format!("{url}/backfills")).json(&json!({ "backfill": {} })).send().await.unwrap();
    assert_eq!(backfill.status(), 200);
    let places = Places::new(&matchmaking.folder);
    places.set(std::slice::from_ref(&address));
    let function = pairing_function(places.clone()).await;
    let director = direct("duel", function, &places);
    // Queries keep an index, which follows a stream of changes.
    let query = client.post(format!("http://{address}/v1/queryservice/tickets:query"));
    assert_eq!(query.json(&json!({ "pool": {} })).send().await.unwrap().status(), 200);
    eventually("some tickets are assigned", PATIENCE, async || store.list(0).await.unwrap().1 < 10).await;
    director.kill();
    let redis = matchmaking.fleet.redis.namespace().connect().await;
    eventually("all tickets and their traces are gone", PATIENCE * 2, async || {
        let keys = all_keys(&mut redis.clone()).await;
        if keys.is_empty() { Ok(()) } else { Err(format!("{keys:?}")) }
    })
    .await;
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
}

/// Calls a method of BackendService. Returns the lines of the response, or `None` if the process does not answer.
async fn call(client: &Client, address: &str, method: &str, request: Value) -> Option<Vec<Value>> {
    let url = format!("http://{address}/v1/backendservice/{method}");
    let response = client.post(url).json(&request).send().await.ok()?;
    assert_eq!(response.status(), 200, "{method}");
    let lines = response.text().await.ok()?;
    Some(lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// The process dies with the claims of a call, or between an assignment and its event.
#[tokio::test(flavor = "multi_thread")]
async fn process_killed_at_any_point_of_a_directors_calls_loses_and_doubles_no_ticket() {
    let matchmaking = need!(start().await);
    let (store, client) = (matchmaking.store().await, Client::new());
    let roles = "matchmaking-frontend,outbox-relay";
    let next = matchmaking.serve(roles);
    let next = addresses(&next).await["open_match"].clone();
    let mut expected = Vec::new();
    for has_backfill in [false, true] {
        let tickets = make_tickets(&store, 2).await;
        let ids: Vec<String> = tickets.iter().map(ToString::to_string).collect();
        let members: Vec<Value> = ids.iter().map(|id| json!({ "id": id })).collect();
        let mut proposal = json!({ "match_id": "only", "tickets": members });
        if has_backfill {
            proposal["backfill"] = json!({});
        }
        let line = format!("{}\n", json!({ "result": { "proposal": proposal } }));
        let function = serve_function(post(async move || line)).await;
        let config = json!({ "host": "127.0.0.1", "port": function, "type": "REST" });
        let fetch = json!({ "config": config, "profile": { "name": "duel" } });
        let doomed = |point: &str| matchmaking.program(roles).env("TESTKIT_FAULT", point).start().unwrap();

        let fetching = doomed("matchmaking.claimed");
        let address = addresses(&fetching).await["open_match"].clone();
        let lines = call(&client, &address, "matches:fetch", fetch.clone()).await.unwrap_or_default();
        assert!(lines.is_empty(), "{lines:?}");
        assert_killed(&fetching).await;
        assert!(store.status(&tickets[0]).await.unwrap().pending_since.is_some(), "a dead call holds them");
        let found = eventually("another call gets the match", PATIENCE, async || {
            let lines = call(&client, &next, "matches:fetch", fetch.clone()).await.unwrap();
            lines.first().map(|line| line["result"]["match"].clone())
        })
        .await;
        assert_eq!(found["tickets"].as_array().unwrap().len(), 2);

        if has_backfill {
            // The backfill of the dead call has no ticket. That of the other call has both.
            let id = BackfillId::parse(found["backfill"]["id"].as_str().unwrap()).unwrap();
            let all: BTreeSet<String> = ids.iter().cloned().collect();
            assert_eq!(acknowledge(&client, &next, &id).await, Some(all));
        } else {
            let assigning = doomed("matchmaking.assigned");
            let address = addresses(&assigning).await["open_match"].clone();
            let group = json!({ "ticket_ids": ids, "assignment": { "connection": "server" } });
            let assign = json!({ "assignments": [group] });
            assert_eq!(call(&client, &address, "tickets:assign", assign.clone()).await, None);
            assert_killed(&assigning).await;
            let again = call(&client, &next, "tickets:assign", assign).await.unwrap();
            assert_eq!(again, [json!({})], "it was assigned before the process died");
        }
        let seen = store.watch_states(&tickets).await.unwrap();
        assert!(seen.iter().all(|seen| matches!(seen, WatchState::Assigned(_))), "{seen:?}");
        expected.push(ids);
    }
    let events = matches_on_the_bus(&matchmaking.fleet.nats.url(), expected.len()).await;
    let mut found: Vec<Vec<String>> = events.into_values().collect();
    found.iter_mut().chain(&mut expected).for_each(|tickets| tickets.sort());
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    eventually("nothing is left", PATIENCE, async || store.unrecorded_size().await.unwrap().0 == 0).await;
}

/// Tells when it is dropped.
struct OnDrop(tokio::sync::mpsc::UnboundedSender<()>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn director_killed_in_the_middle_of_a_call_holds_no_ticket_for_long() {
    need!(python());
    let matchmaking = need!(start().await);
    let file = matchmaking.folder.path().join("playhouse.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    // Longer than the test takes.
    std::fs::write(&file, config.replace("\"1500ms\"", "\"10m\"")).unwrap();
    let store = matchmaking.store().await;
    let running = matchmaking.serve("matchmaking-frontend,outbox-relay");
    let address = addresses(&running).await["open_match"].clone();
    let tickets = make_tickets(&store, 2).await;
    // A match function that proposes one match, and then works on until it is cancelled.
    let line = json!({ "result": { "proposal": {
        "match_id": "first",
        "tickets": tickets.iter().map(|id| json!({ "id": id.to_string() })).collect::<Vec<_>>(),
    } } });
    let (cancelled, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let run = async move || {
        let (line, guard) = (format!("{line}\n"), OnDrop(cancelled.clone()));
        let lines = futures::stream::iter([Ok::<_, std::convert::Infallible>(line)]);
        let never = futures::stream::pending().inspect(move |_| _ = &guard);
        axum::body::Body::from_stream(lines.chain(never))
    };
    let function = serve_function(post(run)).await;

    let config = json!({ "host": "127.0.0.1", "port": function, "type": "REST" });
    let request = json!({ "config": config, "profile": { "name": "duel" } }).to_string();
    let url = format!("http://{address}/v1/backendservice/matches:fetch");
    let director = Program::new("/usr/bin/curl").args(["-sN", "-d", &request, &url]).start().unwrap();
    director.wait_for_line("\"first\"", PATIENCE).await;
    let pending = async || store.status(&tickets[0]).await.unwrap().pending_since;
    assert!(pending().await.is_some(), "the Director holds the tickets");
    director.kill();
    tokio::time::timeout(PATIENCE, ended.recv()).await.expect("the match function is cancelled").unwrap();
    eventually("another Director can have the tickets", PATIENCE, async || pending().await.is_none()).await;
    let places = Places::new(&matchmaking.folder);
    places.set(&[address]);
    let function = pairing_function(places.clone()).await;
    let other = direct("other", function, &places);
    eventually("they are assigned", PATIENCE, async || store.list(0).await.unwrap().1 == 0).await;
    other.kill();
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
}
