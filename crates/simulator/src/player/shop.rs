//! The purchase: joins the line, waits, reserves, pays.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::{Journey, expect};
use crate::api::{Call, GaveUp};
use crate::history::{Join, Purchase};

/// The pause before a player tries again to reserve what is sold out: units of players who do not pay come back.
const SOLD_OUT_PAUSE: Duration = Duration::from_secs(1);

impl Journey<'_> {
    /// Joins the line of the drop, waits, and buys.
    pub(super) async fn shop(&self) -> Result<Option<Purchase>, GaveUp> {
        let Some(drop_id) = self.player.world.drop_id.as_ref().filter(|_| self.player.plan.buys) else {
            return Ok(None);
        };
        let of_drop = |rest: &str| format!("/v1/drops/{drop_id}{rest}");
        self.think().await;
        let meter = &self.player.world.api.meter;
        let sent = meter.elapsed();
        let joined = self.call(&Call::post("join the line", of_drop("/join"))).await?;
        match joined.cause() {
            _ if joined.is_success() => {
                meter.count(|counts| counts.joined += 1);
                let (answered, ahead) = (meter.elapsed(), joined.body["ahead"].as_u64());
                let _ = self.player.joined.set(Join { sent, answered, ahead });
            }
            // The drop ended before the player arrived.
            "not-joinable" => return Ok(Some(Purchase::TooLate)),
            _ => return Err(GaveUp(format!("joining was answered with {}", joined.describe()))),
        }
        let mut changes = self.player.events.changes.subscribe();
        let admission = loop {
            let place = expect(self.call(&Call::get("place", of_drop("/place"))).await?)?;
            match place["state"].as_str().unwrap_or_default() {
                "entered" => break place["admission"]["token"].as_str().unwrap_or_default().to_owned(),
                "expired" => return Ok(Some(Purchase::NotWanted)),
                "left" => return Ok(Some(Purchase::WaitedInVain)),
                _ => self.wait(&mut changes).await?,
            }
        };
        self.player.world.api.meter.count(|counts| counts.admitted += 1);
        if self.player.plan.is_no_show {
            return Ok(Some(Purchase::NotWanted));
        }
        self.think().await;
        self.buy(drop_id, &admission).await.map(Some)
    }

    async fn buy(&self, drop_id: &str, admission: &str) -> Result<Purchase, GaveUp> {
        let order = loop {
            let Some(reservation) = self.reserve(drop_id, admission).await? else {
                return Ok(Purchase::SoldOut);
            };
            if self.player.plan.does_not_pay {
                return Ok(Purchase::NotWanted);
            }
            self.think().await;
            let path = format!("/v1/drops/{drop_id}/reservations/{reservation}/pay");
            let order = self.call(&Call::post("pay", path)).await?;
            match order.cause() {
                _ if order.is_success() => break order.body,
                // An outage can outlast the reservation.
                "reservation-ended" => {}
                _ => return Err(GaveUp(format!("paying was answered with {}", order.describe()))),
            }
        };
        let world = &self.player.world;
        let order_id = order["order_id"].as_str().unwrap_or_default().to_owned();
        let paid =
            world.target.pay(&world.api, &order, self.player.plan.pays_twice, world.clock.now()).await?;
        if !paid.is_success() {
            return Err(GaveUp(format!("the payment of {order_id} was answered with {}", paid.describe())));
        }
        let found = expect(self.call(&Call::get("order", format!("/v1/orders/{order_id}"))).await?)?;
        match found["state"].as_str().unwrap_or_default() {
            "PAID" => {
                world.api.meter.count(|counts| counts.bought += 1);
                Ok(Purchase::Bought { order_id })
            }
            "REFUND_DUE" => Ok(Purchase::RefundDue { order_id }),
            other => Err(GaveUp(format!("the order {order_id} was paid and is {other}"))),
        }
    }

    /// Reserves one unit. Returns none once the player is no longer admitted or the drop has ended.
    async fn reserve(&self, drop_id: &str, admission: &str) -> Result<Option<String>, GaveUp> {
        let body = json!({ "quantity": 1, "admission": admission });
        loop {
            // Retries of one attempt share the key. A new attempt after "sold out" has its own.
            let call = Call::post("reserve", format!("/v1/drops/{drop_id}/reservations"));
            let reserved = self.call(&call.json(&body).key(uuid::Uuid::new_v4().to_string())).await?;
            match reserved.cause() {
                _ if reserved.is_success() => {
                    return Ok(reserved.body["reservation_id"].as_str().map(ToOwned::to_owned));
                }
                "sold-out" => sleep(SOLD_OUT_PAUSE).await,
                "admission-ended" | "not-admitted" | "not-open" => return Ok(None),
                _ => return Err(GaveUp(format!("reserving was answered with {}", reserved.describe()))),
            }
        }
    }
}
