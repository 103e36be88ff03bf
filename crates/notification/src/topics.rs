//! The live messages of this service.

use live::{Player, Topic};

use crate::model::{Counts, Notification};

/// A notification was added to a player's inbox.
#[derive(Debug)]
pub enum NotificationAdded {}

impl Topic for NotificationAdded {
    type Key = Player;
    type Message = Notification;
    const NAME: &'static str = "notification";
    // A stream skips positions that it has sent.
    const REPEATABLE: bool = true;
}

/// A player marked notifications, which changed the counts of their inbox.
#[derive(Debug)]
pub enum CountsChanged {}

impl Topic for CountsChanged {
    type Key = Player;
    type Message = Counts;
    const NAME: &'static str = "counts";
}
