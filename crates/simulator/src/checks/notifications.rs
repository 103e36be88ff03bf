//! Notifications: what is owed is there, once, and nothing else; every device receives the inbox in order, without gaps and repetitions.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::history::{
    DeviceHistory, History, LineEntry, Notification, PlayerHistory, Purchase, TicketOutcome,
};

/// How many missing positions of a device are named.
const NAMED: usize = 5;

/// What a notification is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject<'a> {
    /// The drop, or the player's admission to it: there is one of each.
    Drop,
    Order(&'a str),
    Ticket(&'a str),
}

impl Subject<'_> {
    fn is_of(self, notification: &Notification) -> bool {
        match self {
            Self::Drop => true,
            Self::Order(id) => notification.order_id.as_deref() == Some(id),
            Self::Ticket(id) => notification.ticket_ids.iter().any(|ticket| ticket == id),
        }
    }
}

/// Returns the notifications that a player is owed, by template.
fn owed(player: &PlayerHistory) -> BTreeSet<(&'static str, Subject<'_>)> {
    let mut owed = BTreeSet::new();
    match &player.purchase {
        Some(Purchase::Bought { order_id }) => {
            owed.insert(("order-paid", Subject::Order(order_id)));
        }
        Some(Purchase::RefundDue { order_id }) => {
            owed.insert(("order-refund-due", Subject::Order(order_id)));
        }
        Some(Purchase::WaitedInVain) => {
            owed.insert(("drop-wait-ended", Subject::Drop));
        }
        Some(Purchase::SoldOut | Purchase::NotWanted | Purchase::TooLate) | None => {}
    }
    if !matches!(player.purchase, None | Some(Purchase::WaitedInVain | Purchase::TooLate)) {
        owed.insert(("drop-admitted", Subject::Drop));
    }
    for order in paid(player) {
        owed.extend(["order-paid", "entitlement-granted"].map(|template| (template, Subject::Order(order))));
    }
    if player.admission_expired {
        owed.insert(("drop-admission-expired", Subject::Drop));
    }
    for ticket in &player.tickets {
        if matches!(ticket.outcome, TicketOutcome::Assigned { .. }) {
            owed.insert(("match-made", Subject::Ticket(&ticket.ticket_id)));
        }
    }
    owed
}

/// Returns the template of each notification that a player is owed.
pub(crate) fn owed_templates(player: &PlayerHistory) -> impl Iterator<Item = &'static str> {
    owed(player).into_iter().map(|(template, _)| template)
}

/// Returns the notifications that a player is owed and does not have.
pub(crate) fn missing_notifications(player: &PlayerHistory) -> Vec<String> {
    let is_missing = |(template, subject): &(&str, Subject<'_>)| {
        !own(player).any(|one| one.template == *template && subject.is_of(one))
    };
    let describe = |(template, subject): (&str, Subject<'_>)| match subject {
        Subject::Drop => template.to_owned(),
        Subject::Order(id) => format!("{template} of the order {id}"),
        Subject::Ticket(id) => format!("{template} of the ticket {id}"),
    };
    owed(player).into_iter().filter(is_missing).map(describe).collect()
}

/// Finds missing, repeated, misplaced and unfounded notifications.
pub(super) fn wrong(history: &History) -> Vec<String> {
    let line = history.drop.iter().flat_map(|drop| &drop.line);
    let entries: HashMap<&str, &LineEntry> = line.map(|entry| (entry.user_id.as_str(), entry)).collect();
    let has_line = history.drop.is_some();
    let players = history.players.iter();
    players
        .flat_map(|player| {
            let entry = entries.get(player.user_id.as_str()).copied();
            let unfounded = has_line.then(|| unfounded(player, entry));
            of_player(player).into_iter().chain(unfounded.into_iter().flatten())
        })
        .collect()
}

/// Finds notifications of something that did not happen. The line was read after the inboxes.
fn unfounded(player: &PlayerHistory, entry: Option<&LineEntry>) -> Vec<String> {
    let has_happened = |one: &Notification| match one.template.as_str() {
        // A player without an entry is the line's violation.
        "drop-admission-expired" => entry.is_none_or(|entry| entry.state == "EXPIRED"),
        "drop-wait-ended" => entry.is_none_or(|entry| entry.state == "LEFT"),
        "order-paid" | "entitlement-granted" => {
            one.order_id.as_deref().is_none_or(|order| paid(player).any(|paid| paid == order))
        }
        _ => true,
    };
    let wrong = own(player).filter(|one| !has_happened(one));
    wrong
        .map(|Notification { notification_id, template, .. }| {
            format!(
                "{} was notified of something that did not happen: {notification_id} ({template})",
                player.name
            )
        })
        .collect()
}

/// Returns the notifications that this simulation caused.
fn own(player: &PlayerHistory) -> impl Iterator<Item = &Notification> {
    player.inbox.iter().filter(|one| !one.is_foreign)
}

fn paid(player: &PlayerHistory) -> impl Iterator<Item = &str> {
    player.orders.iter().filter(|order| order.state == "PAID").map(|order| order.order_id.as_str())
}

fn of_player(player: &PlayerHistory) -> Vec<String> {
    let name = &player.name;
    let missing = missing_notifications(player).into_iter();
    let mut found: Vec<String> =
        missing.map(|what| format!("{name} was not notified: {what} is missing")).collect();
    let mut subjects = HashSet::new();
    for one in own(player) {
        let subject =
            [&one.order_id, &one.match_id, &one.admission_id].into_iter().find_map(Option::as_deref);
        // The end of a wait names no admission. Every player waits once.
        let subject = subject.or((one.template == "drop-wait-ended").then_some("the drop"));
        if let Some(subject) = subject
            && !subjects.insert((&one.template, subject))
        {
            let (id, template) = (&one.notification_id, &one.template);
            found.push(format!("{name} was notified twice: {id} is a second {template} of {subject}"));
        }
    }
    found.extend(skipped(player).map(|what| format!("the inbox of {name} {what}")));
    for (number, device) in player.devices.iter().enumerate() {
        found
            .extend(of_device(player, device).map(|what| format!("device {} of {name}: {what}", number + 1)));
    }
    found
}

/// Finds positions that an inbox skips or repeats. It was read in order.
fn skipped(player: &PlayerHistory) -> impl Iterator<Item = String> {
    let before = std::iter::once(player.from).chain(player.inbox.iter().map(|one| one.position));
    before.zip(&player.inbox).filter(|(before, one)| one.position != before + 1).map(|(before, one)| {
        format!("has {} at position {} after position {before}", one.notification_id, one.position)
    })
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
