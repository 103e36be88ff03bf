//! Lines in process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use account::UserId;
use tokio::time::Instant;

use super::ranked::Ranked;
use super::{Epoch, Filling, Position};
use crate::DropId;
use crate::model::{Place, Spot};

/// Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory(Arc<Mutex<HashMap<DropId, DropLine>>>);

#[derive(Debug, Default)]
struct DropLine {
    places: HashMap<UserId, Place>,
    order: Ranked<Spot>,
    epoch: Option<Epoch>,
    filling: Option<(Filling, Instant)>,
}

impl DropLine {
    fn add(&mut self, spots: &[Spot]) {
        for spot in spots {
            if let Some(place) = self.places.insert(spot.user, spot.place) {
                self.order.remove(&Spot { place, user: spot.user });
            }
            self.order.insert(*spot);
        }
    }

    /// Returns whether the filling is the one under way, and renews its lease.
    fn renew(&mut self, filling: Filling, lease: Duration) -> bool {
        let now = Instant::now();
        match &mut self.filling {
            Some((holder, ends)) if *holder == filling && now < *ends => {
                *ends = now + lease;
                true
            }
            _ => false,
        }
    }
}

impl Memory {
    fn lines(&self) -> MutexGuard<'_, HashMap<DropId, DropLine>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, drop: DropId, spots: &[Spot]) {
        self.lines().entry(drop).or_default().add(spots);
    }

    pub(super) fn remove(&self, drop: DropId, spots: &[Spot]) -> u64 {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(&drop) else { return 0 };
        let mut removed = 0;
        for spot in spots {
            if line.places.get(&spot.user) == Some(&spot.place) {
                line.places.remove(&spot.user);
                removed += u64::from(line.order.remove(spot));
            }
        }
        removed
    }

    pub(super) fn position(&self, drop: DropId, user: UserId) -> Position {
        let lines = self.lines();
        let Some(line) = lines.get(&drop).filter(|line| line.epoch.is_some()) else {
            return Position::Unknown;
        };
        let Some(place) = line.places.get(&user) else { return Position::Absent };
        let ahead = line.order.rank(&Spot { place: *place, user }).unwrap_or_default();
        Position::Waiting { ahead: ahead as u64, waiting: line.order.len() as u64 }
    }

    pub(super) fn len(&self, drop: DropId) -> u64 {
        self.lines().get(&drop).map_or(0, |line| line.order.len() as u64)
    }

    pub(super) fn after(&self, drop: DropId, after: Option<Spot>, limit: usize) -> Vec<Spot> {
        self.lines().get(&drop).map_or_else(Vec::new, |line| line.order.after(after).take(limit).collect())
    }

    pub(super) fn epoch(&self, drop: DropId) -> Option<Epoch> {
        self.lines().get(&drop).and_then(|line| line.epoch)
    }

    pub(super) fn begin_filling(&self, drop: DropId, filling: Filling, lease: Duration) -> bool {
        let mut lines = self.lines();
        let line = lines.entry(drop).or_default();
        let now = Instant::now();
        if line.filling.is_some_and(|(_, ends)| now < ends) {
            return false;
        }
        *line = DropLine { filling: Some((filling, now + lease)), ..DropLine::default() };
        true
    }

    pub(super) fn fill(&self, drop: DropId, filling: Filling, spots: &[Spot], lease: Duration) -> bool {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(&drop) else { return false };
        let is_ours = line.renew(filling, lease);
        if is_ours {
            line.add(spots);
        }
        is_ours
    }

    pub(super) fn finish_filling(&self, drop: DropId, filling: Filling) -> bool {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(&drop) else { return false };
        let is_ours = line.renew(filling, Duration::ZERO);
        if is_ours {
            (line.epoch, line.filling) = (Some(Epoch(filling.0)), None);
        }
        is_ours
    }

    pub(super) fn clear(&self, drop: DropId) {
        self.lines().remove(&drop);
    }
}
