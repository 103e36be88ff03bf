//! Reads what the instance knows of a player at the end.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{Player, SignedIn, expect};
use crate::api::{Call, GaveUp};
use crate::checks::missing_notifications;
use crate::history::{Notification, Order, PlayerHistory, Purchase};
use crate::tasks::message;

/// How long notifications may take to arrive after the last player has finished.
const SETTLE: Duration = Duration::from_secs(30);
const PAGE: usize = 100;

impl Player {
    /// Waits until everything has arrived that is owed to the player, closes the streams and returns the history. A missing notification
    /// is in the history as missing: the checks report it.
    pub(crate) async fn finish(mut self) -> PlayerHistory {
        let mut history = PlayerHistory {
            name: self.name.clone(),
            lost: std::mem::take(&mut self.lost),
            is_interrupted: self.is_interrupted,
            joined: self.joined.get().copied(),
            purchase: self.purchase.take(),
            tickets: std::mem::take(&mut self.tickets),
            ..PlayerHistory::default()
        };
        let Some(signed_in) = self.signed_in.take() else { return history };
        history.user_id.clone_from(&signed_in.user_id);
        history.from = signed_in.from;
        if let Err(GaveUp(why)) = self.read(&signed_in, &mut history).await {
            history.lost.push(format!("cannot be read at the end: {why}"));
        }
        history.devices = signed_in.devices.iter().map(|device| device.history()).collect();
        drop(signed_in.online);
        for (number, task) in signed_in.tasks.into_iter().enumerate() {
            task.abort();
            if let Err(error) = task.await
                && error.is_panic()
            {
                history.lost.push(format!("device {} panicked: {}", number + 1, message(error)));
            }
        }
        history
    }

    async fn read(&self, from: &SignedIn, history: &mut PlayerHistory) -> Result<(), GaveUp> {
        // Also of a player who gave up on the way: what the instance sold to them counts.
        let wanted_to_buy = history.purchase != Some(Purchase::TooLate) && self.plan.buys;
        let drop_id = self.world.drop_id.as_ref().filter(|_| wanted_to_buy);
        if let Some(drop_id) = drop_id {
            let orders = self.get(from, "orders", "/v1/orders?limit=100").await?;
            history.orders = items(&orders, "orders")
                .iter()
                .filter(|order| order["drop_id"] == drop_id.as_str())
                .map(|order| Order { order_id: text(&order["order_id"]), state: text(&order["state"]) })
                .collect();
            let place = self.get(from, "place", &format!("/v1/drops/{drop_id}/place")).await?;
            history.admission_expired = place["state"] == "expired";
        }
        let deadline = Instant::now() + SETTLE;
        loop {
            history.inbox = self.inbox(from).await?;
            let last = history.inbox.last().map_or(from.from, |notification| notification.position);
            let is_there = missing_notifications(history).is_empty();
            let is_seen = from.devices.iter().all(|device| device.position() >= last);
            if is_there && is_seen || Instant::now() >= deadline {
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
        if drop_id.is_none() {
            return Ok(());
        }
        let owned = self.get(from, "entitlements", "/v1/entitlements").await?;
        let resource = self.world.resource();
        let units = items(&owned, "entitlements").iter().filter(|one| one["resource"] == resource.as_str());
        history.owned = units.map(|one| one["quantity"].as_u64().unwrap_or(1)).sum();
        Ok(())
    }

    /// Reads the inbox since the sign-in, the oldest first.
    async fn inbox(&self, from: &SignedIn) -> Result<Vec<Notification>, GaveUp> {
        let mut inbox: Vec<Notification> = Vec::new();
        loop {
            let before = inbox.last().map_or(String::new(), |last| format!("&before={}", last.position));
            let path = format!("/v1/notifications?limit={PAGE}{before}");
            let page = self.get(from, "inbox", &path).await?;
            let page = items(&page, "notifications");
            inbox
                .extend(page.iter().map(|one| self.notification(one)).filter(|one| one.position > from.from));
            let is_last =
                page.len() < PAGE || page.iter().any(|one| one["position"].as_u64() <= Some(from.from));
            if is_last {
                inbox.reverse();
                return Ok(inbox);
            }
        }
    }

    fn notification(&self, value: &Value) -> Notification {
        let data = &value["data"];
        let id = |name: &str| data[name].as_str().map(ToOwned::to_owned);
        // A grant of units names their order as its reference. Other grants are not of this simulation.
        let granted = || id("reference").filter(|_| data["resource"] == self.world.resource());
        Notification {
            notification_id: text(&value["notification_id"]),
            position: value["position"].as_u64().unwrap_or_default(),
            template: text(&value["template"]),
            match_id: id("match_id"),
            ticket_ids: items(data, "ticket_ids").iter().map(text).collect(),
            order_id: id("order_id").or_else(granted),
            admission_id: id("admission_id"),
            is_foreign: id("drop_id").is_some_and(|drop| Some(drop) != self.world.drop_id),
        }
    }

    async fn get(&self, from: &SignedIn, what: &'static str, path: &str) -> Result<Value, GaveUp> {
        expect(from.session.call(&Call::get(what, path)).await?)
    }
}

fn items<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
