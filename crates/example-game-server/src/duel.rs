//! The rules of the game, without time of its own and without I/O: two players wait for green, and the faster one gets a point.
//!
//! A press before green gives the point to the other player. Three points win.

use std::time::Duration;

use base::Timestamp;
use serde::{Deserialize, Serialize};

/// The durations and counts of a game.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How long players have to come and to be ready.
    pub gather: Duration,
    /// The shortest and the longest wait for green.
    pub steady: (Duration, Duration),
    /// How long green lasts if nobody presses.
    pub green: Duration,
    /// How long the result of a round is shown.
    pub pause: Duration,
    /// How long a player may be disconnected before the other one wins.
    pub away: Duration,
    /// How long the result of a game can be read.
    pub keep: Duration,
    pub points_to_win: u8,
    /// The game ends after this many rounds, so that two idle players do not occupy a room forever.
    pub max_rounds: u8,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            gather: Duration::from_secs(120),
            steady: (Duration::from_millis(1_200), Duration::from_millis(4_000)),
            green: Duration::from_secs(3),
            pause: Duration::from_millis(1_800),
            away: Duration::from_secs(20),
            keep: Duration::from_secs(120),
            points_to_win: 3,
            max_rounds: 12,
        }
    }
}

/// One of the two places in a game.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Seat {
    First,
    Second,
}

impl Seat {
    pub const BOTH: [Self; 2] = [Self::First, Self::Second];

    pub const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    pub const fn index(self) -> usize {
        match self {
            Self::First => 0,
            Self::Second => 1,
        }
    }
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// The faster player pressed this long after green.
    Faster {
        seat: Seat,
        after: Duration,
    },
    /// This player pressed before green, so the other one has the point.
    TooEarly {
        seat: Seat,
    },
    Nobody,
}

impl Round {
    /// Returns who gets the point.
    pub const fn winner(self) -> Option<Seat> {
        match self {
            Self::Faster { seat, .. } => Some(seat),
            Self::TooEarly { seat } => Some(seat.other()),
            Self::Nobody => None,
        }
    }
}

/// How a game ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    Points,
    /// The other player was away for too long.
    Forfeit,
    /// The last round is over, and both have the same points.
    Draw,
    /// A player did not come, or was not ready in time.
    NobodyCame,
    /// Both players left.
    Deserted,
}

impl Ending {
    /// Returns whether the game has a result that players must hear of.
    pub const fn is_result(self) -> bool {
        matches!(self, Self::Points | Self::Forfeit | Self::Draw)
    }
}

/// The part of a game that is played now. Each ends at a time, unless a player ends it before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The players come, and say that they are ready.
    Gathering,
    Steady,
    Green {
        since: Timestamp,
    },
    Scored(Round),
    Over {
        winner: Option<Seat>,
        ending: Ending,
    },
}

/// What a player does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Action {
    Ready,
    /// Names the round, so that a press that arrives late is not one in the next round.
    Press {
        round: u8,
    },
}

/// A player in a game.
#[derive(Clone, Copy, Debug, Default)]
pub struct Player {
    pub ready: bool,
    pub points: u8,
    /// How many streams the player has open.
    connections: usize,
    away_since: Option<Timestamp>,
}

impl Player {
    pub const fn is_here(&self) -> bool {
        self.connections > 0
    }

    pub const fn connections(&self) -> usize {
        self.connections
    }
}

/// A game.
#[derive(Debug)]
pub struct Duel {
    rules: Rules,
    players: [Player; 2],
    phase: Phase,
    began_at: Timestamp,
    ends_at: Timestamp,
    round: u8,
}

impl Duel {
    pub fn new(rules: Rules, now: Timestamp) -> Self {
        Self {
            rules,
            players: [Player::default(); 2],
            phase: Phase::Gathering,
            began_at: now,
            ends_at: now.after(rules.gather),
            round: 0,
        }
    }

    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns when the phase began.
    pub const fn began_at(&self) -> Timestamp {
        self.began_at
    }

    /// Returns when the phase ends at the latest. The result of a game is kept until then.
    pub const fn ends_at(&self) -> Timestamp {
        self.ends_at
    }

    pub const fn round(&self) -> u8 {
        self.round
    }

    pub const fn player(&self, seat: Seat) -> &Player {
        &self.players[seat.index()]
    }

    pub const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over { .. })
    }

    pub fn connect(&mut self, seat: Seat) {
        let player = &mut self.players[seat.index()];
        player.connections += 1;
        player.away_since = None;
    }

    pub fn disconnect(&mut self, seat: Seat, now: Timestamp) {
        let player = &mut self.players[seat.index()];
        player.connections = player.connections.saturating_sub(1);
        if player.connections == 0 {
            player.away_since = Some(now);
        }
    }

    /// Applies an action. One that comes too late changes nothing, so a repeated one has no second effect.
    pub fn act(&mut self, seat: Seat, action: Action, now: Timestamp) {
        match (action, self.phase) {
            (Action::Ready, Phase::Gathering) => self.players[seat.index()].ready = true,
            (Action::Press { round }, Phase::Steady) if round == self.round => {
                self.score(Round::TooEarly { seat }, now);
            }
            (Action::Press { round }, Phase::Green { since }) if round == self.round => {
                self.score(Round::Faster { seat, after: since.distance(now) }, now);
            }
            _ => {}
        }
    }

    /// Moves on as far as the time allows. Returns whether anything changed.
    pub fn advance(&mut self, now: Timestamp, random: &mut fastrand::Rng) -> bool {
        let mut is_changed = false;
        while self.step(now, random) {
            is_changed = true;
        }
        is_changed
    }

    /// Returns when the game changes next if nobody does anything.
    pub fn next_change(&self) -> Timestamp {
        let leaves = self.players.iter().filter_map(|player| player.away_since);
        let leaves = leaves.filter(|_| self.is_played()).map(|since| since.after(self.rules.away));
        leaves.fold(self.ends_at, Timestamp::min)
    }

    fn step(&mut self, now: Timestamp, random: &mut fastrand::Rng) -> bool {
        if self.is_played() && self.end_if_deserted(now) {
            return true;
        }
        let is_due = now >= self.ends_at;
        match self.phase {
            Phase::Gathering if self.players.iter().all(|player| player.ready && player.is_here()) => {
                self.begin_round(now, random);
            }
            Phase::Gathering if is_due => self.end(None, Ending::NobodyCame, now),
            Phase::Steady if is_due => {
                // Green begins when the players see it, however late this step is.
                self.enter(Phase::Green { since: now }, now, self.rules.green);
            }
            Phase::Green { .. } if is_due => self.score(Round::Nobody, now),
            Phase::Scored(_) if is_due => self.end_or_continue(now, random),
            _ => return false,
        }
        true
    }

    const fn is_played(&self) -> bool {
        !matches!(self.phase, Phase::Gathering | Phase::Over { .. })
    }

    fn end_if_deserted(&mut self, now: Timestamp) -> bool {
        let is_gone =
            |player: &Player| player.away_since.is_some_and(|since| now >= since.after(self.rules.away));
        let [first, second] = self.players.each_ref().map(is_gone);
        match (first, second) {
            (false, false) => return false,
            (true, true) => self.end(None, Ending::Deserted, now),
            (first_left, _) => {
                let winner = if first_left { Seat::Second } else { Seat::First };
                // Nobody is there to win: the other one left a little later.
                if self.player(winner).is_here() {
                    self.end(Some(winner), Ending::Forfeit, now);
                } else {
                    self.end(None, Ending::Deserted, now);
                }
            }
        }
        true
    }

    fn end_or_continue(&mut self, now: Timestamp, random: &mut fastrand::Rng) {
        let [first, second] = self.players.map(|player| player.points);
        let is_last = self.round >= self.rules.max_rounds;
        if first.max(second) < self.rules.points_to_win && !is_last {
            return self.begin_round(now, random);
        }
        match first.cmp(&second) {
            std::cmp::Ordering::Greater => self.end(Some(Seat::First), Ending::Points, now),
            std::cmp::Ordering::Less => self.end(Some(Seat::Second), Ending::Points, now),
            std::cmp::Ordering::Equal => self.end(None, Ending::Draw, now),
        }
    }

    fn begin_round(&mut self, now: Timestamp, random: &mut fastrand::Rng) {
        self.round += 1;
        let (shortest, longest) = self.rules.steady;
        let span = longest.saturating_sub(shortest).mul_f64(random.f64());
        self.enter(Phase::Steady, now, shortest + span);
    }

    fn score(&mut self, round: Round, now: Timestamp) {
        if let Some(winner) = round.winner() {
            self.players[winner.index()].points += 1;
        }
        self.enter(Phase::Scored(round), now, self.rules.pause);
    }

    fn end(&mut self, winner: Option<Seat>, ending: Ending, now: Timestamp) {
        self.enter(Phase::Over { winner, ending }, now, self.rules.keep);
    }

    fn enter(&mut self, phase: Phase, now: Timestamp, lasts: Duration) {
        self.phase = phase;
        self.began_at = now;
        self.ends_at = now.after(lasts);
    }
}

#[cfg(test)]
mod tests;
