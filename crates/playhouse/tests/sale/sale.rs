//! The sale: a drop, its players, and what an operator does with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use reqwest::Method;
use serde_json::{Value, json};
use testkit::eventually;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::api::{Api, Place};
use super::player::{Crowd, Ending, Player};
use super::size::Size;
use super::verdict::{Ended, ITEM, Verdict};

/// How long the whole sale may take.
const LONGEST: Duration = Duration::from_secs(900);
/// How many players join at once: as many as any machine bears, so that the crowd comes as fast as it is let in.
const JOINING: usize = 64;
/// How many inboxes are read at once.
const TOGETHER: usize = 64;

/// A sale that is open.
pub(crate) struct Sale {
    crowd: Arc<Crowd>,
    units: usize,
    began: Instant,
    players: Vec<(Arc<Player>, JoinHandle<Ending>)>,
}

impl Sale {
    /// Creates a drop, lets all players join, and opens it.
    pub(crate) async fn open(place: Place, size: &Size) -> Self {
        let api = Api::of(&place);
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
        let created = api.operate(Method::POST, "/drops", Some(&drop)).await;
        let drop = created["drop_id"].as_str().unwrap().to_owned();
        // Until it is opened by hand, once all wait.
        let schedule = json!({ "opens_at": "2126-01-01T00:00:00Z" });
        api.operate(Method::POST, &format!("/drops/{drop}/schedule"), Some(&schedule)).await;
        let crowd = Arc::new(Crowd {
            api,
            drop,
            provider: place.provider.clone(),
            joining: Semaphore::new(JOINING),
            longest_pause: size.longest_pause(),
        });
        let players = (0..size.players).map(|number| {
            let name = format!("player-{number}");
            let mut claims = place.issuer.claims(&name);
            claims["exp"] = json!(testkit::issuer::now() + LONGEST.as_secs());
            let (token, crowd) = (place.signer.sign(&claims), crowd.clone());
            let player = Arc::new(Player { name, token, crowd, is_no_show: number % 20 == 7 });
            let playing = player.clone();
            (player, tokio::spawn(async move { playing.play().await }))
        });
        let players = players.collect();
        let show = format!("/drops/{}", crowd.drop);
        eventually("all players wait", LONGEST, async || {
            let found = crowd.api.operate(Method::GET, &show, None).await;
            if found["waiting"] == size.players { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
        crowd.api.operate(Method::POST, &format!("{show}/open"), None).await;
        Self { crowd, units: size.units, began: Instant::now(), players }
    }

    /// Waits until so many units are sold.
    pub(crate) async fn has_sold(&self, units: usize) {
        eventually(&format!("{units} of {} units are sold", self.units), LONGEST, async || {
            let audit = audit(&self.crowd).await;
            let sold = audit["stock"]["sold"].as_u64().unwrap();
            if sold >= units as u64 { Ok(()) } else { Err(audit.to_string()) }
        })
        .await;
    }

    /// Waits until everything is sold, and collects how it ended for every player.
    pub(crate) async fn finish(self) -> Verdict {
        self.has_sold(self.units).await;
        let sold_after = self.began.elapsed();
        let path = format!("/drops/{}", self.crowd.drop);
        eventually("the drop that is sold out closes by itself", LONGEST, async || {
            let found = self.crowd.api.operate(Method::GET, &path, None).await;
            if found["state"] == "CLOSED" { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
        let ended = stream::iter(self.players).map(async |(player, playing)| {
            let ending = tokio::time::timeout(LONGEST, playing).await.unwrap().unwrap();
            player.is_notified(&ending).await;
            Ended { owned: player.owned().await, ending }
        });
        let players = ended.buffer_unordered(TOGETHER).collect().await;
        let audit = audit(&self.crowd).await;
        Verdict { players, audit, sold_after, ended_after: self.began.elapsed() }
    }
}

async fn audit(crowd: &Crowd) -> Value {
    crowd.api.operate(Method::GET, &format!("/drops/{}/audit", crowd.drop), None).await
}
