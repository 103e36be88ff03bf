//! Stock and orders: never more than there is, and nothing paid is forgotten.

use crate::history::{DropTruth, History, PlayerHistory, Purchase};

/// Finds payments without a matching order, and orders without the item.
pub(super) fn unaccounted_orders(history: &History) -> impl Iterator<Item = String> + '_ {
    history.players.iter().filter_map(|player| {
        let PlayerHistory { name, purchase, owned, .. } = player;
        let paid = paid(player);
        match purchase {
            Some(Purchase::Bought { order_id }) if !paid.contains(&order_id.as_str()) => {
                Some(format!("{name} paid the order {order_id}, but the instance does not report it as PAID"))
            }
            _ if *owned < paid.len() as u64 => {
                let orders = paid.join(", ");
                Some(format!("{name} paid for {} ({orders}) and owns {owned}", units(paid.len() as u64)))
            }
            _ => None,
        }
    })
}

/// Finds units that were sold although there were none, or that nobody paid for.
pub(super) fn oversold(history: &History) -> Vec<String> {
    let Some(drop) = &history.drop else { return Vec::new() };
    let DropTruth { drop_id, total, sold, differences, .. } = drop;
    let mut found: Vec<String> =
        differences.iter().map(|what| format!("the audit of the drop {drop_id} found: {what}")).collect();
    if sold > total {
        found.push(format!("the drop {drop_id} sold {sold} of {}", units(*total)));
    }
    let owned: u64 = history.players.iter().map(|player| player.owned).sum();
    if i64::try_from(owned).is_ok_and(|owned| owned > *total) {
        found.push(format!("players own {owned} of the {} of the drop {drop_id}", units(*total)));
    }
    let paid_units: usize = history.players.iter().map(|player| paid(player).len()).sum();
    if i64::try_from(paid_units).ok() != Some(*sold) {
        found.push(format!("the drop {drop_id} sold {sold}, and players paid for {paid_units}"));
    }
    found.extend(history.players.iter().filter_map(|player| {
        let paid = paid(player).len() as u64;
        (player.owned > paid)
            .then(|| format!("{} owns {} and paid for {paid}", player.name, units(player.owned)))
    }));
    found
}

fn paid(player: &PlayerHistory) -> Vec<&str> {
    player.orders.iter().filter(|order| order.state == "PAID").map(|order| order.order_id.as_str()).collect()
}

fn units<N: std::fmt::Display + PartialEq + From<u8>>(count: N) -> String {
    base::counted(count, "unit")
}
