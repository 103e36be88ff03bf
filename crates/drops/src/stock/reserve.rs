//! Decides on concurrent reserves of a drop in one transaction.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, RwLock};

use account::{AccountId, UserId};
use base::Timestamp;
use base::id::Uuid;
use db::{Db, IdempotencyKey, KeyLookup, RequestFingerprint};
use runtime::fault;
use serde::{Deserialize, Serialize};

use super::model::{Movement, Reservation, ReservationState, Sale, VerifiedAdmission};
use super::store::{self, LockedStock, ReservingPlayer};
use super::{StockObserver, recorded_response, save};
use crate::error::Error;
use crate::{DropId, ReservationId};

/// A reserve that waits for its batch.
#[derive(Clone, Debug)]
pub(super) struct PendingReserve {
    verified: VerifiedAdmission,
    /// At least 1.
    quantity: i64,
    key: IdempotencyKey,
}

impl PendingReserve {
    pub(super) fn new(verified: VerifiedAdmission, quantity: i64, key: &str) -> Result<Self, Error> {
        if quantity < 1 {
            return Err(Error::Invalid {
                field: "quantity",
                what: format!("must be at least 1, not {quantity}"),
            });
        }
        let request = RequestFingerprint::new("drops.reserve").id(verified.drop.as_uuid()).integer(quantity);
        let key = IdempotencyKey::new(&format!("drops.reserve/{}", verified.user), key, request)?;
        Ok(Self { verified, quantity, key })
    }
}

/// The response as it is recorded with the idempotency key.
#[derive(Serialize, Deserialize)]
struct RecordedResponse {
    reservation: Uuid,
    account: Uuid,
    quantity: i64,
    reserved_at: i64,
    expires_at: i64,
}

impl RecordedResponse {
    fn new(reservation: &Reservation) -> Self {
        Self {
            reservation: *reservation.id.as_uuid(),
            account: *reservation.account.as_uuid(),
            quantity: reservation.quantity,
            reserved_at: reservation.reserved_at.as_millis(),
            expires_at: reservation.expires_at.as_millis(),
        }
    }

    fn reservation(&self, verified: VerifiedAdmission) -> Reservation {
        Reservation {
            id: ReservationId::from_uuid(self.reservation),
            drop: verified.drop,
            user: verified.user,
            account: AccountId::from_uuid(self.account),
            state: ReservationState::Held,
            quantity: self.quantity,
            confirmed: 0,
            reserved_at: Timestamp::from_millis(self.reserved_at),
            expires_at: Timestamp::from_millis(self.expires_at),
        }
    }
}

/// Runs the transactions of reserves.
#[derive(Clone)]
pub(super) struct Reserver {
    pub(super) db: Db,
    pub(super) observers: Arc<RwLock<Vec<StockObserver>>>,
}

impl Reserver {
    /// Decides on requests in order. Requests for one drop share a transaction.
    pub(super) async fn reserve_all(&self, requests: Vec<PendingReserve>) -> Vec<Result<Reservation, Error>> {
        let mut by_drop: BTreeMap<DropId, Vec<usize>> = BTreeMap::new();
        for (at, request) in requests.iter().enumerate() {
            by_drop.entry(request.verified.drop).or_default().push(at);
        }
        let mut answers: Vec<Result<Reservation, Error>> =
            requests.iter().map(|_| Err(Error::NoBatchResult)).collect();
        for (drop, indices) in by_drop {
            let group: Vec<PendingReserve> = indices.iter().map(|at| requests[*at].clone()).collect();
            let reserving = || self.db.bounded(self.reserve_group(drop, &group));
            match db::retry_conflicts(Error::is_conflict, reserving).await {
                Ok(group) => {
                    indices.into_iter().zip(group).for_each(|(at, answer)| answers[at] = answer);
                }
                Err(error) => {
                    let error = Arc::new(error);
                    indices.into_iter().for_each(|at| answers[at] = Err(Error::Batch(error.clone())));
                }
            }
        }
        answers
    }

    /// Decides on the requests for one drop. It takes at most seven round trips, however many requests there are: begin, lock, the drop, the
    /// players, the idempotency keys, the arriving players, commit.
    async fn reserve_group(
        &self,
        drop: DropId,
        requests: &[PendingReserve],
    ) -> Result<Vec<Result<Reservation, Error>>, Error> {
        let mut tx = self.db.begin().await?;
        let Some((stock, sale)) = LockedStock::lock_with_sale(&mut tx, drop).await? else {
            return Ok(requests.iter().map(|_| Err(Error::NoSuchDrop(drop))).collect());
        };
        let mut users: Vec<UserId> = requests.iter().map(|request| request.verified.user).collect();
        users.sort_unstable();
        users.dedup();
        let players = store::reserving_players(&mut tx, drop, &users).await?;
        let keys: Vec<IdempotencyKey> = requests.iter().map(|request| request.key).collect();
        let known = IdempotencyKey::look_up_all(&mut tx, &keys).await?;
        let mut group = Group {
            db: &self.db,
            sale,
            stock,
            players: players.into_iter().map(|player| (player.user, player)).collect(),
            done: HashMap::new(),
            arriving: Vec::new(),
            reserved: Vec::new(),
        };
        let answers: Vec<_> =
            requests.iter().zip(known).map(|(request, known)| group.decide(request, known)).collect();
        let Group { sale, stock, arriving, reserved, .. } = group;
        let Some((_, first)) = reserved.first() else {
            tx.rollback().await?;
            return Ok(answers);
        };
        if !arriving.is_empty() {
            store::mark_arrived(&mut tx, drop, &arriving, first.reserved_at, sale.lifetime).await?;
        }
        let reservations: Vec<Reservation> = reserved.iter().map(|(_, reservation)| *reservation).collect();
        store::add(&mut tx, &reservations);
        let texts = reserved
            .iter()
            .map(|(_, reservation)| serde_json::to_string(&RecordedResponse::new(reservation)));
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        let recorded = reserved.iter().zip(&texts);
        let recorded =
            recorded.map(|((key, reservation), text)| (key, reservation.user.as_uuid(), text.as_str()));
        IdempotencyKey::record_all(&mut tx, recorded);
        save(&self.observers, &mut tx, drop, stock);
        fault::point("drops.reserve.uncommitted");
        tx.commit().await?;
        fault::point("drops.reserve.committed");
        Ok(answers)
    }
}

/// A group of reserves of one drop, while they are decided.
struct Group<'a> {
    db: &'a Db,
    sale: Sale,
    stock: LockedStock,
    players: HashMap<UserId, ReservingPlayer>,
    /// The results of this group so far, by the hash of the key.
    done: HashMap<[u8; 32], (IdempotencyKey, Reservation)>,
    /// Players who use their admission for the first time.
    arriving: Vec<UserId>,
    reserved: Vec<(IdempotencyKey, Reservation)>,
}

impl Group<'_> {
    fn decide(&mut self, request: &PendingReserve, known: KeyLookup) -> Result<Reservation, Error> {
        let PendingReserve { verified, quantity, key } = request;
        match self.done.get(key.hash()) {
            Some((same, reservation)) if same == key => return Ok(*reservation),
            Some(_) => return Err(Error::KeyReused),
            None => {}
        }
        // A recorded response stands, whatever happened to the admission and the drop since.
        if let Some(answer) = recorded_response::<RecordedResponse>(self.db, key, known)? {
            return Ok(answer.reservation(*verified));
        }
        let Sale { is_open, limit, hold, .. } = self.sale;
        if !is_open {
            return Err(Error::NotOpen(verified.drop));
        }
        let player = self.players.get_mut(&verified.user).ok_or(Error::NotAdmitted)?;
        let admission = player.admission.filter(|admission| admission.id == verified.admission);
        if admission.ok_or(Error::NotAdmitted)?.has_ended {
            return Err(Error::AdmissionEnded);
        }
        if *quantity > limit - player.units {
            return Err(Error::OverLimit { limit, taken: player.units });
        }
        let reservation = Reservation {
            id: ReservationId::generate(),
            drop: verified.drop,
            user: verified.user,
            account: player.account,
            state: ReservationState::Held,
            quantity: *quantity,
            confirmed: 0,
            reserved_at: player.now,
            expires_at: player.now.after(hold),
        };
        if !self.stock.move_units(Movement::Reserve(*quantity), Some(reservation.id)) {
            return Err(Error::SoldOut { available: self.stock.levels().available });
        }
        player.units += quantity;
        if !player.has_arrived {
            player.has_arrived = true;
            self.arriving.push(verified.user);
        }
        let hash: [u8; 32] = key.hash().try_into().unwrap_or_default();
        self.done.insert(hash, (*key, reservation));
        self.reserved.push((*key, reservation));
        Ok(reservation)
    }
}
