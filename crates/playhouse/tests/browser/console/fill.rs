//! Fills a site, so that every screen has something to show.

use reqwest::Method;
use serde_json::json;
use testkit::eventually;

use super::site::{Player, Site, text};
use super::*;

/// How many messages go to the partner, whose webhook is gone. Each becomes a dead letter.
pub(super) const DEAD_LETTERS: usize = 8;

/// What is in a filled site.
pub(super) struct Filled {
    pub(super) ada: Player,
    /// A player who waits for a duel.
    pub(super) waiting: Player,
    /// A player who may be erased.
    pub(super) spare: Player,
    /// An open drop with a line, orders, and a payment that must be refunded.
    pub(super) drop: String,
}

impl Filled {
    pub(super) async fn new(site: &Site) -> Self {
        let ban = json!({ "reason": "Chargebacks" });
        site.admin(Method::POST, &format!("/users/{}/ban", site.player("mallory").await.user), ban).await;
        let mut players = Vec::new();
        for name in ["ada", "grace", "alan", "barbara", "edsger"] {
            players.push(site.player(name).await);
        }
        // The newest player is the first in the list, and owns something.
        let [ada, grace, alan, barbara, edsger]: [Player; 5] = players.try_into().unwrap();
        for (player, resource) in [(&ada, "skin:dragon"), (&grace, "emote:wave"), (&edsger, "season-pass")] {
            site.grant(player, resource).await;
        }

        plant_failed_event(site, 1).await;
        notify(site, &ada, "analytics").await;
        for _ in 0..DEAD_LETTERS {
            notify(site, &grace, "partner").await;
        }
        let everybody = json!({ "to": { "all": true }, "texts": { "en": { "title": "Welcome" } } });
        site.service("/notifications", everybody).await;

        for player in [&ada, &grace, &alan] {
            join(site, player, "duel").await;
        }
        let drop = sale(site, [&ada, &grace, &barbara, &edsger]).await;
        refuse_some(site, &alan).await;
        backfill(site).await;
        site.admin(Method::POST, "/outbox/republish?since=2026-03-01T12:00:00Z", Value::Null).await;
        eventually("everything has happened", PATIENCE, async || {
            let letters = site.admin(Method::GET, "/dlq", Value::Null).await;
            let failed = site.admin(Method::GET, "/outbox?state=failed", Value::Null).await;
            let counts =
                [&letters["letters"], &failed["events"]].map(|found| found.as_array().unwrap().len());
            if counts == [DEAD_LETTERS, 1] { Ok(()) } else { Err(format!("{counts:?}")) }
        })
        .await;
        Self { ada, waiting: alan, spare: edsger, drop }
    }
}

/// Opens a match with room, as a game server that lives as long as the test.
async fn backfill(site: &Site) {
    let made = site.open_match("backfills", json!({ "backfill": {} })).await;
    let path = format!("/v1/frontendservice/backfills/{}/acknowledge", text(&made["id"]));
    let url = format!("http://{}{path}", site.at["open_match"]);
    tokio::spawn(async move {
        let acknowledge = json!({ "assignment": { "connection": "10.0.0.1:7777" } });
        while let Ok(response) = reqwest::Client::new().post(&url).json(&acknowledge).send().await
            && response.status().is_success()
        {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
}

/// Adds an event that the bus refuses.
pub(super) async fn plant_failed_event(site: &Site, number: u32) {
    let payload =
        "{\"subject\":\"not a subject\",\"kind\":\"planted.v1\",\"source\":\"/test\",\"time\":1}\n{}";
    let payload: String = payload.bytes().map(|byte| format!("{byte:02x}")).collect();
    site.sql(&format!(
        "INSERT INTO outbox (item_id, user_id, item_key, key_hash, state, due_at, attempts, lease, created_at, payload) \
         VALUES (X'{number:032x}', X'{:032x}', 'planted/{number}', {number}, 0, 0, 0, 0, 1795000000000, X'{payload}')",
        0
    ))
    .await;
}

/// Sends a message to a player's inbox and to a webhook.
pub(super) async fn notify(site: &Site, player: &Player, webhook: &str) {
    let message = json!({
        "to": { "user_id": player.user },
        "texts": { "en": { "title": "Quest done", "body": "Collect your reward." } },
        "channels": ["live", format!("webhook:{webhook}")],
    });
    site.service("/notifications", message).await;
}

/// Joins a queue. Returns the ticket.
pub(super) async fn join(site: &Site, player: &Player, queue: &str) -> String {
    let path = "/v1/matchmaking/tickets";
    text(&site.as_player(player, Method::POST, path, json!({ "queue": queue })).await["ticket_id"])
}

/// Creates and opens a drop that admits `capacity` players. Returns its id.
pub(super) async fn open_drop(site: &Site, capacity: u32) -> String {
    let terms = json!({
        "price": { "amount": 999, "currency": "EUR" }, "per_player": 2, "reservation_ms": 600_000,
        "when_sold_out": "stay_open",
        "admission": {
            "batch": 10, "period_ms": 200, "capacity": capacity, "lifetime_ms": 600_000, "arrive_within_ms": 600_000,
        },
    });
    let body = json!({ "name": "Demo sale", "resource": "demo-sword", "stock": 10, "terms": terms });
    let drop = text(&site.admin(Method::POST, "/drops", body).await["drop_id"]);
    site.admin(Method::POST, &format!("/drops/{drop}/open"), json!({})).await;
    drop
}

/// Joins the line of a drop.
pub(super) async fn join_line(site: &Site, drop: &str, player: &Player) {
    site.as_player(player, Method::POST, &format!("/v1/drops/{drop}/join"), Value::Null).await;
}

/// Waits until a player is admitted to a drop. Returns the token of the admission.
pub(super) async fn admission(site: &Site, drop: &str, player: &Player) -> String {
    let place = format!("/v1/drops/{drop}/place");
    eventually("the player is admitted", PATIENCE, async || {
        let place = site.as_player(player, Method::GET, &place, Value::Null).await;
        place["admission"]["token"].as_str().map(str::to_owned).ok_or(place.to_string())
    })
    .await
}

/// Opens a drop in which the first two players buy and the others wait. The first one pays twice.
async fn sale(site: &Site, [first, second, others @ ..]: [&Player; 4]) -> String {
    let drop = open_drop(site, 2).await;
    for player in [first, second] {
        join_line(site, &drop, player).await;
        let body = json!({ "quantity": 1, "admission": admission(site, &drop, player).await });
        let path = format!("/v1/drops/{drop}/reservations");
        let reserved = site.as_player(player, Method::POST, &path, body).await;
        let path = format!("{path}/{}/pay", text(&reserved["reservation_id"]));
        let order = site.as_player(player, Method::POST, &path, Value::Null).await;
        site.pay(&order, &format!("pay_{}", text(&order["order_id"]))).await;
        if player.user == first.user {
            site.pay(&order, "pay_twice").await;
        }
    }
    for player in others {
        join_line(site, &drop, player).await;
    }
    drop
}

/// Sends more changes than the rate limit of one player allows.
async fn refuse_some(site: &Site, player: &Player) {
    for _ in 0..35 {
        site.try_delete_ticket(player, "dbt8pcfejq8o287bsa0g").await;
    }
}
