//! Notifications: what is owed is there, once; and every device receives the inbox in order, without gaps and repetitions.

use std::collections::HashSet;

use crate::history::{DeviceHistory, History, PlayerHistory, Purchase, TicketOutcome};

/// How many missing positions of a device are named.
const NAMED: usize = 5;

/// Returns the notifications that a player is owed and does not have.
pub(crate) fn missing_notifications(player: &PlayerHistory) -> Vec<String> {
    let has = |template: &str| player.inbox.iter().any(|one| one.template == template);
    let of_order = |template: &str, id: &str| {
        player.inbox.iter().any(|one| one.template == template && one.order_id.as_deref() == Some(id))
    };
    let mut missing = Vec::new();
    let mut expect = |is_there: bool, what: String| {
        if !is_there {
            missing.push(what);
        }
    };
    match &player.purchase {
        Some(Purchase::Bought { order_id }) => {
            expect(of_order("order-paid", order_id), format!("order-paid of the order {order_id}"));
        }
        Some(Purchase::RefundDue { order_id }) => {
            expect(
                of_order("order-refund-due", order_id),
                format!("order-refund-due of the order {order_id}"),
            );
        }
        Some(Purchase::WaitedInVain) => expect(has("drop-wait-ended"), "drop-wait-ended".to_owned()),
        Some(Purchase::SoldOut | Purchase::NotWanted | Purchase::TooLate) | None => {}
    }
    if !matches!(player.purchase, None | Some(Purchase::WaitedInVain | Purchase::TooLate)) {
        expect(has("drop-admitted"), "drop-admitted".to_owned());
    }
    for ticket in &player.tickets {
        if matches!(ticket.outcome, TicketOutcome::Assigned { .. }) {
            let about = |one: &&crate::history::Notification| one.ticket_ids.contains(&ticket.ticket_id);
            let is_there = player.inbox.iter().find(about).is_some();
            expect(is_there, format!("match-made of the ticket {}", ticket.ticket_id));
        }
    }
    missing
}

/// Finds missing, repeated and misplaced notifications.
pub(super) fn wrong(history: &History) -> Vec<String> {
    history.players.iter().flat_map(of_player).collect()
}

fn of_player(player: &PlayerHistory) -> Vec<String> {
    let name = &player.name;
    let missing = missing_notifications(player).into_iter();
    let mut found: Vec<String> =
        missing.map(|what| format!("{name} was not notified: {what} is missing")).collect();
    let mut subjects = HashSet::new();
    for one in &player.inbox {
        let subject = one.order_id.as_ref().or(one.match_id.as_ref());
        if subject.is_some_and(|subject| !subjects.insert((&one.template, subject))) {
            let (id, template) = (&one.notification_id, &one.template);
            found.push(format!("{name} was notified twice: {id} is a second {template} of {subject:?}"));
        }
    }
    for (number, device) in player.devices.iter().enumerate() {
        found
            .extend(of_device(player, device).map(|what| format!("device {} of {name}: {what}", number + 1)));
    }
    found
}

fn of_device(player: &PlayerHistory, device: &DeviceHistory) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    if device.not_resumed > 0 {
        found.push(format!("{} of its streams did not resume at its position", device.not_resumed));
    }
    let mut last = device.from;
    for (position, id) in &device.seen {
        if *position <= last {
            found.push(format!("{id} at position {position} arrived after position {last}"));
        }
        last = last.max(*position);
    }
    let seen: HashSet<&str> = device.seen.iter().map(|(_, id)| id.as_str()).collect();
    let missed = player.inbox.iter().filter(|one| one.position > device.from);
    let missed: Vec<String> = missed
        .filter(|one| !seen.contains(one.notification_id.as_str()))
        .map(|one| format!("{} ({} at position {})", one.notification_id, one.template, one.position))
        .collect();
    if !missed.is_empty() {
        let more = missed.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        found.push(format!("did not receive {}{more}", missed[..missed.len().min(NAMED)].join(", ")));
    }
    let kept: HashSet<&str> = player.inbox.iter().map(|one| one.notification_id.as_str()).collect();
    // A notification behind the end of the inbox arrived after it was read.
    let end = player.inbox.last().map_or(0, |one| one.position);
    let unknown = device.seen.iter().filter(|(position, id)| *position <= end && !kept.contains(id.as_str()));
    found.extend(
        unknown.map(|(position, id)| format!("received {id} at position {position}, which the inbox lacks")),
    );
    found.into_iter()
}
