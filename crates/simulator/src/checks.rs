//! The promises, as pure functions over what was seen. A violation names the ids, so that `playhouse trace ID` can follow them.

mod line;
mod matches;
mod notifications;
mod stock;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::history::History;

pub(crate) use notifications::{missing_notifications, owed_templates};

/// A promise that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    NobodyLost,
    NoDoubleMatch,
    NoOversell,
    NotificationsOnceInOrder,
    LineInOrder,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub promise: Promise,
    pub what: String,
}

impl Promise {
    pub const ALL: [Self; 5] = [
        Self::NobodyLost,
        Self::NoDoubleMatch,
        Self::NoOversell,
        Self::NotificationsOnceInOrder,
        Self::LineInOrder,
    ];

    /// Returns the name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NobodyLost => "nobody_lost",
            Self::NoDoubleMatch => "no_double_match",
            Self::NoOversell => "no_oversell",
            Self::NotificationsOnceInOrder => "notifications_once_in_order",
            Self::LineInOrder => "line_in_order",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NobodyLost => "nobody is lost",
            Self::NoDoubleMatch => "no ticket is in two matches",
            Self::NoOversell => "nothing is oversold",
            Self::NotificationsOnceInOrder => "every notification arrives once and in order",
            Self::LineInOrder => "the line is served in order",
        })
    }
}

/// Checks every promise. Returns all violations.
pub fn check(history: &History) -> Vec<Violation> {
    let lost = history.players.iter().flat_map(|player| {
        let panic = player.panic.iter().map(|message| format!("the simulator panicked: {message}"));
        let lost = panic.chain(player.lost.iter().cloned());
        lost.map(move |why| (Promise::NobodyLost, format!("{}: {why}", player.name)))
    });
    let unread = history.unread.iter().map(|what| (Promise::NobodyLost, what.clone()));
    let orders = stock::unaccounted_orders(history).map(|what| (Promise::NobodyLost, what));
    let line = line::missing(history).map(|what| (Promise::NobodyLost, what));
    let matches = matches::doubled(history).into_iter().map(|what| (Promise::NoDoubleMatch, what));
    let oversold = stock::oversold(history).into_iter().map(|what| (Promise::NoOversell, what));
    let notifications =
        notifications::wrong(history).into_iter().map(|what| (Promise::NotificationsOnceInOrder, what));
    let overtaken = line::overtaken(history).into_iter().map(|what| (Promise::LineInOrder, what));
    let all =
        lost.chain(unread).chain(orders).chain(line).chain(matches).chain(oversold).chain(notifications);
    all.chain(overtaken).map(|(promise, what)| Violation { promise, what }).collect()
}
