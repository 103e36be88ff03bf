//! Revokes the entitlements of erased users.

use account::{OnErase, UserId};
use base::Clock;
use bus::EventId;
use db::Tx;
use futures::FutureExt;
use futures::future::BoxFuture;
use outbox::Outbox;

use crate::Error;
use crate::applier::{self, DecidedRequest};
use crate::model::{Action, Change};
use crate::store::{self, DecidedChange};

/// How many entitlements are written per round trip. Servers limit the size of a message.
const CHUNK: usize = 100;

/// Revokes all entitlements of a user in the transaction that erases the user.
#[derive(Clone, Debug)]
pub struct RevokeOnErase {
    outbox: Outbox,
    clock: Clock,
}

impl RevokeOnErase {
    pub fn new(outbox: Outbox, clock: Clock) -> Self {
        Self { outbox, clock }
    }

    async fn revoke_all(&self, tx: &mut Tx, user: UserId) -> Result<(), Error> {
        let now = self.clock.now();
        let revoke = |(holding, before): (_, crate::Entitlement)| {
            let change = Change {
                holding,
                action: Action::Revoke { quantity: None },
                // The clock of a shop may be ahead of ours.
                occurred_at: now.max(before.as_of),
                reference: None,
            };
            let (after, effect) = change.apply(Some(&before))?;
            let event = Some(EventId::generate());
            // Not looked up. False is always correct: the relay publishes the event after any earlier ones.
            Ok::<_, Error>(DecidedChange { change, after, effect, event, all_published: false })
        };
        let active = store::active_of_user(tx, user).await?;
        let decided = active.into_iter().map(revoke).collect::<Result<Vec<_>, _>>()?;
        for chunk in decided.chunks(CHUNK) {
            store::save(tx, chunk.iter().map(|decided| (&decided.change.holding, &decided.after)));
            let request = DecidedRequest { caller: "erase", decided: chunk, traceparent: None };
            applier::write(tx, &self.outbox, &[request], now)?;
            tx.flush().await?;
        }
        Ok(())
    }
}

impl OnErase for RevokeOnErase {
    fn erase<'a>(&'a self, tx: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), account::Error>> {
        let revoking = self.revoke_all(tx, user);
        async move { revoking.await.map_err(account::Error::on_erase) }.boxed()
    }
}
