//! What becomes of entitlements when their user is erased.

use account::{OnErase, UserId};
use base::Clock;
use bus::EventId;
use db::Tx;
use futures::FutureExt;
use futures::future::BoxFuture;
use outbox::Outbox;

use crate::Error;
use crate::ledger::{self, DecidedRequest};
use crate::model::{Action, Change};
use crate::store::{self, Decided};

/// How many are written by one message: few, since servers take no large ones.
const AT_ONCE: usize = 100;

/// Revokes everything that an erased user has, in the transaction that erases them.
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
                // A purchase may have come from a shop whose clock is ahead.
                occurred_at: now.max(before.as_of),
                reference: None,
            };
            let (after, effect) = change.apply(Some(&before))?;
            // Nobody has asked whether there are events before it.
            let is_told = false;
            Ok::<_, Error>(Decided { change, after, effect, event: Some(EventId::generate()), is_told })
        };
        let active = store::active_of_user(tx, user).await?;
        let decided = active.into_iter().map(revoke).collect::<Result<Vec<_>, _>>()?;
        for some in decided.chunks(AT_ONCE) {
            store::save(tx, some.iter().map(|decided| (&decided.change.holding, &decided.after)));
            let decided = DecidedRequest { caller: "erase", decided: some, traceparent: None };
            ledger::write(tx, &self.outbox, &[decided], now)?;
            tx.write().await?;
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
