//! How a sale ended, and whether that is right.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::Value;

use super::player::Ending;
use super::size::Size;

/// What is sold.
pub(crate) const ITEM: &str = "sale.item";

/// How it ended for a player.
pub(crate) struct Ended {
    pub(crate) ending: Ending,
    /// How many units the player owns.
    pub(crate) owned: u64,
}

/// How it ended for all.
pub(crate) struct Verdict {
    pub(crate) players: Vec<Ended>,
    pub(crate) audit: Value,
    pub(crate) sold_after: Duration,
    pub(crate) ended_after: Duration,
}

/// The events of the sale, by what they are about.
#[derive(Default)]
pub(crate) struct Events {
    /// Ids of orders that were paid.
    pub(crate) paid: Vec<String>,
    /// Ids of the changes that granted the item.
    pub(crate) granted: Vec<String>,
}

impl Events {
    /// Counts an event of the stream in, if it is about the sale.
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
    /// Fails unless every unit was sold once. Returns what happened, in one line.
    pub(crate) fn check(&self, size: &Size, events: Option<&Events>) -> String {
        let count = |is: fn(&Ending) -> bool| self.players.iter().filter(|player| is(&player.ending)).count();
        let orders: HashSet<&String> =
            self.players.iter().filter_map(|player| player.ending.order()).collect();
        assert_eq!(orders.len(), size.units, "orders that players have");
        for (name, expected) in [("sold", size.units), ("available", 0), ("reserved", 0)] {
            assert_eq!(self.audit["stock"][name].as_u64(), Some(expected as u64), "{name} in {}", self.audit);
        }
        assert_eq!(self.audit["balanced"], true, "{}", self.audit);
        for player in &self.players {
            assert_eq!(
                player.owned,
                u64::from(player.ending.order().is_some()),
                "units of one who {:?}",
                player.ending
            );
        }
        if let Some(events) = events {
            let paid: HashSet<&String> = events.paid.iter().collect();
            assert_eq!((events.paid.len(), &paid), (size.units, &orders), "events of paid orders");
            let granted: HashSet<&String> = events.granted.iter().collect();
            assert_eq!((events.granted.len(), granted.len()), (size.units, size.units), "events of grants");
        }
        let [bought, not_shown, sold_out, not_admitted] = [
            count(|ending| matches!(ending, Ending::Bought(_))),
            count(|ending| *ending == Ending::NotShown),
            count(|ending| *ending == Ending::SoldOut),
            count(|ending| *ending == Ending::NotAdmitted),
        ];
        format!(
            "{} players, {bought} of {} units sold in {:.1} s, once each; {not_admitted} waited to the end, {sold_out} found none, \
             {not_shown} did not come; all of them notified after {:.1} s",
            self.players.len(),
            size.units,
            self.sold_after.as_secs_f64(),
            self.ended_after.as_secs_f64(),
        )
    }
}
