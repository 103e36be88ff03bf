//! Reserves that arrive together.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, RwLock};

use account::{AccountId, UserId};
use base::Timestamp;
use base::id::Uuid;
use db::{Db, Earlier, Fingerprint, IdempotencyKey};
use runtime::fault;
use serde::{Deserialize, Serialize};

use super::model::{Admitted, Movement, Reservation, ReservationState, Sale};
use super::store::{self, KnownPlayer, LockedStock};
use super::{Listener, earlier, save};
use crate::error::Error;
use crate::{DropId, ReservationId};

/// A reserve that waits for its group.
#[derive(Clone, Debug)]
pub(super) struct Request {
    admitted: Admitted,
    /// At least 1.
    quantity: i64,
    key: IdempotencyKey,
}

impl Request {
    pub(super) fn new(admitted: Admitted, quantity: i64, key: &str) -> Result<Self, Error> {
        if quantity < 1 {
            return Err(Error::Invalid { field: "quantity", what: format!("is at least 1, not {quantity}") });
        }
        let request = Fingerprint::of("drops.reserve").id(admitted.drop.as_uuid()).integer(quantity);
        let key = IdempotencyKey::new(&format!("drops.reserve/{}", admitted.user), key, request)?;
        Ok(Self { admitted, quantity, key })
    }
}

/// The answer as it is recorded under the key.
#[derive(Serialize, Deserialize)]
struct Answer {
    reservation: Uuid,
    account: Uuid,
    quantity: i64,
    reserved_at: i64,
    expires_at: i64,
}

impl Answer {
    fn of(reservation: &Reservation) -> Self {
        Self {
            reservation: *reservation.id.as_uuid(),
            account: *reservation.account.as_uuid(),
            quantity: reservation.quantity,
            reserved_at: reservation.reserved_at.as_millis(),
            expires_at: reservation.expires_at.as_millis(),
        }
    }

    fn reservation(&self, admitted: Admitted) -> Reservation {
        Reservation {
            id: ReservationId::from_uuid(self.reservation),
            drop: admitted.drop,
            user: admitted.user,
            account: AccountId::from_uuid(self.account),
            state: ReservationState::Held,
            quantity: self.quantity,
            confirmed: 0,
            reserved_at: Timestamp::from_millis(self.reserved_at),
            expires_at: Timestamp::from_millis(self.expires_at),
        }
    }
}

#[derive(Clone)]
pub(super) struct Reserver {
    pub(super) db: Db,
    pub(super) listeners: Arc<RwLock<Vec<Listener>>>,
}

impl Reserver {
    /// Answers requests in their order. Those of one drop share a transaction.
    pub(super) async fn reserve_all(&self, requests: Vec<Request>) -> Vec<Result<Reservation, Error>> {
        let mut by_drop: BTreeMap<DropId, Vec<usize>> = BTreeMap::new();
        for (at, request) in requests.iter().enumerate() {
            by_drop.entry(request.admitted.drop).or_default().push(at);
        }
        let mut answers: Vec<Result<Reservation, Error>> =
            requests.iter().map(|_| Err(Error::NoAnswer)).collect();
        for (drop, places) in by_drop {
            let group: Vec<Request> = places.iter().map(|at| requests[*at].clone()).collect();
            let reserving = || self.db.bounded(self.reserve_group(drop, &group));
            match db::retrying(Error::is_conflict, reserving).await {
                Ok(group) => {
                    places.into_iter().zip(group).for_each(|(at, answer)| answers[at] = answer);
                }
                Err(error) => {
                    let error = Arc::new(error);
                    places.into_iter().for_each(|at| answers[at] = Err(Error::Batch(error.clone())));
                }
            }
        }
        answers
    }

    /// Seven round trips at most, however many requests there are: begin, lock, the drop, what is known of the players, what is known of the
    /// keys, the players who arrive, commit.
    async fn reserve_group(
        &self,
        drop: DropId,
        requests: &[Request],
    ) -> Result<Vec<Result<Reservation, Error>>, Error> {
        let mut tx = self.db.begin().await?;
        let Some((stock, sale)) = LockedStock::lock_with_sale(&mut tx, drop).await? else {
            return Ok(requests.iter().map(|_| Err(Error::NoSuchDrop(drop))).collect());
        };
        let mut users: Vec<UserId> = requests.iter().map(|request| request.admitted.user).collect();
        users.sort_unstable();
        users.dedup();
        let players = store::know(&mut tx, drop, &users).await?;
        let keys: Vec<IdempotencyKey> = requests.iter().map(|request| request.key).collect();
        let known = IdempotencyKey::earlier_of(&mut tx, &keys).await?;
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
            store::arrive(&mut tx, drop, &arriving, first.reserved_at, sale.lifetime).await?;
        }
        let reservations: Vec<Reservation> = reserved.iter().map(|(_, reservation)| *reservation).collect();
        store::add(&mut tx, &reservations);
        let texts = reserved.iter().map(|(_, reservation)| serde_json::to_string(&Answer::of(reservation)));
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        let recorded = reserved.iter().zip(&texts);
        let recorded =
            recorded.map(|((key, reservation), text)| (key, reservation.user.as_uuid(), text.as_str()));
        IdempotencyKey::record_all(&mut tx, recorded);
        save(&self.listeners, &mut tx, drop, stock);
        fault::point("drops.reserve.uncommitted");
        tx.commit().await?;
        fault::point("drops.reserve.committed");
        Ok(answers)
    }
}

/// A group of reserves of one drop, while it is decided on.
struct Group<'a> {
    db: &'a Db,
    sale: Sale,
    stock: LockedStock,
    players: HashMap<UserId, KnownPlayer>,
    /// What this group has answered, by the hash of the key.
    done: HashMap<[u8; 32], (IdempotencyKey, Reservation)>,
    /// Players who use their admission for the first time.
    arriving: Vec<UserId>,
    reserved: Vec<(IdempotencyKey, Reservation)>,
}

impl Group<'_> {
    fn decide(&mut self, request: &Request, known: Earlier) -> Result<Reservation, Error> {
        let Request { admitted, quantity, key } = request;
        match self.done.get(key.hash()) {
            Some((same, reservation)) if same == key => return Ok(*reservation),
            Some(_) => return Err(Error::KeyReused),
            None => {}
        }
        // An answer under the key stands, whatever has become of the admission and the drop since.
        if let Some(answer) = earlier::<Answer>(self.db, key, known)? {
            return Ok(answer.reservation(*admitted));
        }
        let Sale { is_open, limit, hold, .. } = self.sale;
        if !is_open {
            return Err(Error::NotOpen(admitted.drop));
        }
        let player = self.players.get_mut(&admitted.user).ok_or(Error::NotAdmitted)?;
        let admission = player.admission.filter(|admission| admission.id == admitted.admission);
        if admission.ok_or(Error::NotAdmitted)?.has_ended {
            return Err(Error::AdmissionEnded);
        }
        if *quantity > limit - player.units {
            return Err(Error::OverLimit { limit, taken: player.units });
        }
        let reservation = Reservation {
            id: ReservationId::generate(),
            drop: admitted.drop,
            user: admitted.user,
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
            self.arriving.push(admitted.user);
        }
        let hash: [u8; 32] = key.hash().try_into().unwrap_or_default();
        self.done.insert(hash, (*key, reservation));
        self.reserved.push((*key, reservation));
        Ok(reservation)
    }
}
