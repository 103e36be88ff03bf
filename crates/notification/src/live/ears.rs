//! The streams of this process, by player.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::id::Uuid;
use tokio::sync::Notify;

use super::{Live, Told};

/// How much may wait for a reader. More is not kept: the reader looks into the inbox instead.
const KEPT: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Ears {
    players: Mutex<HashMap<Uuid, Player>>,
}

#[derive(Debug, Default)]
struct Player {
    slots: Vec<Arc<Slot>>,
    /// Whether what others tell of this player gets here.
    is_connected: bool,
}

#[derive(Debug, Default)]
struct Slot {
    waiting: Mutex<VecDeque<Arc<Told>>>,
    missed: AtomicBool,
    /// How far the stream is in the inbox.
    position: AtomicI64,
    news: Notify,
}

/// A stream's ear for the news of its player, until it is dropped.
#[derive(Debug)]
pub struct Ear {
    live: Live,
    user: Uuid,
    slot: Arc<Slot>,
}

/// What a stream hears.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    News(Arc<Told>),
    /// Something may have been missed.
    Missed,
}

impl Ears {
    fn players(&self) -> MutexGuard<'_, HashMap<Uuid, Player>> {
        self.players.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Also says whether it is the player's first.
    pub(super) fn open(&self, live: &Live, user: Uuid) -> (Ear, bool) {
        let slot = Arc::new(Slot::default());
        let mut players = self.players();
        let player = players.entry(user).or_default();
        player.slots.push(slot.clone());
        (Ear { live: live.clone(), user, slot }, player.slots.len() == 1)
    }

    fn close(&self, user: Uuid, slot: &Arc<Slot>) -> bool {
        let mut players = self.players();
        let Some(player) = players.get_mut(&user) else { return false };
        player.slots.retain(|known| !Arc::ptr_eq(known, slot));
        let is_last = player.slots.is_empty();
        if is_last {
            players.remove(&user);
        }
        is_last
    }

    /// Whether anybody was told.
    pub(super) fn tell(&self, user: Uuid, told: Told) -> bool {
        let players = self.players();
        let Some(player) = players.get(&user) else { return false };
        let told = Arc::new(told);
        player.slots.iter().for_each(|slot| slot.tell(told.clone()));
        true
    }

    pub(super) fn missed(&self, user: Uuid) {
        if let Some(player) = self.players().get(&user) {
            player.slots.iter().for_each(|slot| slot.miss());
        }
    }

    pub(super) fn is_open(&self, user: Uuid) -> bool {
        self.players().contains_key(&user)
    }

    fn is_connected(&self, user: Uuid) -> bool {
        self.players().get(&user).is_some_and(|player| player.is_connected)
    }

    /// What others tell of these players gets here from now on. They look at what they may have missed.
    pub(super) fn connected(&self, users: &[Uuid]) {
        let mut players = self.players();
        for user in users {
            if let Some(player) = players.get_mut(user) {
                player.is_connected = true;
                player.slots.iter().for_each(|slot| slot.miss());
            }
        }
    }

    /// What others tell gets nowhere any more. Returns everybody who is listened for.
    pub(super) fn disconnected(&self) -> Vec<Uuid> {
        let mut players = self.players();
        players.values_mut().for_each(|player| player.is_connected = false);
        players.keys().copied().collect()
    }

    pub(super) fn positions(&self) -> Vec<(Uuid, i64)> {
        let least = |player: &Player| {
            let positions = player.slots.iter().map(|slot| slot.position.load(Ordering::Relaxed));
            positions.min().unwrap_or_default()
        };
        self.players().iter().map(|(user, player)| (*user, least(player))).collect()
    }
}

impl Slot {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Arc<Told>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, told: Arc<Told>) {
        let mut waiting = self.waiting();
        if self.missed.load(Ordering::Acquire) {
            // Whoever is about to look finds this too.
        } else if waiting.len() < KEPT {
            waiting.push_back(told);
        } else {
            *waiting = VecDeque::new();
            self.missed.store(true, Ordering::Release);
        }
        drop(waiting);
        self.news.notify_one();
    }

    fn miss(&self) {
        self.missed.store(true, Ordering::Release);
        self.news.notify_one();
    }
}

impl Ear {
    /// The next news. May be dropped and called again at any time.
    pub async fn next(&mut self) -> Heard {
        loop {
            let told = {
                let mut waiting = self.slot.waiting();
                if self.slot.missed.swap(false, Ordering::AcqRel) {
                    return Heard::Missed;
                }
                let told = waiting.pop_front();
                if waiting.is_empty() {
                    // An idle stream keeps no room for what may come.
                    *waiting = VecDeque::new();
                }
                told
            };
            if let Some(told) = told {
                return Heard::News(told);
            }
            self.slot.news.notified().await;
        }
    }

    /// Says how far the stream is in the inbox.
    pub fn at(&self, position: i64) {
        self.slot.position.store(position, Ordering::Relaxed);
    }

    pub(super) fn is_connected(&self) -> bool {
        self.live.0.ears.is_connected(self.user)
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        if self.live.0.ears.close(self.user, &self.slot) {
            self.live.closed(self.user);
        }
    }
}
