//! Lines in the memory of one process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use account::UserId;
use tokio::time::Instant;

use super::ranked::RankedList;
use super::{Epoch, FillToken, Position, PositionLookup};
use crate::DropId;
use crate::model::{LineMember, Place};

/// The in-memory adapter. Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory(Arc<Mutex<HashMap<DropId, DropLine>>>);

#[derive(Debug, Default)]
struct DropLine {
    places: HashMap<UserId, Place>,
    order: RankedList<LineMember>,
    epoch: Option<Epoch>,
    filling: Option<(FillToken, Instant)>,
}

impl DropLine {
    fn add(&mut self, members: &[LineMember]) {
        for member in members {
            if let Some(place) = self.places.insert(member.user, member.place) {
                self.order.remove(&LineMember { place, user: member.user });
            }
            self.order.insert(*member);
        }
    }

    /// Renews the lease of the current fill. Returns false if the token is not its or the lease has ended.
    fn renew(&mut self, token: FillToken, lease: Duration) -> bool {
        let now = Instant::now();
        match &mut self.filling {
            Some((holder, ends)) if *holder == token && now < *ends => {
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

    pub(super) fn add(&self, drop: DropId, members: &[LineMember]) {
        self.lines().entry(drop).or_default().add(members);
    }

    pub(super) fn remove(&self, drop: DropId, members: &[LineMember]) -> u64 {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(&drop) else { return 0 };
        let mut removed = 0;
        for member in members {
            if line.places.get(&member.user) == Some(&member.place) {
                line.places.remove(&member.user);
                removed += u64::from(line.order.remove(member));
            }
        }
        removed
    }

    pub(super) fn position(&self, drop: DropId, user: UserId) -> PositionLookup {
        let lines = self.lines();
        let Some(line) = lines.get(&drop).filter(|line| line.epoch.is_some()) else {
            return PositionLookup::LineNotFilled;
        };
        let Some(place) = line.places.get(&user) else { return PositionLookup::NotInLine };
        let ahead = line.order.rank(&LineMember { place: *place, user }).unwrap_or_default();
        PositionLookup::Found(Position { ahead: ahead as u64, waiting: line.order.len() as u64 })
    }

    pub(super) fn len(&self, drop: DropId) -> u64 {
        self.lines().get(&drop).map_or(0, |line| line.order.len() as u64)
    }

    pub(super) fn after(&self, drop: DropId, after: Option<LineMember>, limit: usize) -> Vec<LineMember> {
        self.lines().get(&drop).map_or_else(Vec::new, |line| line.order.after(after).take(limit).collect())
    }

    pub(super) fn epoch(&self, drop: DropId) -> Option<Epoch> {
        self.lines().get(&drop).and_then(|line| line.epoch)
    }

    pub(super) fn begin_filling(&self, drop: DropId, token: FillToken, lease: Duration) -> bool {
        let mut lines = self.lines();
        let line = lines.entry(drop).or_default();
        let now = Instant::now();
        if line.filling.is_some_and(|(_, ends)| now < ends) {
            return false;
        }
        *line = DropLine { filling: Some((token, now + lease)), ..DropLine::default() };
        true
    }

    pub(super) fn fill(
        &self,
        drop: DropId,
        token: FillToken,
        members: &[LineMember],
        lease: Duration,
    ) -> bool {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(&drop) else { return false };
        let is_ours = line.renew(token, lease);
        if is_ours {
            line.add(members);
        }
        is_ours
    }

    pub(super) fn finish_filling(&self, drop: DropId, token: FillToken) -> bool {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(&drop) else { return false };
        let is_ours = line.renew(token, Duration::ZERO);
        if is_ours {
            (line.epoch, line.filling) = (Some(Epoch(token.0)), None);
        }
        is_ours
    }

    pub(super) fn clear(&self, drop: DropId) {
        self.lines().remove(&drop);
    }
}
