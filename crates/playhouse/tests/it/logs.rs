//! What the log says while a server is away under load: a line per change of state, with a count of what it stands for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::json;
use testkit::issuer::{Issuer, Signer};
use testkit::{Folder, eventually, need};

use super::fleet::Fleet;
use super::shop::{self, Shop};
use super::*;

/// How many lines one place may write in an outage of seconds: the first, and the one when it is over. Some more for an outage that
/// comes in two parts.
const MOST: usize = 5;
/// How many requests must fail or succeed before the next step.
const ENOUGH: u64 = 1_000;
/// The same without SQL, where each request waits for `db.acquire_timeout` before it fails.
const ENOUGH_WITHOUT_SQL: u64 = 50;

/// Requests without end, and what they were answered with.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    /// Each request is sent by two clients, under a new idempotency key each time.
    fn start(requests: &[reqwest::RequestBuilder]) -> Self {
        let mut load =
            Self { stop: Arc::default(), done: Arc::default(), failed: Arc::default(), clients: Vec::new() };
        for request in requests.iter().chain(requests) {
            let request = request.try_clone().unwrap();
            let (stop, done, failed) = (load.stop.clone(), load.done.clone(), load.failed.clone());
            load.clients.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let key = uuid::Uuid::now_v7().to_string();
                    let answer = request.try_clone().unwrap().header("idempotency-key", key).send().await;
                    let count = match answer {
                        Ok(answer) if answer.status() == 503 => &failed,
                        Ok(answer) if answer.status() == 200 => &done,
                        _ => continue,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        load
    }

    async fn wait_for(&self, what: &str, count: &AtomicU64, enough: u64) {
        let enough = count.load(Ordering::Relaxed) + enough;
        eventually(what, PATIENCE * 3, async || {
            let now = count.load(Ordering::Relaxed);
            if now >= enough { Ok(()) } else { Err(format!("{now} of {enough}")) }
        })
        .await;
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
    }
}

/// A process of all roles under load.
struct Scene {
    fleet: Fleet,
    running: Running,
    at: HashMap<String, String>,
    load: Load,
    _issuer: Issuer,
    _folder: Folder,
}

impl Scene {
    async fn start() -> Result<Self, testkit::Error> {
        let (fleet, signer) = (Fleet::start().await?, Signer::ec("one"));
        let issuer = Issuer::start(&[&signer]).await;
        let folder = Folder::fresh().unwrap();
        let file = folder.path().join("play.toml");
        let settings =
            format!("{}{}{}", super::gateway::soon(), super::gateway::DUEL, super::shop::services());
        std::fs::write(&file, settings).unwrap();
        let program = fleet.serve(&["--config", file.to_str().unwrap(), "--roles", "all"]);
        let running = program.env("PLAYHOUSE_IDENTITY_ISSUER", &issuer.url).start().unwrap();
        let at = addresses(&running).await;
        let shop = Shop::at(&at["internal"]);
        let ada = shop.customer("ada").await;
        let client = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
        let token = signer.sign(&issuer.claims("bea"));
        let gateway = |path: &str| client.get(format!("http://{}{path}", at["gateway"]));
        let session = format!("playhouse={}", "A".repeat(43));
        let load = Load::start(&[
            client.post(tickets(&at)).json(&json!({ "ticket": {} })),
            gateway("/v1/me").header("cookie", &session),
            gateway("/v1/home").bearer_auth(&token),
            gateway("/v1/matchmaking/tickets").bearer_auth(&token),
            gateway("/v1/notifications").bearer_auth(&token),
            client
                .post(shop.url("/entitlements/grant"))
                .bearer_auth(shop::TOKEN)
                .json(&shop::purchase(&ada, "gems")),
        ]);
        Ok(Self { fleet, running, at, load, _issuer: issuer, _folder: folder })
    }

    async fn is_well(&self) {
        let url = format!("http://{}/readyz", self.at["admin"]);
        eventually("nothing is degraded", PATIENCE, async || {
            let (status, report) = get(url.clone()).await;
            if status == 200 && report["degraded"] == false { Ok(()) } else { Err(report.to_string()) }
        })
        .await;
        self.load.wait_for("requests succeed", &self.load.done, ENOUGH).await;
    }

    /// Checks that no place has written many warnings since this line. Returns how many each has.
    fn few_warnings(&self, since: usize) -> BTreeMap<String, usize> {
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        let log = self.running.text(testkit::Stream::Stderr);
        for line in log.lines().skip(since) {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if line["level"] == "WARN" || line["level"] == "ERROR" {
                let name = ["outage", "of", "part"].iter().find_map(|field| line[field].as_str());
                let message = line["message"].as_str().unwrap_or_default();
                *places.entry(format!("{message} ({})", name.unwrap_or_default())).or_default() += 1;
            }
        }
        for (place, lines) in &places {
            assert!(*lines <= MOST, "{lines} lines: {place}\n{places:#?}");
        }
        places
    }

    fn lines(&self) -> usize {
        self.running.text(testkit::Stream::Stderr).lines().count()
    }
}

fn tickets(at: &HashMap<String, String>) -> String {
    format!("http://{}/v1/frontendservice/tickets", at["open_match"])
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_under_load_is_a_few_lines_with_counts() {
    let mut scene = need!(Scene::start().await);
    scene.is_well().await;

    let since = scene.lines();
    scene.fleet.redis.kill().await.unwrap();
    scene.load.wait_for("requests fail without Redis", &scene.load.failed, ENOUGH).await;
    scene.fleet.redis.start_again().await.unwrap();
    scene.is_well().await;
    let places = scene.few_warnings(since);
    for place in ["the tickets cannot be reached (tickets)", "sessions cannot be read (sessions)"] {
        assert!(places.contains_key(place), "{place}: {places:#?}");
    }
    // It says when it is over, and what the first line stood for.
    let over = scene.running.wait_for_line("over: the tickets cannot be reached", PATIENCE * 2).await;
    let over: Value = serde_json::from_str(&over).unwrap();
    assert!(over["lines"].as_u64().unwrap() > ENOUGH / 20 && over["level"] == "INFO", "{over}");

    let since = scene.lines();
    scene.fleet.sql.kill().await.unwrap();
    scene.load.wait_for("requests fail without SQL", &scene.load.failed, ENOUGH_WITHOUT_SQL).await;
    scene.fleet.sql.start_again().await.unwrap();
    scene.is_well().await;
    scene.few_warnings(since);

    let since = scene.lines();
    scene.fleet.nats.kill().await.unwrap();
    scene.load.wait_for("requests go on without NATS", &scene.load.done, ENOUGH).await;
    scene.running.wait_for_line("\"not ready any more\",\"part\":\"bus\"", PATIENCE).await;
    scene.fleet.nats.start_again().await.unwrap();
    scene.is_well().await;
    scene.few_warnings(since);

    let Scene { running, load, .. } = scene;
    load.end().await;
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
}
