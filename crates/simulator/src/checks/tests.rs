//! Each kind of violation is found and named. A clean history has none.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::history::*;

fn notification(position: u64, template: &str) -> Notification {
    Notification {
        notification_id: format!("n{position}"),
        position,
        template: template.to_owned(),
        ..Notification::default()
    }
}

/// Returns a device that received the whole inbox.
fn device(inbox: &[Notification]) -> DeviceHistory {
    let seen = inbox.iter().map(|one| (one.position, one.notification_id.clone())).collect();
    DeviceHistory { seen, ..DeviceHistory::default() }
}

/// Returns `count` players. Every player is admitted and buys until `stock` is gone, and pairs are matched.
fn clean(count: usize, stock: usize) -> History {
    let mut history = History::default();
    let mut line = Vec::new();
    for number in 0..count {
        let (user_id, order_id) = (format!("user-{number}"), format!("order-{number}"));
        let is_buyer = number < stock;
        let admission_id = Some(format!("admission-{number}"));
        let mut inbox =
            vec![Notification { admission_id: admission_id.clone(), ..notification(1, "drop-admitted") }];
        let admission_expired = !is_buyer && number % 4 == 0;
        if is_buyer {
            for (position, template) in [(2, "order-paid"), (3, "entitlement-granted")] {
                let order_id = Some(order_id.clone());
                inbox.push(Notification { order_id, ..notification(position, template) });
            }
        } else if admission_expired {
            inbox.push(Notification { admission_id, ..notification(2, "drop-admission-expired") });
        }
        let pair = number / 2;
        let has_partner = pair * 2 + 1 < count;
        let ticket_id = format!("ticket-{number}");
        let outcome = if has_partner {
            let ticket_ids = vec![format!("ticket-{}", pair * 2), format!("ticket-{}", pair * 2 + 1)];
            let position = inbox.len() as u64 + 1;
            let match_id = Some(format!("match-{pair}"));
            inbox.push(Notification { match_id, ticket_ids, ..notification(position, "match-made") });
            TicketOutcome::Assigned { connection: format!("server-{pair}") }
        } else {
            TicketOutcome::Cancelled
        };
        let at = Duration::from_millis(number as u64 / 3 * 10);
        let joined =
            Join { sent: at, answered: at + Duration::from_millis(10), ahead: Some(number as u64 / 3) };
        line.push(LineEntry {
            user_id: user_id.clone(),
            state: if admission_expired { "EXPIRED" } else { "ENTERED" }.to_owned(),
            number: number as u64,
            place: number as u64,
            entered_at: Some(format!("2026-01-01T00:00:{:02}Z", number / 4)),
        });
        let orders = is_buyer.then(|| Order { order_id: order_id.clone(), state: "PAID".to_owned() });
        history.players.push(PlayerHistory {
            name: format!("player-{number}"),
            user_id,
            joined: Some(joined),
            purchase: Some(if is_buyer { Purchase::Bought { order_id } } else { Purchase::SoldOut }),
            orders: orders.into_iter().collect(),
            owned: u64::from(is_buyer),
            tickets: vec![Ticket { ticket_id, outcome }],
            admission_expired,
            devices: vec![device(&inbox); 1 + number % 2],
            inbox,
            ..PlayerHistory::default()
        });
    }
    let sold = count.min(stock) as i64;
    history.drop = Some(DropTruth {
        drop_id: "drop".to_owned(),
        total: stock as i64,
        sold,
        line,
        ..DropTruth::default()
    });
    history
}

/// Breaks a clean history. Fails unless only this promise is violated, by a text with all these words.
#[track_caller]
fn assert_finds(promise: Promise, words: &[&str], break_it: impl FnOnce(&mut History)) {
    let mut history = clean(10, 6);
    break_it(&mut history);
    let found = check(&history);
    assert!(!found.is_empty(), "nothing was found");
    assert!(found.iter().all(|violation| violation.promise == promise), "{found:#?}");
    let text = found.iter().map(|violation| violation.what.as_str()).collect::<Vec<_>>().join("\n");
    assert!(words.iter().all(|word| text.contains(word)), "{words:?} in {text}");
}

fn drop_of(history: &mut History) -> &mut DropTruth {
    history.drop.as_mut().unwrap()
}

#[test]
fn step_without_an_outcome_is_a_lost_player() {
    assert_finds(Promise::NobodyLost, &["player-3", "504"], |history| {
        history.players[3].lost.push("the purchase has no outcome: 504".to_owned());
    });
}

#[test]
fn paid_order_without_the_item_is_lost() {
    assert_finds(Promise::NobodyLost, &["player-2", "order-2", "owns 0"], |history| {
        history.players[2].owned = 0;
    });
}

#[test]
fn player_without_an_entry_in_the_line_is_lost() {
    assert_finds(Promise::NobodyLost, &["player-9", "user-9"], |history| {
        drop_of(history).line.pop();
    });
}

#[test]
fn ticket_in_two_matches_is_found() {
    assert_finds(Promise::NoDoubleMatch, &["ticket-4", "match-2 and match-77"], |history| {
        let second = Notification {
            match_id: Some("match-77".to_owned()),
            ticket_ids: vec!["ticket-4".to_owned()],
            ..notification(9, "match-made")
        };
        add(&mut history.players[4], second);
    });
}

#[test]
fn cancelled_ticket_in_a_match_is_found() {
    assert_finds(Promise::NoDoubleMatch, &["ticket-5", "cancelled", "match-2"], |history| {
        history.players[5].tickets[0].outcome = TicketOutcome::Cancelled;
    });
}

#[test]
fn players_of_a_match_with_different_servers_are_found() {
    assert_finds(Promise::NoDoubleMatch, &["match-1", "server-1 and server-x"], |history| {
        history.players[3].tickets[0].outcome = TicketOutcome::Assigned { connection: "server-x".to_owned() };
    });
}

#[test]
fn unit_too_many_is_found_by_the_counts_and_by_the_owners() {
    assert_finds(Promise::NoOversell, &["sold 7 of 6 units", "players own 7"], |history| {
        let player = &mut history.players[6];
        player.orders.push(Order { order_id: "order-6".to_owned(), state: "PAID".to_owned() });
        for template in ["order-paid", "entitlement-granted"] {
            let order_id = Some("order-6".to_owned());
            add(player, Notification { order_id, ..notification(0, template) });
        }
        player.owned = 1;
        drop_of(history).sold = 7;
    });
    assert_finds(Promise::NoOversell, &["the audit of the drop", "ledger"], |history| {
        drop_of(history).differences.push("ledger: expected 6, found 7".to_owned());
    });
}

#[test]
fn unit_without_a_payment_is_found() {
    assert_finds(Promise::NoOversell, &["player-8 owns 1 unit and paid for 0"], |history| {
        history.players[8].owned = 1;
        drop_of(history).total = 100;
    });
}

#[test]
fn missing_notification_is_found_by_what_is_owed() {
    assert_finds(Promise::NotificationsOnceInOrder, &["player-1", "order-paid", "order-1"], |history| {
        let player = &mut history.players[1];
        player.inbox.retain(|one| one.template != "order-paid");
        player.devices = vec![device(&player.inbox)];
    });
}

/// Removes a player's notifications of a template.
fn remove(player: &mut PlayerHistory, template: &str) {
    player.inbox.retain(|one| one.template != template);
    player.devices = vec![device(&player.inbox)];
}

/// Gives a player a notification, as the last one.
fn add(player: &mut PlayerHistory, one: Notification) {
    let position = player.inbox.last().map_or(1, |last| last.position + 1);
    player.inbox.push(Notification { notification_id: format!("n{position}"), position, ..one });
    player.devices = vec![device(&player.inbox)];
}

#[test]
fn missing_notification_of_each_kind_is_found() {
    let missing = |player: usize, template: &str, about: &str| {
        let words = [&format!("player-{player} was not notified"), &format!("{template}{about} is missing")];
        let words = words.map(String::as_str);
        assert_finds(Promise::NotificationsOnceInOrder, &words, |history| {
            remove(&mut history.players[player], template);
        });
    };
    missing(1, "entitlement-granted", " of the order order-1");
    missing(2, "drop-admitted", "");
    missing(8, "drop-admission-expired", "");
    let words = ["player-7", "drop-wait-ended is missing"];
    assert_finds(Promise::NotificationsOnceInOrder, &words, |history| {
        history.players[7].purchase = Some(Purchase::WaitedInVain);
    });
    let words = ["player-7", "order-refund-due of the order late is missing"];
    assert_finds(Promise::NotificationsOnceInOrder, &words, |history| {
        history.players[7].purchase = Some(Purchase::RefundDue { order_id: "late".to_owned() });
    });
    // Nobody saw that order's outcome: the player gave up.
    let words = ["player-1", "order-paid of the order order-1 is missing"];
    assert_finds(Promise::NotificationsOnceInOrder, &words, |history| {
        history.players[1].purchase = None;
        remove(&mut history.players[1], "order-paid");
    });
}

#[test]
fn second_notification_of_each_kind_is_found() {
    for (player, template) in [
        (1, "drop-admitted"),
        (1, "order-paid"),
        (1, "entitlement-granted"),
        (8, "drop-admission-expired"),
        (3, "match-made"),
    ] {
        let words = [&format!("player-{player} was notified twice"), &format!("a second {template} of")];
        assert_finds(Promise::NotificationsOnceInOrder, &words.map(String::as_str), |history| {
            let player = &mut history.players[player];
            let again = player.inbox.iter().find(|one| one.template == template).unwrap().clone();
            add(player, again);
        });
    }
    let words = ["player-7 was notified twice", "a second drop-wait-ended of the drop"];
    assert_finds(Promise::NotificationsOnceInOrder, &words, |history| {
        history.players[7].purchase = Some(Purchase::WaitedInVain);
        remove(&mut history.players[7], "drop-admitted");
        let entry = &mut drop_of(history).line[7];
        (entry.state, entry.entered_at) = ("LEFT".to_owned(), None);
        for _ in 0..2 {
            add(&mut history.players[7], notification(0, "drop-wait-ended"));
        }
    });
}

#[test]
fn notification_of_what_did_not_happen_is_found() {
    for template in ["drop-admission-expired", "drop-wait-ended", "order-paid", "entitlement-granted"] {
        let words = ["player-7 was notified of something that did not happen", template];
        assert_finds(Promise::NotificationsOnceInOrder, &words, |history| {
            let order_id = Some("nobody's order".to_owned());
            add(&mut history.players[7], Notification { order_id, ..notification(0, template) });
        });
    }
}

#[test]
fn notification_of_another_simulation_is_checked_on_devices_only() {
    let mut history = clean(10, 6);
    let other = Notification { is_foreign: true, ..notification(0, "drop-admission-expired") };
    add(&mut history.players[7], other);
    assert_eq!(check(&history), []);
    // It is not the one that the player is owed.
    history.players[8].inbox[1].is_foreign = true;
    assert_eq!(check(&history).len(), 1);
    history.players[8].inbox[1].is_foreign = false;
    history.players[7].devices[0].seen.pop();
    assert_eq!(check(&history).len(), 1);
}

#[test]
fn drop_that_cannot_be_read_is_the_only_violation() {
    assert_finds(Promise::NobodyLost, &["the drop cannot be read"], |history| {
        history.drop = None;
        history.unread.push("the drop cannot be read".to_owned());
    });
}

#[test]
fn notification_that_a_device_misses_repeats_or_misplaces_is_found() {
    assert_finds(
        Promise::NotificationsOnceInOrder,
        &["device 1 of player-0", "did not receive n2"],
        |history| {
            history.players[0].devices[0].seen.remove(1);
        },
    );
    assert_finds(
        Promise::NotificationsOnceInOrder,
        &["device 1 of player-0", "n1 at position 1 arrived after"],
        |history| {
            let first = history.players[0].devices[0].seen[0].clone();
            history.players[0].devices[0].seen.push(first);
        },
    );
    assert_finds(
        Promise::NotificationsOnceInOrder,
        &["device 2 of player-1", "arrived after position"],
        |history| {
            history.players[1].devices[1].seen.swap(0, 1);
        },
    );
    assert_finds(Promise::NotificationsOnceInOrder, &["did not resume"], |history| {
        history.players[1].devices[1].not_resumed = 1;
    });
}

#[test]
fn second_notification_of_the_same_order_is_found() {
    assert_finds(Promise::NotificationsOnceInOrder, &["player-2", "twice", "order-2"], |history| {
        let player = &mut history.players[2];
        let again =
            Notification { notification_id: "again".to_owned(), position: 9, ..player.inbox[1].clone() };
        player.inbox.push(again);
        player.devices = vec![device(&player.inbox)];
    });
}

#[test]
fn overtaken_player_is_found() {
    assert_finds(
        Promise::LineInOrder,
        &["player-0", "user-0, place 0", "behind it at 2026-01-01T00:00:00Z"],
        |history| {
            drop_of(history).line[0].entered_at = Some("2026-01-01T00:00:09Z".to_owned());
        },
    );
    assert_finds(Promise::LineInOrder, &["player-1", "still waits"], |history| {
        let entry = &mut drop_of(history).line[1];
        entry.entered_at = None;
        entry.state = "WAITING".to_owned();
    });
}

#[test]
fn player_who_joined_later_and_stands_ahead_is_found() {
    assert_finds(Promise::LineInOrder, &["player-7", "place 0", "join 7 against"], |history| {
        history.players[8].admission_expired = false;
        remove(&mut history.players[8], "drop-admission-expired");
        history.players[8].inbox[1].position = 2;
        history.players[8].devices = vec![device(&history.players[8].inbox)];
        let line = &mut drop_of(history).line;
        let entry = line.remove(7);
        line.iter_mut().for_each(|other| other.place += 1);
        // Nobody was admitted at another time, so only the joins tell.
        line.iter_mut().for_each(|other| other.entered_at = None);
        line.iter_mut().for_each(|other| other.state = "LEFT".to_owned());
        line.push(LineEntry { place: 0, entered_at: None, state: "LEFT".to_owned(), ..entry });
    });
}

/// The instance is wrong about the joins as well: it says that the player who joined last was the first.
#[test]
fn player_who_is_ahead_of_those_who_were_answered_before_is_found() {
    let words = ["player-7 (user-7, place 0) joined after 0.020 s", "ahead of player-2 (user-2, place 3)"];
    assert_finds(Promise::LineInOrder, &words, |history| {
        let line = &mut drop_of(history).line;
        let mut first = line.remove(7);
        (first.place, first.number) = (0, 0);
        for other in line.iter_mut() {
            (other.place, other.number) = (other.place + 1, other.number + 1);
        }
        line.push(first);
        for entry in line {
            entry.entered_at = Some("2026-01-01T00:00:00Z".to_owned());
        }
        // The response said so, too.
        history.players[7].joined.as_mut().unwrap().ahead = Some(0);
    });
}

#[test]
fn player_who_is_further_ahead_than_told_is_found() {
    let words = ["player-4 (user-4, place 4) was told that 5 players were ahead, and 4 are"];
    assert_finds(Promise::LineInOrder, &words, |history| {
        history.players[4].joined.as_mut().unwrap().ahead = Some(5);
    });
}

#[test]
fn position_that_an_inbox_skips_or_repeats_is_found() {
    for (from, position, words) in
        [(0, 7, "n3 at position 7 after position 2"), (0, 2, "n3 at position 2 after position 2")]
    {
        assert_finds(Promise::NotificationsOnceInOrder, &["the inbox of player-0", words], |history| {
            let player = &mut history.players[0];
            player.from = from;
            player.inbox[2].position = position;
            player.devices = vec![device(&player.inbox)];
        });
    }
    assert_finds(Promise::NotificationsOnceInOrder, &["n1 at position 1 after position 3"], |history| {
        history.players[0].from = 3;
    });
}

#[test]
fn declined_and_missed_tickets_in_a_match_are_found() {
    for (outcome, what) in [
        (TicketOutcome::Declined, "ticket-5 of player-5 declined its match and is in the match match-2"),
        (TicketOutcome::Missed, "ticket-5 of player-5 missed its ready check and is in the match match-2"),
    ] {
        assert_finds(Promise::NoDoubleMatch, &[what], |history| {
            history.players[5].tickets[0].outcome = outcome;
        });
    }
}

proptest! {
    #[test]
    fn clean_history_has_no_violation(count in 1_usize..60, stock in 1_usize..60) {
        prop_assert_eq!(check(&clean(count, stock)), Vec::new());
    }

    #[test]
    fn any_swap_of_two_places_is_found(first in 0_usize..20, second in 0_usize..20) {
        let mut history = clean(20, 20);
        let line = &mut drop_of(&mut history).line;
        let differ = first != second;
        let place = line[first].place;
        line[first].place = line[second].place;
        line[second].place = place;
        prop_assert_eq!(check(&history).is_empty(), !differ);
    }
}
