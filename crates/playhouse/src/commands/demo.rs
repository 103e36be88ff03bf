//! The traffic of `playhouse dev --demo`: a dozen players who sign in, queue for matches, buy and are notified, so that every screen of
//! the console has something to show. It calls the same APIs as a game, a shop and an operator, at two to four requests per second.

mod client;
mod receiver;

use std::time::Duration;

use base::Clock;
use reqwest::Method;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use serde_json::{Value, json};

use crate::listeners::{Addresses, DevTokens};
use client::{Client, Player};

pub(super) use receiver::Receiver;

/// The players. Mallory is banned at once.
const PLAYERS: [&str; 12] = [
    "ada",
    "grace",
    "alan",
    "barbara",
    "edsger",
    "frances",
    "donald",
    "katherine",
    "ken",
    "margaret",
    "tim",
    "mallory",
];
const BANNED: &str = "mallory";
/// A player who is erased at once.
const ERASED: &str = "eve";

const RESOURCES: [&str; 4] = ["skin:gold", "skin:dragon", "emote:wave", "season-pass"];

/// The drop that stays open for the traffic. `dev` has another one, for you.
const DROP: &str = "Demo sale";
const DROP_STOCK: i64 = 40;

/// The time between two steps.
const STEP: Duration = Duration::from_secs(1);

/// After how many steps a player who joined the line comes back, to buy if admitted. Shopping is every fourth step.
const RETURN_AFTER: u64 = 16;

/// After how many steps the game server of a match with room acknowledges it again.
const ACKNOWLEDGE_EVERY: u64 = 10;

/// The step at which the operator starts a bulk action.
const BULK_ACTION: u64 = 20;

/// How many changes an impatient client sends at once: more than `gateway.limits.write` allows.
const BURST: usize = 40;
/// A ticket that does not exist.
const NO_TICKET: &str = "dbt8pcfejq8o287bsa0g";

/// Access tokens last an hour.
const STEPS_PER_SIGN_IN: u64 = 1_800;

/// The traffic. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Demo {
    client: Client,
    clock: Clock,
}

impl Demo {
    /// Creates the traffic for a process with these addresses. None if it lacks a listener, or a token for its service API.
    pub(super) fn new(addresses: &Addresses, tokens: &DevTokens) -> Option<Self> {
        Some(Self { client: Client::new(addresses, tokens)?, clock: Clock::system() })
    }

    /// Makes traffic until the process stops. A request that fails is logged and not repeated.
    pub(super) async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let mut players = Vec::new();
        let (mut drop_id, mut backfill) = (None, None);
        let started = self.clock.now();
        for step in 0_u64.. {
            if step % STEPS_PER_SIGN_IN == 0 {
                players = self.sign_in_all().await;
                drop_id = self.open_drop().await;
                if step == 0 {
                    self.prepare(&players).await;
                }
            }
            if step % ACKNOWLEDGE_EVERY == 0 {
                backfill = self.keep_backfill(backfill).await;
            }
            if let Some(player) = pick(&players, step) {
                self.step(step, player, &players, drop_id.as_deref()).await;
            }
            if step == BULK_ACTION {
                // The bus drops what it has, so this changes nothing.
                let path = format!("/outbox/republish?since={}", started.to_rfc3339());
                self.client.operator(Method::POST, &path, None).await;
            }
            if !drain.sleep(STEP).await {
                break;
            }
        }
        Ok(())
    }

    /// Keeps a match with room alive, as its game server does. Opens one if there is none. Returns its id.
    async fn keep_backfill(&self, id: Option<String>) -> Option<String> {
        let Some(id) = id else {
            let made = self.client.game_server("backfills", &json!({ "backfill": {} })).await?;
            return made["id"].as_str().map(str::to_owned);
        };
        let body = json!({ "assignment": { "connection": "demo.invalid:7777" } });
        let path = format!("backfills/{id}/acknowledge");
        self.client.game_server(&path, &body).await.map(|_| id)
    }

    async fn sign_in_all(&self) -> Vec<Player> {
        let mut players = Vec::new();
        for name in PLAYERS {
            players.extend(self.client.sign_in(name).await);
        }
        players
    }

    /// Gives every player something to own and notifies all of them. Bans one player, erases another, and plants a failed event.
    async fn prepare(&self, players: &[Player]) {
        for (number, player) in players.iter().enumerate() {
            let resource = RESOURCES[number % RESOURCES.len()];
            self.change(player, "grant", resource, &format!("start-{number}")).await;
            if player.name == BANNED {
                let path = format!("/internal/v1/users/{}/ban", player.user_id);
                self.client
                    .service(Method::POST, &path, "ban", &json!({ "reason": "Demo: chargebacks" }))
                    .await;
                let note =
                    json!({ "note": "Three chargebacks in a week. Do not unban before the shop agrees." });
                let path = format!("/users/{}/notes", player.user_id);
                self.client.operator(Method::POST, &path, Some(&note)).await;
            }
        }
        if let Some(player) = self.client.sign_in(ERASED).await {
            let path = format!("/users/{}/erase", player.user_id);
            self.client.operator(Method::POST, &path, None).await;
        }
        self.plant_failed_event().await;
        let everybody =
            json!({ "to": { "all": true }, "texts": { "en": { "title": "Welcome to the demo" } } });
        self.client.service(Method::POST, "/internal/v1/notifications", "welcome", &everybody).await;
    }

    async fn step(&self, step: u64, player: &Player, players: &[Player], drop_id: Option<&str>) {
        self.client.player(player, Method::GET, "/v1/home", None).await;
        match step % 4 {
            // Two players join if one waits, so that one still waits after the match.
            0 => {
                let waiting = self.client.operator(Method::GET, "/tickets?limit=1", None).await;
                self.join(player).await;
                if waiting.is_some_and(|found| found["count"] != 0)
                    && let Some(other) = pick(players, step + 1)
                {
                    self.join(other).await;
                }
            }
            1 => {
                let resource = RESOURCES[turn(step, RESOURCES.len())];
                let change = if step % 24 == 1 { "revoke" } else { "grant" };
                self.change(player, change, resource, &format!("step-{step}")).await;
            }
            2 => {
                if let Some(drop_id) = drop_id {
                    self.shop(step, player, drop_id).await;
                    let earlier = step.checked_sub(RETURN_AFTER).and_then(|step| pick(players, step));
                    if let Some(earlier) = earlier {
                        self.shop(step, earlier, drop_id).await;
                    }
                }
            }
            _ => self.notify(step, player).await,
        }
        // What goes wrong in every game: links that lead nowhere, a token that has expired.
        if step % 15 == 7 {
            self.client.player(player, Method::GET, "/v1/orders/unknown", None).await;
            let expired = Player { token: "expired".to_owned(), ..player.clone() };
            self.client.player(&expired, Method::GET, "/v1/me", None).await;
        }
        // A client that sends without end, until its player's rate limit refuses.
        if step % 60 == 10 {
            let path = format!("/v1/matchmaking/tickets/{NO_TICKET}");
            for _ in 0..BURST {
                self.client.player(player, Method::DELETE, &path, None).await;
            }
        }
        if step % 60 == 30
            && let Some(drop_id) = drop_id
        {
            let more = json!({ "by": players.len(), "reason": "Demo: more units arrived" });
            let path = format!("/internal/v1/drops/{drop_id}/stock");
            self.client.service(Method::POST, &path, &format!("stock-{step}"), &more).await;
        }
    }

    /// Waits for a duel. A player whose last duel can still be read says that it is over.
    async fn join(&self, player: &Player) {
        let path = "/v1/matchmaking/tickets";
        let body = json!({ "queue": "duel" });
        let Some(ticket) = self.client.player(player, Method::POST, path, Some(&body)).await else { return };
        if ticket["state"] == "ASSIGNED" {
            let body = json!({ "queue": "duel", "replaces": ticket["ticket_id"] });
            self.client.player(player, Method::POST, path, Some(&body)).await;
        }
    }

    /// Plants an event that blocks its key, unless there is one from an earlier start.
    async fn plant_failed_event(&self) {
        let failed = self.client.operator(Method::GET, "/outbox?state=failed&limit=1", None).await;
        if failed.is_some_and(|found| found["events"].as_array().is_some_and(Vec::is_empty)) {
            self.client.operator(Method::POST, "/try-it/failed-event", None).await;
        }
    }

    async fn change(&self, player: &Player, change: &str, resource: &str, key: &str) {
        let body = json!({
            "user_id": player.user_id, "account_id": player.account_id, "resource": resource,
            "occurred_at": self.clock.now().to_rfc3339(),
        });
        let path = format!("/internal/v1/entitlements/{change}");
        self.client.service(Method::POST, &path, key, &body).await;
    }

    /// Sends a notification to a webhook, too. The partner's is gone until you enable it again.
    async fn notify(&self, step: u64, player: &Player) {
        let webhook = if step % 12 == 3 { receiver::PARTNER } else { receiver::ANALYTICS };
        let body = json!({
            "to": { "user_id": player.user_id },
            "texts": { "en": { "title": format!("Quest {step} is done"), "body": "Collect your reward." } },
            "channels": ["live", format!("webhook:{webhook}")],
        });
        self.client
            .service(Method::POST, "/internal/v1/notifications", &format!("quest-{step}"), &body)
            .await;
    }

    /// Joins the line, or buys if the player was admitted. Every fifth player declines at the checkout.
    async fn shop(&self, step: u64, player: &Player, drop_id: &str) {
        let at = format!("/v1/drops/{drop_id}");
        let Some(place) = self.client.player(player, Method::GET, &format!("{at}/place"), None).await else {
            return;
        };
        let Some(admission) = place["admission"]["token"].as_str() else {
            if place["state"] != "waiting" {
                self.client.player(player, Method::POST, &format!("{at}/join"), None).await;
            }
            return;
        };
        let body = json!({ "quantity": 1, "admission": admission });
        let reserved = self.client.reserve(player, &format!("{at}/reservations"), step, &body).await;
        if let Some(id) = reserved.as_ref().and_then(|reserved| reserved["reservation_id"].as_str()) {
            let pay = format!("{at}/reservations/{id}/pay");
            if let Some(order) = self.client.player(player, Method::POST, &pay, None).await {
                self.client.check_out(&order, if step.is_multiple_of(5) { "decline" } else { "pay" }).await;
            }
        }
        self.client.player(player, Method::POST, &format!("{at}/leave"), None).await;
    }

    /// Returns the open demo sale. Creates one if there is none.
    async fn open_drop(&self) -> Option<String> {
        let listed =
            self.client.service(Method::GET, "/internal/v1/drops?limit=100", "", &Value::Null).await?;
        let drops = listed["drops"].as_array().map_or(&[][..], Vec::as_slice);
        let named = |drop: &&Value| drop["name"].as_str().is_some_and(|name| name.starts_with(DROP));
        let is_open = |drop: &&Value| drop["state"] == "OPEN" || drop["state"] == "PAUSED";
        if let Some(open) = drops.iter().filter(named).find(is_open) {
            return open["drop_id"].as_str().map(str::to_owned);
        }
        let number = drops.iter().filter(named).count() + 1;
        let body = json!({
            "name": if number == 1 { DROP.to_owned() } else { format!("{DROP} {number}") },
            "resource": "demo-sword",
            "stock": DROP_STOCK,
            "terms": {
                "price": { "amount": 999, "currency": "EUR" },
                "per_player": 1_000,
                "admission": {
                    "batch": 1, "period_ms": 10_000, "capacity": 3, "lifetime_ms": 600_000, "arrive_within_ms": 300_000,
                },
                "reservation_ms": 120_000,
                "when_sold_out": "stay_open",
                "message": "A sale of the demo traffic.",
            },
        });
        let created = self.client.service(Method::POST, "/internal/v1/drops", "drop", &body).await?;
        let id = created["drop_id"].as_str()?.to_owned();
        self.client.service(Method::POST, &format!("/internal/v1/drops/{id}/open"), "open", &json!({})).await;
        Some(id)
    }
}

/// Returns the player whose turn it is.
fn pick(players: &[Player], step: u64) -> Option<&Player> {
    let active = players.iter().filter(|player| player.name != BANNED);
    let count = active.clone().count();
    // The steps repeat every four, which does not divide 11: every player does everything.
    (count > 0).then(|| active.clone().nth(turn(step, count)))?
}

fn turn(step: u64, count: usize) -> usize {
    usize::try_from(step).unwrap_or_default() % count
}
