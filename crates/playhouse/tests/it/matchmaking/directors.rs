//! Directors on a fleet: processes and Directors are killed, and no ticket is lost or in two matches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::post;
use tokio::net::TcpListener;

use super::*;

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

/// Serves a match function that pairs the oldest waiting tickets. It does not know which are claimed, and each call
/// pairs them differently, so that its proposals overlap with those of other calls.
async fn pairing_function(store: Store) -> u16 {
    let calls = Arc::new(AtomicUsize::new(0));
    let run = async move |body: String| {
        let request: Value = serde_json::from_str(&body).unwrap();
        let profile = request["profile"]["name"].as_str().unwrap().to_owned();
        let call = calls.fetch_add(1, Ordering::Relaxed);
        let (ids, _) = store.list(PROPOSED).await.unwrap();
        let mut lines = String::new();
        for (at, pair) in ids[(call % 3).min(ids.len())..].chunks_exact(2).enumerate() {
            let tickets: Vec<Value> = pair.iter().map(|id| json!({ "id": id.to_string() })).collect();
            let proposal =
                json!({ "match_id": format!("{call}-{at}"), "match_profile": profile, "tickets": tickets });
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

/// A Director of one profile. It moves on to another process when a call fails, and ends when the task is aborted.
async fn direct(profile: String, function: u16, addresses: Vec<String>) {
    let client = Client::builder().timeout(Duration::from_secs(5)).build().unwrap();
    for address in addresses.iter().cycle() {
        let call = async |path: &str, body: Value| {
            let url = format!("http://{address}/v1/backendservice/{path}");
            let response = client.post(url).json(&body).send().await.ok()?;
            response.status().is_success().then_some(response)?.text().await.ok()
        };
        let config = json!({ "host": "127.0.0.1", "port": function, "type": "REST" });
        let request = json!({ "config": config, "profile": { "name": profile } });
        let Some(matches) = call("matches:fetch", request).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let matches = matches.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let groups: Vec<Value> = matches
            .filter_map(|line| {
                let match_ = line["result"]["match"].as_object()?;
                let tickets = match_["tickets"].as_array()?.iter();
                let ids: Vec<&str> = tickets.filter_map(|ticket| ticket["id"].as_str()).collect();
                let connection = format!("{profile}/{}", match_["match_id"].as_str()?);
                Some(json!({ "ticket_ids": ids, "assignment": { "connection": connection } }))
            })
            .collect();
        if groups.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for groups in groups.chunks(50) {
            call("tickets:assign", json!({ "assignments": groups })).await;
        }
    }
}

/// Returns all keys but `matchEvents`: that stream stays when it is empty, because the ids of its entries must not repeat.
async fn all_keys(redis: &mut redis::aio::MultiplexedConnection) -> Vec<String> {
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(redis).await.unwrap();
    let entries: u64 = redis::cmd("XLEN").arg("matchEvents").query_async(redis).await.unwrap();
    keys.retain(|key| entries > 0 || key != "matchEvents");
    keys
}

#[tokio::test(flavor = "multi_thread")]
async fn directors_and_processes_killed_under_load_lose_and_duplicate_nothing() {
    let matchmaking = need!(start().await);
    let (store, count) = (matchmaking.store().await, count());
    let tickets = make_tickets(&store, count).await;
    let function = pairing_function(store.clone()).await;
    let roles = "matchmaking-frontend,outbox-relay";
    let mut processes: Vec<RunningProgram> = (0..3).map(|_| matchmaking.serve(roles)).collect();
    let mut places = Vec::new();
    for process in &processes {
        places.push(addresses(process).await["open_match"].clone());
    }
    let direct =
        |name: &str, places: &[String]| tokio::spawn(direct(name.to_owned(), function, places.to_vec()));
    let mut rotated = places.clone();
    rotated.rotate_left(1);
    let mut directors = [direct("first", &places), direct("second", &rotated)];

    let started = Instant::now();
    let waiting = async || i64::try_from(store.list(0).await.unwrap().1).unwrap();
    // Each Director and each process is killed once, at another point of the way.
    for (kill, left) in (0..5).zip([9, 7, 5, 3, 1]) {
        eventually("more tickets are matched", PATIENCE * 6, async || waiting().await <= count * left / 10)
            .await;
        if kill % 2 == 0 {
            let place = kill / 2;
            processes[place].kill();
            let replacement = matchmaking.serve(roles);
            places[place] = addresses(&replacement).await["open_match"].clone();
            processes[place] = replacement;
            // The Directors learn of the new address, as from a load balancer.
            for (at, director) in directors.iter_mut().enumerate() {
                director.abort();
                *director = direct(["first", "second"][at], &places);
            }
        } else {
            directors[kill / 2].abort();
            directors[kill / 2] = direct("replacement", &places);
        }
    }
    eventually("all tickets are matched", PATIENCE * 6, async || {
        let waiting = waiting().await;
        if waiting == 0 { Ok(()) } else { Err(format!("{waiting} left")) }
    })
    .await;
    eprintln!("{count} tickets, {} ms, kills and starts included", started.elapsed().as_millis());
    directors.iter().for_each(tokio::task::JoinHandle::abort);
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

    let mut redis = matchmaking.fleet.redis.namespace().connect().await;
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
    let function = pairing_function(store.clone()).await;
    let director = tokio::spawn(direct("duel".to_owned(), function, vec![address.clone()]));
    // Queries keep an index, which follows a stream of changes.
    let query = client.post(format!("http://{address}/v1/queryservice/tickets:query"));
    assert_eq!(query.json(&json!({ "pool": {} })).send().await.unwrap().status(), 200);
    eventually("some tickets are assigned", PATIENCE, async || store.list(0).await.unwrap().1 < 10).await;
    director.abort();
    drop(director);
    let redis = matchmaking.fleet.redis.namespace().connect().await;
    eventually("all tickets and their traces are gone", PATIENCE * 2, async || {
        let keys = all_keys(&mut redis.clone()).await;
        if keys.is_empty() { Ok(()) } else { Err(format!("{keys:?}")) }
    })
    .await;
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
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
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let function = listener.local_addr().unwrap().port();
    let router = Router::new().route("/v1/matchfunction:run", post(run));
    tokio::spawn(async move { axum::serve(listener, router).await });

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
    let function = pairing_function(store.clone()).await;
    let other = tokio::spawn(direct("other".to_owned(), function, vec![address]));
    eventually("they are assigned", PATIENCE, async || store.list(0).await.unwrap().1 == 0).await;
    other.abort();
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
}
