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
#[derive(Clone, Debug)]
pub struct EraseFromDrops {
    stock: Stock,
}

impl EraseFromDrops {
    pub const fn new(stock: Stock) -> Self {
        Self { stock }
    }

    async fn erase_all(&self, tx: &mut Tx, user: UserId) -> Result<(), Error> {
        orders::store::forget_user(tx, user).await?;
        let mut held = stock::store::of_user(tx, user).await?;
        held.retain(|reservation| reservation.state == ReservationState::Held);
        // Stocks are locked in the order in which those lock them that expire reservations.
        held.sort_by_key(|reservation| (reservation.drop, reservation.id));
        let ids: Vec<_> = held.iter().map(|reservation| reservation.id).collect();
        stock::store::end(tx, &ids, ReservationState::Released).await?;
        store::forget_user(tx, user).await?;
        for of_drop in held.chunk_by(|one, next| one.drop == next.drop) {
            let drop = of_drop[0].drop;
            let mut stock = stock::lock(tx, drop).await?;
            for reservation in of_drop {
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
        async move { erasing.await.map_err(account::Error::on_erase) }.boxed()
    }
}
