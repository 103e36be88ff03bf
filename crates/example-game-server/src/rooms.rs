//! The rooms of this server: one for each match that it was allocated for.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base::{Clock, Timestamp};
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::duel::{Action, Duel, Phase, Rules, Seat};
use crate::results::{GameResult, PlayerResult};
use crate::view::View;

/// How long an abandoned match is remembered: Playhouse's own retries of its allocation may come later than the message.
const REMEMBER_ABANDONED: Duration = Duration::from_secs(600);
/// How many streams a player may have open.
const MAX_STREAMS: usize = 4;

/// The rooms. Cheap to clone; clones share the rooms.
#[derive(Clone, Debug)]
pub struct Rooms(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    rules: Rules,
    /// The most rooms at a time.
    max_rooms: usize,
    state: Mutex<State>,
    /// Wakes the loop that moves games on.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    rooms: BTreeMap<Uuid, Room>,
    /// Matches that will not take place, with the time until which they are remembered.
    abandoned: HashMap<Uuid, Timestamp>,
    random: fastrand::Rng,
}

#[derive(Debug)]
struct Room {
    duel: Duel,
    members: [Member; 2],
    /// Whether the result is in the journal. Players see it only after that.
    is_recorded: bool,
    version: watch::Sender<u64>,
}

/// A player of a match, as Playhouse names them.
#[derive(Clone, Debug)]
pub struct Member {
    pub ticket_id: String,
    /// Missing if an Open Match client created the ticket without one.
    pub user_id: Option<Uuid>,
    /// Opens the room for this player only.
    pub token: String,
    /// The name to show, once it is known.
    pub name: Option<String>,
}

/// Why a request to a room is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoomError {
    #[error("this server has no such match: it is over, or it was abandoned")]
    NoSuchMatch,
    #[error("this token does not belong to a player of the match")]
    NotAPlayer,
    #[error("you have too many streams of this match open; close one")]
    TooManyStreams,
}

/// An open stream of a player. Dropping it is how a player leaves.
#[derive(Debug)]
pub struct Connection {
    rooms: Rooms,
    match_id: Uuid,
    seat: Seat,
    version: watch::Receiver<u64>,
}

/// What a [tick](Rooms::tick) found.
#[derive(Debug, Default)]
pub struct Tick {
    /// Results that must be recorded before players see them: call [`Rooms::announce`] after that.
    pub results: Vec<GameResult>,
    /// When the next game changes by itself.
    pub next: Option<Timestamp>,
}

impl Rooms {
    pub fn new(clock: Clock, rules: Rules, max_rooms: usize, random: fastrand::Rng) -> Self {
        let state = State { rooms: BTreeMap::new(), abandoned: HashMap::new(), random };
        let (state, changed) = (Mutex::new(state), Notify::new());
        Self(Arc::new(Shared { clock, rules, max_rooms, state, changed }))
    }

    /// Opens a room for a match, and returns its players with their tokens. The same match gets the same room. None if the match was
    /// abandoned, or the server is full.
    pub fn allocate(&self, match_id: Uuid, players: [(String, Option<Uuid>); 2]) -> Option<[Member; 2]> {
        let now = self.0.clock.now();
        let mut state = self.state();
        if let Some(room) = state.rooms.get(&match_id) {
            return Some(room.members.clone());
        }
        if state.abandoned.contains_key(&match_id) || state.rooms.len() >= self.0.max_rooms {
            return None;
        }
        let members = players.map(|(ticket_id, user_id)| Member {
            ticket_id,
            user_id,
            token: format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()),
            name: None,
        });
        let room = Room {
            duel: Duel::new(self.0.rules, now),
            members: members.clone(),
            is_recorded: false,
            version: watch::Sender::new(0),
        };
        state.rooms.insert(match_id, room);
        self.0.changed.notify_one();
        Some(members)
    }

    /// Frees the room of a match that will not take place. Its streams end.
    pub fn abandon(&self, match_id: Uuid) {
        let until = self.0.clock.now().after(REMEMBER_ABANDONED);
        let mut state = self.state();
        state.rooms.remove(&match_id);
        state.abandoned.insert(match_id, until);
    }

    /// Returns how many rooms are in use.
    pub fn count(&self) -> usize {
        self.state().rooms.len()
    }

    /// Finds out who has this token.
    pub fn authenticate(&self, match_id: Uuid, token: &str) -> Result<(Seat, Member), RoomError> {
        let state = self.state();
        let room = state.rooms.get(&match_id).ok_or(RoomError::NoSuchMatch)?;
        let holds = |seat: &Seat| {
            verify_slices_are_equal(room.members[seat.index()].token.as_bytes(), token.as_bytes()).is_ok()
        };
        let seat = Seat::BOTH.into_iter().find(holds).ok_or(RoomError::NotAPlayer)?;
        Ok((seat, room.members[seat.index()].clone()))
    }

    /// Opens a stream of a player.
    pub fn connect(&self, match_id: Uuid, seat: Seat) -> Result<Connection, RoomError> {
        let mut version = self.change(match_id, |room, _| {
            if room.duel.player(seat).connections() >= MAX_STREAMS {
                return Err(RoomError::TooManyStreams);
            }
            room.duel.connect(seat);
            Ok(room.version.subscribe())
        })??;
        // The stream begins with a view, which includes this change.
        version.mark_unchanged();
        Ok(Connection { rooms: self.clone(), match_id, seat, version })
    }

    pub fn set_name(&self, match_id: Uuid, seat: Seat, name: String) -> Result<(), RoomError> {
        self.change(match_id, |room, _| room.members[seat.index()].name = Some(name))
    }

    /// Applies a player's action.
    pub fn act(&self, match_id: Uuid, seat: Seat, action: Action) -> Result<(), RoomError> {
        self.change(match_id, |room, now| room.duel.act(seat, action, now))
    }

    /// Moves all games on, and frees the rooms of those that are over for a while.
    pub fn tick(&self) -> Tick {
        let now = self.0.clock.now();
        let mut state = self.state();
        let State { rooms, abandoned, random } = &mut *state;
        abandoned.retain(|_, until| *until > now);
        let mut tick = Tick::default();
        rooms.retain(|match_id, room| {
            if room.duel.advance(now, random) {
                room.notify();
            }
            let result = room.unrecorded_result(*match_id);
            // The room stays until its result can be written.
            let is_kept = result.is_some() || !room.duel.is_over() || now < room.duel.ends_at();
            tick.results.extend(result);
            is_kept
        });
        tick.next = rooms.values().map(|room| room.duel.next_change()).min();
        tick
    }

    /// Shows the players a result that is in the journal.
    pub fn announce(&self, match_id: Uuid) {
        // The room may have been freed meanwhile.
        let _ = self.change(match_id, |room, _| room.is_recorded = true);
    }

    /// Waits until a room changes.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    fn change<T>(
        &self,
        match_id: Uuid,
        change: impl FnOnce(&mut Room, Timestamp) -> T,
    ) -> Result<T, RoomError> {
        let now = self.0.clock.now();
        let mut state = self.state();
        let State { rooms, random, .. } = &mut *state;
        let room = rooms.get_mut(&match_id).ok_or(RoomError::NoSuchMatch)?;
        let changed = change(room, now);
        room.duel.advance(now, random);
        room.notify();
        self.0.changed.notify_one();
        Ok(changed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    fn notify(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    fn unrecorded_result(&self, match_id: Uuid) -> Option<GameResult> {
        let Phase::Over { winner, ending } = self.duel.phase() else { return None };
        if self.is_recorded || !ending.is_result() {
            return None;
        }
        let player = |seat: Seat| {
            let member = &self.members[seat.index()];
            let (user_id, name) = (member.user_id, member.name.clone());
            PlayerResult { user_id, name, points: self.duel.player(seat).points }
        };
        Some(GameResult {
            match_id,
            ended_at: self.duel.began_at().to_rfc3339(),
            winner,
            ending,
            players: Seat::BOTH.map(player),
        })
    }

    /// Returns what one player may see.
    fn view(&self, seat: Seat, now: Timestamp) -> View {
        let is_final = self.is_recorded
            || !matches!(self.duel.phase(), Phase::Over { ending, .. } if ending.is_result());
        let names = self.members.each_ref().map(|member| member.name.clone());
        View::new(&self.duel, seat, names, is_final, now)
    }
}

impl Connection {
    /// Returns what the player may see. None if the room has been freed.
    pub fn view(&self) -> Option<View> {
        let now = self.rooms.0.clock.now();
        let state = self.rooms.state();
        state.rooms.get(&self.match_id).map(|room| room.view(self.seat, now))
    }

    /// Waits until there is something new to see, or the room has been freed.
    pub async fn changed(&mut self) {
        // The sender is gone with its room: the next view is none.
        let _ = self.version.changed().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The room may have been freed.
        let _ = self.rooms.change(self.match_id, |room, now| room.duel.disconnect(self.seat, now));
    }
}

#[cfg(test)]
mod tests;
