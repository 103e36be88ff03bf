//! The screens of notifications: dead letters, webhooks, broadcasts, and one notification.

mod broadcasts;
mod dead_letters;
mod export;
mod notification;
mod webhooks;

use base::Code;
use base::id::Uuid;
use http_server::Problem;
use screens::{Cell, Tone};
use service::{Menu, Screen};
use work_queue::State;

use crate::deliver::state_word;

pub(crate) use self::export::player_data;

/// The path of the screen of webhooks, to which findings lead.
pub(crate) const WEBHOOKS: &str = "/console/webhooks";

pub(crate) fn screens() -> Vec<Screen> {
    vec![
        Screen::listed(
            Menu::Events,
            "/console/dead-letters",
            "Dead letters",
            "What was given up, and why?",
            dead_letters::list,
        ),
        Screen::linked(
            "/console/dead-letters/{letter}",
            "Dead letter",
            "Why was this given up?",
            dead_letters::show,
        ),
        Screen::listed(Menu::Events, WEBHOOKS, "Webhooks", "Is this receiver healthy?", webhooks::list),
        Screen::listed(
            Menu::Events,
            "/console/broadcasts",
            "Broadcasts",
            "Who will get this, in which words?",
            broadcasts::list,
        ),
        Screen::linked(
            "/console/broadcasts/{broadcast}",
            "Broadcast",
            "How many players have it?",
            broadcasts::show,
        ),
        Screen::linked(
            "/console/notifications/{notification}",
            "Notification",
            "Did it reach the player?",
            notification::show,
        ),
    ]
}

/// Reads an id from the path of a screen.
fn parse_id(text: &str) -> Result<Uuid, Problem> {
    Uuid::try_parse(text).map_err(|_| Problem::new(Code::InvalidArgument).detail("The id must be a UUID."))
}

/// Shows the state of a delivery or a broadcast.
fn state_cell(state: State) -> Cell {
    let tone = match state {
        State::Done => Tone::Good,
        State::Failed | State::Skipped => Tone::Bad,
        State::Held => Tone::Warning,
        State::Pending | State::InFlight => Tone::Neutral,
    };
    Cell::state(tone, state_word(state))
}

fn user_cell(user: Uuid) -> Cell {
    if user.is_nil() { Cell::None } else { Cell::id(user.to_string(), format!("/console/players/{user}")) }
}

fn notification_cell(notification: Uuid) -> Cell {
    Cell::id(notification.to_string(), format!("/console/notifications/{notification}"))
}

/// Escapes a value for the query of a URL.
fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
