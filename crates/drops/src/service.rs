//! What can be done with drops: preparing, opening and ending them.

use std::time::Duration;

use aws_lc_rs::rand;
use base::error::Coded;
use base::{Clock, Timestamp};
use db::{Db, Earlier, Fingerprint, IdempotencyKey, Tx};
use outbox::Outbox;

use crate::DropId;
use crate::error::Error;
use crate::event::{self, Happened};
use crate::model::{
    Change, DropRecord, DropState, EndReason, MAX_RESOURCE, Measured, Seed, Terms, WhenSoldOut,
};
use crate::{check, stock, store};

const MAX_NAME: usize = 100;
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

/// A drop that was created, or was there already.
#[derive(Clone, Debug)]
pub struct Created {
    pub drop: DropRecord,
    /// Whether the same request has created it before.
    pub is_repeated: bool,
}

/// Whether a drop ends although units are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Refuses while units are reserved.
    WithoutReservations,
    /// Ends at once. Reserved units can still be paid for until their time ends.
    Forced,
}

/// How fast players are admitted. What is none stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// How many players are to arrive per period.
    pub batch: Option<u32>,
    pub period: Option<Duration>,
    /// How many may be inside at once. Fewer than are inside admits nobody until enough of them have left.
    pub capacity: Option<u32>,
}

/// What must be true of the stock for a change, when the drop is written and no reserve can come any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Anything,
    NothingReserved,
    AllSold,
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
        let id = DropId::generate();
        self.insert(id, new, None).await?;
        self.get(id).await
    }

    /// As [`create`](Self::create), once per actor and key: the same request again returns the drop that it created.
    pub async fn create_once(&self, new: &Create, key: &str) -> Result<Created, Error> {
        new.check()?;
        let terms = serde_json::to_value(&new.terms)?;
        let request = Fingerprint::of("drops.create").text(&new.name).text(&new.resource);
        let request = request.integer(new.stock).json(&terms);
        let key = IdempotencyKey::new(&format!("drops.create/{}", new.actor), key, request)?;
        let id = DropId::generate();
        if let Some(drop) = self.created_under(&key).await? {
            return Ok(Created { drop, is_repeated: true });
        }
        match self.insert(id, new, Some(&key)).await {
            Ok(()) => Ok(Created { drop: self.get(id).await?, is_repeated: false }),
            // The name, or the key: the same request may have been faster.
            Err(taken @ Error::NameTaken(_)) => {
                let created = self.created_under(&key).await?;
                created.map(|drop| Created { drop, is_repeated: true }).ok_or(taken)
            }
            Err(error) => Err(error),
        }
    }

    async fn created_under(&self, key: &IdempotencyKey) -> Result<Option<DropRecord>, Error> {
        let reading = async {
            let mut tx = self.db.begin().await?;
            let earlier = key.earlier(&mut tx).await?;
            tx.rollback().await?;
            Ok::<_, db::Error>(earlier)
        };
        let unreadable = |cause: String| Error::Db(self.db.corrupt("idempotency_keys", key.row(), cause));
        match self.db.bounded(reading).await? {
            Earlier::Nothing => Ok(None),
            Earlier::OtherRequest(_) => Err(Error::KeyReused),
            Earlier::Unreadable(cause) => Err(unreadable(cause)),
            Earlier::Answer(text) => {
                let id = text.parse().map_err(|_| unreadable(format!("{text:?} is no drop")))?;
                self.get(id).await.map(Some)
            }
        }
    }

    async fn insert(&self, id: DropId, new: &Create, key: Option<&IdempotencyKey>) -> Result<(), Error> {
        let mut bytes = [0; 32];
        rand::fill(&mut bytes).map_err(|_| Error::NoSeed)?;
        let seed = Seed::from_bytes(bytes);
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
                };
                store::insert(&mut tx, row);
                stock::create_in(&mut tx, id, new.stock, Some(&new.actor))?;
                if let Some(key) = key {
                    key.record(&mut tx, id.as_uuid(), &id.to_string());
                }
                Ok(tx.commit().await?)
            };
            match self.db.bounded(creating).await {
                // A row with our id is ours: the attempt before was committed and not acknowledged.
                Err(Error::Db(db::Error::Duplicate(_))) if self.find(id).await?.is_none() => {
                    Err(Error::NameTaken(new.name.clone()))
                }
                Err(Error::Db(db::Error::Duplicate(_))) => Ok(()),
                done => done,
            }
        })
        .await
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
        self.change(id, Change::Schedule, Condition::Anything, |drop, _| {
            (drop.opens_at, drop.closes_at) = (Some(opens_at), closes_at);
            Ok(Happened::Scheduled)
        })
        .await
    }

    /// Opens a drop now. Its seed is public from then on.
    pub async fn open(&self, id: DropId) -> Result<DropRecord, Error> {
        self.change(id, Change::Open, Condition::Anything, |drop, now| {
            drop.opened_at = Some(now);
            Ok(Happened::Opened)
        })
        .await
    }

    /// Stops admissions. Players keep their places, and more can join.
    pub async fn pause(&self, id: DropId) -> Result<DropRecord, Error> {
        self.change(id, Change::Pause, Condition::Anything, |_, _| Ok(Happened::Paused)).await
    }

    pub async fn resume(&self, id: DropId) -> Result<DropRecord, Error> {
        self.change(id, Change::Resume, Condition::Anything, |_, _| Ok(Happened::Resumed)).await
    }

    /// Ends a drop. Admissions that are in force end by their time.
    pub async fn close(&self, id: DropId, ending: Ending) -> Result<DropRecord, Error> {
        self.end(id, EndReason::Closed, ending.condition()).await
    }

    /// Gives a drop up.
    pub async fn cancel(&self, id: DropId, ending: Ending) -> Result<DropRecord, Error> {
        self.end(id, EndReason::Cancelled, ending.condition()).await
    }

    /// Ends a drop. Players who still wait are notified by [`Room::end_waiting`](crate::Room::end_waiting), in batches.
    async fn end(&self, id: DropId, reason: EndReason, condition: Condition) -> Result<DropRecord, Error> {
        let (change, happened) = match reason {
            EndReason::Closed | EndReason::SoldOut => (Change::Close, Happened::Closed),
            EndReason::Cancelled => (Change::Cancel, Happened::Cancelled),
        };
        self.change(id, change, condition, |drop, now| {
            (drop.closed_at, drop.end_reason) = (Some(now), Some(reason));
            Ok(happened)
        })
        .await
    }

    /// Changes the terms. Order and lanes are fixed once players can join, price and limit once the drop is open.
    pub async fn change_terms(&self, id: DropId, terms: &Terms) -> Result<DropRecord, Error> {
        terms.check().map_err(Error::Terms)?;
        self.change(id, Change::Terms, Condition::Anything, |drop, _| {
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

    /// Changes how fast players are admitted, also while the drop is open. The next cycle keeps to it.
    pub async fn set_pace(&self, id: DropId, pace: Pace) -> Result<DropRecord, Error> {
        self.change(id, Change::Terms, Condition::Anything, |drop, _| {
            let admission = &mut drop.terms.admission;
            admission.batch = pace.batch.unwrap_or(admission.batch);
            admission.period = pace.period.unwrap_or(admission.period);
            admission.capacity = pace.capacity.unwrap_or(admission.capacity);
            drop.terms.check().map_err(Error::Terms)?;
            Ok(Happened::Changed)
        })
        .await
    }

    /// Sets the message to those who wait, or removes it.
    pub async fn set_message(&self, id: DropId, message: Option<&str>) -> Result<DropRecord, Error> {
        self.change(id, Change::Terms, Condition::Anything, |drop, _| {
            drop.terms.message = message.map(str::to_owned);
            drop.terms.check().map_err(Error::Terms)?;
            Ok(Happened::Changed)
        })
        .await
    }

    /// Turns the emergency switch on or off: while it is on, nobody is admitted. Those who are inside stay.
    pub async fn everyone_waits(&self, id: DropId, is_on: bool) -> Result<DropRecord, Error> {
        self.change(id, Change::EveryoneWaits, Condition::Anything, |drop, _| {
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
    ///
    /// A drop that cannot be opened does not hold up the others. Its error is logged, and the first one is returned at the end.
    pub async fn open_due(&self) -> Result<usize, Error> {
        let mut changes = Changes::new("open");
        for id in store::due_to_open(&self.db).await? {
            changes.note(id, self.open(id).await);
        }
        changes.result()
    }

    /// Closes the open drops whose time has come, and those that are sold out and close then. Returns how many. As
    /// [`open_due`](Self::open_due), it goes on after a drop that fails.
    pub async fn close_due(&self) -> Result<usize, Error> {
        let mut changes = Changes::new("close");
        for id in store::due_to_close(&self.db).await? {
            changes.note(id, self.end(id, EndReason::Closed, Condition::Anything).await);
        }
        for id in store::sold_out(&self.db).await? {
            changes.note(id, self.close_sold_out(id).await);
        }
        changes.result()
    }

    async fn close_sold_out(&self, id: DropId) -> Result<DropRecord, Error> {
        let drop = self.get(id).await?;
        let (state, change) = (drop.state, Change::Close);
        match drop.terms.when_sold_out {
            WhenSoldOut::StayOpen => Err(Error::WrongState { state, change }),
            WhenSoldOut::Close => self.end(id, EndReason::SoldOut, Condition::AllSold).await,
        }
    }

    /// Changes a drop under its head, with its event.
    async fn change(
        &self,
        id: DropId,
        change: Change,
        condition: Condition,
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
                if !condition.holds(&mut tx, id).await? {
                    return Err(Error::WrongState { state, change });
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

impl Ending {
    const fn condition(self) -> Condition {
        match self {
            Self::WithoutReservations => Condition::NothingReserved,
            Self::Forced => Condition::Anything,
        }
    }
}

impl Condition {
    /// Returns whether it is true. Fails with [`Error::OpenReservations`] while units are reserved that must not be.
    async fn holds(self, tx: &mut Tx, drop: DropId) -> Result<bool, Error> {
        if self == Self::Anything {
            return Ok(true);
        }
        let (available, reserved) = store::unsold(tx, drop).await?;
        match self {
            Self::NothingReserved if reserved > 0 => Err(Error::OpenReservations(reserved)),
            Self::AllSold => Ok(available + reserved == 0),
            Self::NothingReserved | Self::Anything => Ok(true),
        }
    }
}

/// Due changes of several drops, of which one may fail.
struct Changes {
    step: &'static str,
    done: usize,
    failed: Option<Error>,
}

impl Changes {
    const fn new(step: &'static str) -> Self {
        Self { step, done: 0, failed: None }
    }

    fn note(&mut self, drop: DropId, changed: Result<DropRecord, Error>) {
        match changed {
            Ok(_) => self.done += 1,
            // Another process was faster, or it is not due any more.
            Err(Error::WrongState { .. } | Error::NoSuchDrop(_)) => {}
            Err(error) => {
                let (step, cause) = (self.step, base::error::chain(&error));
                if error.is_passing() {
                    tracing::warn!(outage = step, %drop, step, cause, "a drop that is due cannot be changed");
                } else {
                    tracing::error!(%drop, step, cause, "a drop that is due cannot be changed");
                }
                self.failed.get_or_insert(error);
            }
        }
    }

    fn result(self) -> Result<usize, Error> {
        self.failed.map_or(Ok(self.done), Err)
    }
}

impl Create {
    fn check(&self) -> Result<(), Error> {
        for (field, text, max) in [
            ("name", &self.name, MAX_NAME),
            ("resource", &self.resource, MAX_RESOURCE),
            ("actor", &self.actor, MAX_NAME),
        ] {
            check::text(field, text, max)?;
        }
        check::units("stock", self.stock)?;
        self.terms.check().map_err(Error::Terms)
    }
}
