//! Players who join at a steady rate and are matched in pairs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Client;
use serde_json::{Value, json};

use super::PATIENCE;

/// How long a player may wait for a match. Faults of NATS do not delay matches.
const MATCH_TIMEOUT: Duration = Duration::from_secs(60);
/// The end of the address that a match is assigned. The id of the match precedes it.
pub(crate) const DOMAIN: &str = ".test:7777";

/// Generates players, two at a time.
pub(crate) struct Players {
    stop: runtime::Drain,
    running: tokio::task::JoinHandle<()>,
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    tickets: String,
    /// The number of pairs of players that have joined.
    offered: AtomicU64,
    /// The number of players who wait.
    waiting: AtomicU64,
    /// The tickets that were assigned to each match, by its id.
    assigned: Mutex<HashMap<String, Vec<String>>>,
    failed: Mutex<Vec<String>>,
}

impl Players {
    pub(crate) fn start(open_match: &str, matches_per_second: u32) -> Self {
        let stop = runtime::Drain::new();
        let shared = Arc::new(Shared {
            client: Client::builder().http2_prior_knowledge().build().unwrap(),
            tickets: format!("http://{open_match}/v1/frontendservice/tickets"),
            offered: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            assigned: Mutex::default(),
            failed: Mutex::default(),
        });
        let running = tokio::spawn({
            let (stop, shared) = (stop.clone(), shared.clone());
            async move {
                let mut beat = tokio::time::interval(Duration::from_secs(1) / matches_per_second);
                while !stop.is_requested() {
                    beat.tick().await;
                    shared.offered.fetch_add(1, Ordering::SeqCst);
                    for _ in 0..2 {
                        shared.waiting.fetch_add(1, Ordering::SeqCst);
                        tokio::spawn(shared.clone().play());
                    }
                }
            }
        });
        Self { stop, running, shared }
    }

    /// Returns how many matches the players that have joined can form.
    pub(crate) fn offered(&self) -> u64 {
        self.shared.offered.load(Ordering::SeqCst)
    }

    /// Stops new players, and waits until all have a match. Returns the tickets of each match.
    pub(crate) async fn finish(&self) -> HashMap<String, Vec<String>> {
        self.stop.request();
        testkit::eventually("no more players join", PATIENCE, async || self.running.is_finished()).await;
        testkit::eventually("all players have a match", MATCH_TIMEOUT + PATIENCE, async || {
            match self.shared.waiting.load(Ordering::SeqCst) {
                0 => Ok(()),
                waiting => Err(format!("{waiting} players wait")),
            }
        })
        .await;
        let failed = std::mem::take(&mut *self.shared.failed.lock().unwrap());
        assert!(failed.is_empty(), "{} players have no match, the first: {}", failed.len(), failed[0]);
        std::mem::take(&mut *self.shared.assigned.lock().unwrap())
    }
}

impl Shared {
    async fn play(self: Arc<Self>) {
        match tokio::time::timeout(MATCH_TIMEOUT, self.wait_for_match()).await {
            Ok(Ok((id, ticket))) => self.assigned.lock().unwrap().entry(id).or_default().push(ticket),
            Ok(Err(cause)) => self.failed.lock().unwrap().push(cause),
            Err(_) => self.failed.lock().unwrap().push(format!("no match within {MATCH_TIMEOUT:?}")),
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Creates a ticket and waits for its match. Returns the ids of the match and of the ticket.
    async fn wait_for_match(&self) -> Result<(String, String), String> {
        let text = |error: reqwest::Error| error.to_string();
        let created =
            self.client.post(&self.tickets).json(&json!({ "ticket": {} })).send().await.map_err(text)?;
        let created: Value = created.error_for_status().map_err(text)?.json().await.map_err(text)?;
        let ticket = created["id"].as_str().ok_or_else(|| created.to_string())?.to_owned();
        let watch = self.client.get(format!("{}/{ticket}/assignments", self.tickets));
        let mut watching = watch.send().await.map_err(text)?.error_for_status().map_err(text)?;
        let update = watching.chunk().await.map_err(text)?.unwrap_or_default();
        let update: Value = serde_json::from_slice(&update).map_err(|error| error.to_string())?;
        let connection = update["result"]["assignment"]["connection"].as_str();
        let id = connection.and_then(|connection| connection.strip_suffix(DOMAIN));
        Ok((id.ok_or_else(|| update.to_string())?.to_owned(), ticket))
    }
}
