//! The result of a sale, and the checks on it.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::Value;

use super::player::Ending;
use super::size::Size;

/// The resource that is sold.
pub(crate) const ITEM: &str = "sale.item";

/// The result of a player.
pub(crate) struct PlayerReport {
    pub(crate) ending: Ending,
    /// How many units the player owns.
    pub(crate) owned: u64,
}

/// The result of the whole sale.
pub(crate) struct Verdict {
    pub(crate) players: Vec<PlayerReport>,
    pub(crate) audit: Value,
    pub(crate) sold_after: Duration,
    pub(crate) ended_after: Duration,
}

/// The ids of the events of the sale, by kind.
#[derive(Default)]
pub(crate) struct Events {
    /// The ids of paid orders.
    pub(crate) paid: Vec<String>,
    /// The ids of the events that granted the item.
    pub(crate) granted: Vec<String>,
}

impl Events {
    /// Adds an event of the stream, if it belongs to the sale.
    pub(crate) fn add(&mut self, event: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let data = &event["data"];
        match event["type"].as_str().unwrap_or_default() {
            "playhouse.order.paid.v1" => self.paid.push(text(&data["order_id"])),
            "playhouse.entitlement.granted.v1" if data["resource"] == ITEM => {
                self.granted.push(text(&event["id"]))
            }
            _ => {}
        }
    }
}

impl Verdict {
    /// Fails unless every unit was sold once. Returns a summary in one line.
    pub(crate) fn check(&self, size: &Size, events: Option<&Events>) -> String {
        let count = |is: fn(&Ending) -> bool| self.players.iter().filter(|player| is(&player.ending)).count();
        let orders: HashSet<&String> =
            self.players.iter().filter_map(|player| player.ending.order()).collect();
        assert_eq!(orders.len(), size.units, "orders of the players");
        for (name, expected) in [("sold", size.units), ("available", 0), ("reserved", 0)] {
            assert_eq!(self.audit["stock"][name].as_u64(), Some(expected as u64), "{name} in {}", self.audit);
        }
        assert_eq!(self.audit["balanced"], true, "{}", self.audit);
        for player in &self.players {
            assert_eq!(
                player.owned,
                u64::from(player.ending.order().is_some()),
                "units of a player with the result {:?}",
                player.ending
            );
        }
        if let Some(events) = events {
            let paid: HashSet<&String> = events.paid.iter().collect();
            assert_eq!((events.paid.len(), &paid), (size.units, &orders), "events of paid orders");
            let granted: HashSet<&String> = events.granted.iter().collect();
            assert_eq!((events.granted.len(), granted.len()), (size.units, size.units), "events of grants");
        }
        let [bought, no_show, sold_out, not_admitted] = [
            count(|ending| matches!(ending, Ending::Bought(_))),
            count(|ending| *ending == Ending::NoShow),
            count(|ending| *ending == Ending::SoldOut),
            count(|ending| *ending == Ending::NotAdmitted),
        ];
        format!(
            "{} players, {bought} of {} units sold in {:.1} s, once each; {not_admitted} waited until the end, \
             {sold_out} found nothing left, {no_show} did not arrive; all notified after {:.1} s",
            self.players.len(),
            size.units,
            self.sold_after.as_secs_f64(),
            self.ended_after.as_secs_f64(),
        )
    }
}
