//! What becomes of a user's entries, reservations and orders when the user is erased.

mod store;

use account::{OnErase, UserId};
use db::Tx;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::Error;
use crate::orders;
use crate::stock::{self, Movement, ReservationState, Stock};

/// Erases what drops keep of a user, in the transaction that erases them.
///
/// Entries are removed and held units become available. Rows of ended reservations and of orders stay without the user, since the counts
/// of the stock are made of them. A payment that must be refunded keeps the provider's name for it; all others lose it.
///
/// Joins and reserves that are under way bring nothing back. A join decides under the head of its drop, a reserve under the lock of its stock.
/// Both locks are held here: the request was committed before and is found, or comes after and is refused.
#[derive(Clone, Debug)]
pub struct EraseFromDrops {
    stock: Stock,
}

impl EraseFromDrops {
    pub const fn new(stock: Stock) -> Self {
        Self { stock }
    }

    async fn erase_all(&self, tx: &mut Tx, user: UserId) -> Result<(), Error> {
        crate::store::lock_running_heads(tx).await?;
        // Nobody is admitted any more while the heads are held, so these are all drops in which the user can reserve.
        let mut stocks = Vec::new();
        for drop in store::drops_of(tx, user).await? {
            stocks.push((drop, stock::lock(tx, drop).await?));
        }
        crate::store::erase(tx, user).await?;
        orders::store::forget_user(tx, user).await?;
        let mut held = stock::store::of_user(tx, user).await?;
        held.retain(|reservation| reservation.state == ReservationState::Held);
        let ids: Vec<_> = held.iter().map(|reservation| reservation.id).collect();
        stock::store::end(tx, &ids, ReservationState::Released).await?;
        store::forget_user(tx, user).await?;
        for (drop, mut stock) in stocks {
            for reservation in held.iter().filter(|reservation| reservation.drop == drop) {
                let movement = Movement::Release(reservation.quantity);
                stock::require(stock.move_units(movement, Some(reservation.id)), drop)?;
            }
            self.stock.save(tx, drop, stock);
        }
        Ok(())
    }
}

impl OnErase for EraseFromDrops {
    fn erase<'a>(&'a self, tx: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), account::Error>> {
        let erasing = self.erase_all(tx, user);
        let said = |error| match error {
            // Kept as it is: the erasure is tried again if it met another transaction.
            Error::Db(error) => account::Error::Db(error),
            error => account::Error::on_erase(error),
        };
        async move { erasing.await.map_err(said) }.boxed()
    }
}
