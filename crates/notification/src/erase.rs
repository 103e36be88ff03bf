//! Removes the inbox of a user who is erased.

use account::{OnErase, UserId};
use db::Tx;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::deliver::Deliveries;
use crate::store;

/// Removes the inbox of a user with the user, and keeps it empty: later events do not notify the user.
#[derive(Clone, Debug)]
pub struct EraseInbox(Deliveries);

impl EraseInbox {
    pub fn new(deliveries: Deliveries) -> Self {
        Self(deliveries)
    }

    async fn erase_inbox(&self, tx: &mut Tx, user: UserId) -> Result<(), account::Error> {
        let user = *user.as_uuid();
        store::erase(tx, user).await?;
        self.0.erase(tx, user).await?;
        // Last, because a delivery that failed in the meantime has added its dead letter.
        Ok(store::erase_dead_letters(tx, user).await?)
    }
}

impl OnErase for EraseInbox {
    fn erase<'a>(&'a self, tx: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), account::Error>> {
        self.erase_inbox(tx, user).boxed()
    }
}
