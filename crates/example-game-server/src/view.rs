//! What a player sees of a game. Each message has the whole state, so a page that was reloaded needs nothing else.

use std::time::Duration;

use base::Timestamp;
use serde::Serialize;

use crate::duel::{Duel, Ending, Phase, Round, Seat};

/// The state of a game for one player. When green will come is not in it.
#[derive(Debug, PartialEq, Serialize)]
pub struct View {
    phase: PhaseName,
    round: u8,
    you: Seat,
    points_to_win: u8,
    players: [PlayerView; 2],
    /// The last round, while its result is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    scored: Option<RoundView>,
    /// How the game ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<ResultView>,
    /// How many milliseconds are left for players to come and be ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    gather_ms: Option<u128>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum PhaseName {
    Gathering,
    Steady,
    Green,
    Scored,
    /// The game is over, and its result is being recorded.
    Deciding,
    Over,
}

#[derive(Debug, PartialEq, Serialize)]
struct PlayerView {
    name: Option<String>,
    here: bool,
    ready: bool,
    points: u8,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "how", rename_all = "kebab-case")]
enum RoundView {
    Faster { winner: Seat, after_ms: u128 },
    TooEarly { winner: Seat },
    Nobody,
}

#[derive(Debug, PartialEq, Serialize)]
struct ResultView {
    winner: Option<Seat>,
    ending: Ending,
}

impl View {
    /// `is_final` is false while a result is not recorded yet.
    pub(crate) fn new(
        duel: &Duel,
        you: Seat,
        names: [Option<String>; 2],
        is_final: bool,
        now: Timestamp,
    ) -> Self {
        let [first, second] = names;
        let player = |seat: Seat, name| {
            let player = duel.player(seat);
            PlayerView { name, here: player.is_here(), ready: player.ready, points: player.points }
        };
        let mut view = Self {
            phase: PhaseName::Gathering,
            round: duel.round(),
            you,
            points_to_win: duel.rules().points_to_win,
            players: [player(Seat::First, first), player(Seat::Second, second)],
            scored: None,
            result: None,
            gather_ms: None,
        };
        match duel.phase() {
            Phase::Gathering => {
                let left = if now < duel.ends_at() { duel.ends_at().distance(now) } else { Duration::ZERO };
                view.gather_ms = Some(left.as_millis());
            }
            Phase::Steady => view.phase = PhaseName::Steady,
            Phase::Green { .. } => view.phase = PhaseName::Green,
            Phase::Scored(round) => {
                view.phase = PhaseName::Scored;
                view.scored = Some(round.into());
            }
            Phase::Over { .. } if !is_final => view.phase = PhaseName::Deciding,
            Phase::Over { winner, ending } => {
                view.phase = PhaseName::Over;
                view.result = Some(ResultView { winner, ending });
            }
        }
        view
    }
}

impl From<Round> for RoundView {
    fn from(round: Round) -> Self {
        match round {
            Round::Faster { seat, after } => Self::Faster { winner: seat, after_ms: after.as_millis() },
            Round::TooEarly { seat } => Self::TooEarly { winner: seat.other() },
            Round::Nobody => Self::Nobody,
        }
    }
}
