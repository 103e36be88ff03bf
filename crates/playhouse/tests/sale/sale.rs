//! The sale: a drop, its players and the calls of the operator.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use testkit::eventually;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::api::{Api, FleetAccess};
use super::player::{Ending, Player, Shared};
use super::size::Size;
use super::verdict::{ITEM, PlayerReport, Verdict};

/// How long the whole sale may take.
const SALE_TIMEOUT: Duration = Duration::from_secs(900);
/// How many players join concurrently: few enough for any machine, so that joining is limited by the gateways.
const JOINING: usize = 64;
/// How many inboxes are read concurrently.
const CONCURRENT_READS: usize = 64;

/// A sale that is open.
pub(crate) struct Sale {
    shared: Arc<Shared>,
    units: usize,
    began: Instant,
    players: Vec<(Arc<Player>, JoinHandle<Ending>)>,
}

impl Sale {
    /// Creates a drop, lets all players join, and opens it.
    pub(crate) async fn open(fleet: FleetAccess, size: &Size) -> Self {
        let api = Api::new(&fleet);
        let rate = size.admitted_per_second();
        let drop = json!({
            "name": "sale", "resource": ITEM, "stock": size.units,
            "terms": {
                "price": { "amount": 499, "currency": "EUR" }, "per_player": 1, "reservation_ms": 300_000,
                "admission": {
                    "batch": rate, "period_ms": 1_000, "capacity": rate * 20, "lifetime_ms": 300_000, "arrive_within_ms": 60_000,
                },
            },
        });
        let created = api.call_admin(Method::POST, "/drops", Some(&drop)).await;
        let drop = created["drop_id"].as_str().unwrap().to_owned();
        // Far in the future: the test opens the drop once all players wait.
        let schedule = json!({ "opens_at": "2126-01-01T00:00:00Z" });
        api.call_admin(Method::POST, &format!("/drops/{drop}/schedule"), Some(&schedule)).await;
        let shared = Arc::new(Shared {
            api,
            drop,
            provider: fleet.provider.clone(),
            joining: Semaphore::new(JOINING),
            max_poll_interval: size.max_poll_interval(),
        });
        let players = (0..size.players).map(|number| {
            let name = format!("player-{number}");
            let mut claims = fleet.issuer.claims(&name);
            claims["exp"] = json!(testkit::issuer::now() + SALE_TIMEOUT.as_secs());
            let (token, shared) = (fleet.signer.sign(&claims), shared.clone());
            let player = Arc::new(Player { name, token, shared, is_no_show: number % 20 == 7 });
            let playing = player.clone();
            (player, tokio::spawn(async move { playing.play().await }))
        });
        let players = players.collect();
        let show = format!("/drops/{}", shared.drop);
        eventually("all players wait", SALE_TIMEOUT, async || {
            let found = shared.api.call_admin(Method::GET, &show, None).await;
            if found["waiting"] == size.players { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
        shared.api.call_admin(Method::POST, &format!("{show}/open"), None).await;
        Self { shared, units: size.units, began: Instant::now(), players }
    }

    /// Waits until at least `units` units are sold.
    pub(crate) async fn wait_until_sold(&self, units: usize) {
        eventually(&format!("{units} of {} units are sold", self.units), SALE_TIMEOUT, async || {
            let audit = audit(&self.shared).await;
            let sold = audit["stock"]["sold"].as_u64().unwrap();
            if sold >= units as u64 { Ok(()) } else { Err(audit.to_string()) }
        })
        .await;
    }

    /// Waits until everything is sold, and collects the results of all players.
    pub(crate) async fn finish(self) -> Verdict {
        self.wait_until_sold(self.units).await;
        let sold_after = self.began.elapsed();
        let path = format!("/drops/{}", self.shared.drop);
        eventually("the drop closes once it is sold out", SALE_TIMEOUT, async || {
            let found = self.shared.api.call_admin(Method::GET, &path, None).await;
            if found["state"] == "CLOSED" { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
        let reports = stream::iter(self.players).map(async |(player, playing)| {
            let ending = tokio::time::timeout(SALE_TIMEOUT, playing).await.unwrap().unwrap();
            player.wait_until_notified(&ending).await;
            PlayerReport { owned: player.owned().await, ending }
        });
        let players = reports.buffer_unordered(CONCURRENT_READS).collect().await;
        let audit = audit(&self.shared).await;
        Verdict { players, audit, sold_after, ended_after: self.began.elapsed() }
    }
}

async fn audit(shared: &Shared) -> Value {
    shared.api.call_admin(Method::GET, &format!("/drops/{}/audit", shared.drop), None).await
}
