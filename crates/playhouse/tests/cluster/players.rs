//! Players who are matched in twos, at a steady rate.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Client;
use serde_json::{Value, json};

use super::PATIENCE;

/// What every player waits for at most: faults of NATS are none of theirs.
const WAIT: Duration = Duration::from_secs(60);
/// Of the address that a match is assigned; before it stands the match's id.
pub(crate) const DOMAIN: &str = ".test:7777";

/// Players who come two by two.
pub(crate) struct Players {
    stop: runtime::Drain,
    running: tokio::task::JoinHandle<()>,
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    tickets: String,
    /// Matches whose players have come.
    offered: AtomicU64,
    /// Players who are waiting.
    waiting: AtomicU64,
    /// By the id of the match, the tickets that were assigned to it.
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

    /// How many matches could be made.
    pub(crate) fn offered(&self) -> u64 {
        self.shared.offered.load(Ordering::SeqCst)
    }

    /// Lets nobody else come, and waits until everybody has a match. Returns the matches with their tickets.
    pub(crate) async fn finish(&self) -> HashMap<String, Vec<String>> {
        self.stop.request();
        testkit::eventually("nobody else comes", PATIENCE, async || self.running.is_finished()).await;
        testkit::eventually("everybody has a match", WAIT + PATIENCE, async || {
            match self.shared.waiting.load(Ordering::SeqCst) {
                0 => Ok(()),
                waiting => Err(format!("{waiting} wait")),
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
        match tokio::time::timeout(WAIT, self.matched()).await {
            Ok(Ok((id, ticket))) => self.assigned.lock().unwrap().entry(id).or_default().push(ticket),
            Ok(Err(why)) => self.failed.lock().unwrap().push(why),
            Err(_) => self.failed.lock().unwrap().push(format!("not within {WAIT:?}")),
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// The match that a new ticket gets, and the ticket.
    async fn matched(&self) -> Result<(String, String), String> {
        let said = |error: reqwest::Error| error.to_string();
        let made =
            self.client.post(&self.tickets).json(&json!({ "ticket": {} })).send().await.map_err(said)?;
        let made: Value = made.error_for_status().map_err(said)?.json().await.map_err(said)?;
        let ticket = made["id"].as_str().ok_or_else(|| made.to_string())?.to_owned();
        let watch = self.client.get(format!("{}/{ticket}/assignments", self.tickets));
        let mut watching = watch.send().await.map_err(said)?.error_for_status().map_err(said)?;
        let told = watching.chunk().await.map_err(said)?.unwrap_or_default();
        let told: Value = serde_json::from_slice(&told).map_err(|error| error.to_string())?;
        let connection = told["result"]["assignment"]["connection"].as_str();
        let id = connection.and_then(|connection| connection.strip_suffix(DOMAIN));
        Ok((id.ok_or_else(|| told.to_string())?.to_owned(), ticket))
    }
}
