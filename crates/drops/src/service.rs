//! What can be done with drops: preparing, opening and ending them.

use aws_lc_rs::rand;
use base::{Clock, Timestamp};
use db::Db;
use outbox::Outbox;

use crate::DropId;
use crate::error::Error;
use crate::event::{self, Happened};
use crate::model::{Change, DropRecord, DropState, Measured, Seed, Terms};
use crate::store;

const MAX_NAME: usize = 100;
const MAX_RESOURCE: usize = 255;
const MAX_STOCK: i64 = 1_000_000_000_000;
/// How many drops a list may have.
pub const MAX_LIST: u32 = 1_000;

/// The drops. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Drops {
    pub(crate) db: Db,
    pub(crate) outbox: Outbox,
    pub(crate) clock: Clock,
}

/// A drop to be created.
#[derive(Clone, Debug)]
pub struct Create {
    pub name: String,
    /// What a unit is: the resource that the buyer's account is granted.
    pub resource: String,
    pub terms: Terms,
    /// How many units there are.
    pub stock: i64,
    /// Who creates it: written into the stock's ledger.
    pub actor: String,
}

/// Whether a drop ends although units are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Refuses while units are reserved.
    WithoutReservations,
    /// Ends at once. Reserved units can still be paid for until their time ends.
    Forced,
}

/// Which drops to list.
#[derive(Clone, Copy, Debug)]
pub struct ListDrops {
    pub state: Option<DropState>,
    pub after: Option<DropId>,
    pub limit: u32,
}

impl Drops {
    pub fn new(db: Db, outbox: Outbox, clock: Clock) -> Self {
        Self { db, outbox, clock }
    }

    /// Creates a drop as a draft, with its stock. Fails with [`Error::NameTaken`] if there is one of this name.
    pub async fn create(&self, new: &Create) -> Result<DropRecord, Error> {
        new.check()?;
        let mut bytes = [0; 32];
        rand::fill(&mut bytes).map_err(|_| Error::NoSeed)?;
        let (id, seed) = (DropId::generate(), Seed::from_bytes(bytes));
        let (terms, measured) = (new.terms.to_stored()?, Measured::default().to_stored()?);
        db::retrying(Error::is_conflict, || async {
            let creating = async {
                let mut tx = self.db.begin().await?;
                let row = store::NewDrop {
                    id,
                    name: &new.name,
                    resource: &new.resource,
                    terms: &terms,
                    seed: &seed,
                    measured: &measured,
                    stock: new.stock,
                    actor: &new.actor,
                };
                store::insert(&mut tx, row).await?;
                tx.commit().await
            };
            match self.db.bounded(creating).await {
                // A row with our id is ours: the attempt before was committed and not acknowledged.
                Err(db::Error::Duplicate(_)) if self.find(id).await?.is_none() => {
                    Err(Error::NameTaken(new.name.clone()))
                }
                Err(db::Error::Duplicate(_)) => Ok(()),
                done => Ok(done?),
            }
        })
        .await?;
        self.get(id).await
    }

    /// Sets the time at which a drop opens, and the one at which it closes. Players can join from now on.
    pub async fn schedule(
        &self,
        id: DropId,
        opens_at: Timestamp,
        closes_at: Option<Timestamp>,
    ) -> Result<DropRecord, Error> {
        if closes_at.is_some_and(|closes_at| closes_at <= opens_at) {
            let what = "must be after opens_at".to_owned();
            return Err(Error::Invalid { field: "closes_at", what });
        }
        self.change(id, Change::Schedule, Ending::Forced, |drop, _| {
            (drop.opens_at, drop.closes_at) = (Some(opens_at), closes_at);
            Ok(Happened::Scheduled)
        })
        .await
    }

    /// Opens a drop now. Its seed is public from then on.
    pub async fn open(&self, id: DropId) -> Result<DropRecord, Error> {
        self.change(id, Change::Open, Ending::Forced, |drop, now| {
            drop.opened_at = Some(now);
            Ok(Happened::Opened)
        })
        .await
    }

    /// Stops admissions. Players keep their places, and more can join.
    pub async fn pause(&self, id: DropId) -> Result<DropRecord, Error> {
        self.change(id, Change::Pause, Ending::Forced, |_, _| Ok(Happened::Paused)).await
    }

    pub async fn resume(&self, id: DropId) -> Result<DropRecord, Error> {
        self.change(id, Change::Resume, Ending::Forced, |_, _| Ok(Happened::Resumed)).await
    }

    /// Ends a drop. Admissions that are in force end by their time.
    pub async fn close(&self, id: DropId, ending: Ending) -> Result<DropRecord, Error> {
        self.change(id, Change::Close, ending, |drop, now| {
            drop.closed_at = Some(now);
            Ok(Happened::Closed)
        })
        .await
    }

    /// Gives a drop up.
    pub async fn cancel(&self, id: DropId, ending: Ending) -> Result<DropRecord, Error> {
        self.change(id, Change::Cancel, ending, |drop, now| {
            drop.closed_at = Some(now);
            Ok(Happened::Cancelled)
        })
        .await
    }

    /// Changes the terms. Order and lanes are fixed once players can join, price and limit once the drop is open.
    pub async fn change_terms(&self, id: DropId, terms: &Terms) -> Result<DropRecord, Error> {
        terms.check().map_err(Error::Terms)?;
        self.change(id, Change::Terms, Ending::Forced, |drop, _| {
            let (old, state) = (&drop.terms, drop.state);
            let is_draft = state == DropState::Draft;
            let is_before_opening = is_draft || state == DropState::Scheduled;
            let fixed = [
                ("order", !is_draft && old.order != terms.order),
                ("lanes", !is_draft && old.lanes != terms.lanes),
                ("price", !is_before_opening && old.price != terms.price),
                ("per_player", !is_before_opening && old.per_player != terms.per_player),
            ];
            if let Some((field, _)) = fixed.into_iter().find(|(_, is_wrong)| *is_wrong) {
                return Err(Error::Fixed { field, state });
            }
            drop.terms = terms.clone();
            Ok(Happened::Changed)
        })
        .await
    }

    /// Turns the emergency switch on or off: while it is on, nobody is admitted. Those who are inside stay.
    pub async fn everyone_waits(&self, id: DropId, is_on: bool) -> Result<DropRecord, Error> {
        self.change(id, Change::EveryoneWaits, Ending::Forced, |drop, _| {
            drop.everyone_waits = is_on;
            Ok(Happened::Changed)
        })
        .await
    }

    pub async fn get(&self, id: DropId) -> Result<DropRecord, Error> {
        self.find(id).await?.ok_or(Error::NoSuchDrop(id))
    }

    async fn find(&self, id: DropId) -> Result<Option<DropRecord>, Error> {
        let reading = async { store::get(&self.db, &mut self.db.connection().await?, id).await };
        Ok(self.db.bounded(reading).await?)
    }

    /// Lists drops in the order of their creation.
    pub async fn list(&self, which: ListDrops) -> Result<Vec<DropRecord>, Error> {
        let ListDrops { state, after, limit } = which;
        let limit = limit.clamp(1, MAX_LIST);
        let reading =
            async { store::list(&self.db, &mut self.db.connection().await?, state, after, limit).await };
        Ok(self.db.bounded(reading).await?)
    }

    /// Opens the scheduled drops whose time has come. Returns how many. Any number of processes may do it at once.
    pub async fn open_due(&self) -> Result<usize, Error> {
        let mut opened = 0;
        for id in store::due_to_open(&self.db).await? {
            opened += usize::from(unless_changed(self.open(id).await)?);
        }
        Ok(opened)
    }

    /// Closes the open drops whose time has come. Returns how many.
    pub async fn close_due(&self) -> Result<usize, Error> {
        let mut closed = 0;
        for id in store::due_to_close(&self.db).await? {
            closed += usize::from(unless_changed(self.close(id, Ending::Forced).await)?);
        }
        Ok(closed)
    }

    /// Changes a drop under its head, with its event.
    async fn change(
        &self,
        id: DropId,
        change: Change,
        ending: Ending,
        edit: impl Fn(&mut DropRecord, Timestamp) -> Result<Happened, Error>,
    ) -> Result<DropRecord, Error> {
        db::retrying(Error::is_conflict, || async {
            let changing = async {
                let mut tx = self.db.begin().await?;
                let locked = store::lock(&self.db, &mut tx, id).await?;
                let mut drop = locked.ok_or(Error::NoSuchDrop(id))?.drop;
                let state = drop.state;
                let next = state.after(change).ok_or(Error::WrongState { state, change })?;
                let now = store::now(&mut tx).await?;
                let happened = edit(&mut drop, now)?;
                drop.state = next;
                drop.version += 1;
                store::save(&mut tx, &drop, &drop.terms.to_stored()?).await?;
                // After the row was written: a reserve keeps the drop's row as it is until its commit, so all of them are counted.
                if ending == Ending::WithoutReservations {
                    let reserved = store::reserved(&mut tx, id).await?;
                    if reserved > 0 {
                        return Err(Error::OpenReservations(reserved));
                    }
                }
                let event = event::of_drop(happened, &drop, self.clock.now())?;
                self.outbox.append(&mut tx, &[(outbox::Uuid::nil(), event)]);
                tx.commit().await?;
                Ok(drop)
            };
            self.db.bounded(changing).await
        })
        .await
    }
}

/// Returns whether a due change was made: another process may have been faster.
fn unless_changed(done: Result<DropRecord, Error>) -> Result<bool, Error> {
    match done {
        Ok(_) => Ok(true),
        Err(Error::WrongState { .. } | Error::NoSuchDrop(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Create {
    fn check(&self) -> Result<(), Error> {
        let is_text = |text: &str, max| !text.trim().is_empty() && text.chars().count() <= max;
        let invalid = |field, what| Err(Error::Invalid { field, what });
        if !is_text(&self.name, MAX_NAME) {
            return invalid("name", format!("must have 1 to {MAX_NAME} characters"));
        }
        if !is_text(&self.resource, MAX_RESOURCE) {
            return invalid("resource", format!("must have 1 to {MAX_RESOURCE} characters"));
        }
        if !is_text(&self.actor, MAX_NAME) {
            return invalid("actor", format!("must have 1 to {MAX_NAME} characters"));
        }
        if !(0..=MAX_STOCK).contains(&self.stock) {
            return invalid("stock", format!("must be 0 to {MAX_STOCK}, not {}", self.stock));
        }
        self.terms.check().map_err(Error::Terms)
    }
}
