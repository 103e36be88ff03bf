//! The log during an outage under load: one line per change of state, with the number of lines it stands for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::json;
use testkit::issuer::{Issuer, Signer};
use testkit::{Folder, eventually, need};

use super::fleet::Fleet;
use super::shop::{self, Shop};
use super::*;

/// How many lines one message may have in a short outage: the first and the last, and some more if the outage comes in two parts.
const MAX_LINES: usize = 5;
/// How many requests must fail or succeed before the next step.
const ENOUGH: u64 = 1_000;
/// Fewer without SQL, where each request waits for `db.acquire_timeout` before it fails.
const ENOUGH_WITHOUT_SQL: u64 = 50;

/// Clients that send requests until they are stopped, and counts of the responses.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    /// Two clients repeat each request, with a new idempotency key each time.
    fn start(requests: &[reqwest::RequestBuilder]) -> Self {
        let mut load =
            Self { stop: Arc::default(), done: Arc::default(), failed: Arc::default(), clients: Vec::new() };
        for request in requests.iter().chain(requests) {
            let request = request.try_clone().unwrap();
            let (stop, done, failed) = (load.stop.clone(), load.done.clone(), load.failed.clone());
            load.clients.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let key = uuid::Uuid::now_v7().to_string();
                    let response = request.try_clone().unwrap().header("idempotency-key", key).send().await;
                    let count = match response {
                        Ok(response) if response.status() == 503 => &failed,
                        Ok(response) if response.status() == 200 => &done,
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

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
    }
}

/// A process with all roles under load.
struct Setup {
    fleet: Fleet,
    running: RunningProgram,
    at: HashMap<String, String>,
    load: Load,
    _issuer: Issuer,
    _folder: Folder,
}

impl Setup {
    async fn start() -> Result<Self, testkit::Error> {
        let (fleet, signer) = (Fleet::start().await?, Signer::ec("one"));
        let issuer = Issuer::start(&[&signer]).await;
        let folder = Folder::fresh().unwrap();
        let file = folder.path().join("play.toml");
        let settings = format!(
            "{}{}{}",
            super::gateway::fleet_settings(),
            super::gateway::DUEL,
            super::shop::services()
        );
        std::fs::write(&file, settings).unwrap();
        let program = fleet.serve(&["--config", file.to_str().unwrap(), "--roles", "all"]);
        let running = program.env("PLAYHOUSE_IDENTITY_ISSUER", &issuer.url).start().unwrap();
        let at = addresses(&running).await;
        let shop = Shop::at(&at["service_api"]);
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

    async fn wait_until_healthy(&self) {
        let url = format!("http://{}/readyz", self.at["admin"]);
        eventually("nothing is degraded", PATIENCE, async || {
            let (status, report) = get(url.clone()).await;
            if status == 200 && report["degraded"] == false { Ok(()) } else { Err(report.to_string()) }
        })
        .await;
        self.load.wait_for("requests succeed", &self.load.done, ENOUGH).await;
    }

    /// Asserts that no message was logged more than `MAX_LINES` times as a warning or error since this line. Returns the counts.
    fn assert_few_warnings(&self, since: usize) -> BTreeMap<String, usize> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let log = self.running.text(testkit::OutputStream::Stderr);
        for line in log.lines().skip(since) {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if line["level"] == "WARN" || line["level"] == "ERROR" {
                let name = ["outage", "of", "part"].iter().find_map(|field| line[field].as_str());
                let message = line["message"].as_str().unwrap_or_default();
                *counts.entry(format!("{message} ({})", name.unwrap_or_default())).or_default() += 1;
            }
        }
        for (message, lines) in &counts {
            assert!(*lines <= MAX_LINES, "{lines} lines: {message}\n{counts:#?}");
        }
        counts
    }

    fn lines(&self) -> usize {
        self.running.text(testkit::OutputStream::Stderr).lines().count()
    }
}

fn tickets(at: &HashMap<String, String>) -> String {
    format!("http://{}/v1/frontendservice/tickets", at["open_match"])
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_under_load_logs_few_lines_with_counts() {
    let mut setup = need!(Setup::start().await);
    setup.wait_until_healthy().await;

    let since = setup.lines();
    setup.fleet.redis.kill().await.unwrap();
    setup.load.wait_for("requests fail without Redis", &setup.load.failed, ENOUGH).await;
    setup.fleet.redis.start_again().await.unwrap();
    setup.wait_until_healthy().await;
    let counts = setup.assert_few_warnings(since);
    for message in ["The store of tickets does not answer (tickets)", "cannot read sessions (sessions)"] {
        assert!(counts.contains_key(message), "{message}: {counts:#?}");
    }
    // The last line reports the end of the outage and how many lines the first one stood for.
    let over = setup.running.wait_for_line("over: The store of tickets does not answer", PATIENCE * 2).await;
    let over: Value = serde_json::from_str(&over).unwrap();
    assert!(over["lines"].as_u64().unwrap() > ENOUGH / 20 && over["level"] == "INFO", "{over}");

    let since = setup.lines();
    setup.fleet.sql.kill().await.unwrap();
    setup.load.wait_for("requests fail without SQL", &setup.load.failed, ENOUGH_WITHOUT_SQL).await;
    setup.fleet.sql.start_again().await.unwrap();
    setup.wait_until_healthy().await;
    setup.assert_few_warnings(since);

    let since = setup.lines();
    setup.fleet.nats.kill().await.unwrap();
    setup.load.wait_for("requests go on without NATS", &setup.load.done, ENOUGH).await;
    setup.running.wait_for_line("\"no longer ready\",\"part\":\"bus\"", PATIENCE).await;
    setup.fleet.nats.start_again().await.unwrap();
    setup.wait_until_healthy().await;
    setup.assert_few_warnings(since);

    let Setup { running, load, .. } = setup;
    load.stop().await;
    running.sigterm();
    assert_eq!(running.wait(PATIENCE).await.code(), Some(0));
}
