//! Erases a user's entries, reservations and orders.

mod store;

use account::{OnErase, UserId};
use db::Tx;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::Error;
use crate::orders;
use crate::stock::{self, Movement, ReservationState, Stock};

/// Erases a user's data in drops, in the transaction that erases the user.
///
/// It removes entries and releases held units. The rows of ended reservations and of orders stay without the user, since the stock's counts
/// are their sums. A payment that must be refunded keeps the provider's id; all others lose it.
///
/// Joins and reserves in flight bring nothing back. A join decides while it holds the head of its drop, a reserve while it holds the lock of
/// its stock. Both locks are held here: the request either committed before and is found, or comes later and is refused.
#[derive(Clone, Debug)]
pub struct DropsEraser {
    stock: Stock,
}

impl DropsEraser {
    pub const fn new(stock: Stock) -> Self {
        Self { stock }
    }

    async fn erase_all(&self, tx: &mut Tx, user: UserId) -> Result<(), Error> {
        crate::store::lock_running_heads(tx).await?;
        // No player is admitted while the heads are held, so these are all drops in which the user can reserve.
        let mut stocks = Vec::new();
        for drop in store::drops_of(tx, user).await? {
            stocks.push((drop, stock::lock(tx, drop).await?));
        }
        crate::store::erase_user(tx, user).await?;
        orders::store::forget_user(tx, user).await?;
        let mut held = stock::store::lock_reservations_of_user(tx, user).await?;
        held.retain(|reservation| reservation.state == ReservationState::Held);
        let ids: Vec<_> = held.iter().map(|reservation| reservation.id).collect();
        stock::store::end(tx, &ids, ReservationState::Released).await?;
        store::forget_user(tx, user).await?;
        for (drop, mut stock) in stocks {
            for reservation in held.iter().filter(|reservation| reservation.drop == drop) {
                let movement = Movement::Release(reservation.quantity);
                stock::require_moved(stock.move_units(movement, Some(reservation.id)), drop)?;
            }
            self.stock.save(tx, drop, stock);
        }
        Ok(())
    }
}

impl OnErase for DropsEraser {
    fn erase<'a>(&'a self, tx: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), account::Error>> {
        let erasing = self.erase_all(tx, user);
        let convert = |error| match error {
            // Kept as it is, so that the erasure is retried after a conflict.
            Error::Db(error) => account::Error::Db(error),
            error => account::Error::on_erase(error),
        };
        async move { erasing.await.map_err(convert) }.boxed()
    }
}
