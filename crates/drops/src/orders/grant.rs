//! What an order does to the entitlement of the buyer's account.

use base::Timestamp;
use db::Tx;
use entitlement::{Action, Change, Holding, NewRequest};

use super::Recorder;
use super::model::Order;
use super::sell::{Case, Granted};
use crate::error::Error;
use crate::stock::Sale;

/// The name under which entitlements know us.
const CALLER: &str = "drops";

impl Recorder {
    /// Grants the units of orders of one drop, with one query for all of them. Notes the time in those that are granted.
    pub(super) async fn grant_units(
        &self,
        tx: &mut Tx,
        cases: &mut [Case],
        sale: &Sale,
        at: Timestamp,
    ) -> Result<Vec<Granted>, Error> {
        let request = |Case { order, trace, .. }: &Case| NewRequest {
            key: format!("{}-paid", order.id),
            changes: vec![grant(order, sale, at)],
            traceparent: trace.clone(),
        };
        let requests: Vec<NewRequest> = cases.iter().map(request).collect();
        let answers = self.entitlements.apply_each_in(tx, CALLER, &requests).await?;
        let granted = cases.iter_mut().zip(answers).map(|(case, answer)| match answer {
            Ok(_) => {
                case.order.granted_at = Some(at);
                Ok(Granted::Yes)
            }
            Err(entitlement::Error::Superseded(newest)) => Ok(Granted::Superseded(newest)),
            Err(error) => Ok(Granted::Refused(refusal(error)?)),
        });
        granted.collect()
    }

    /// Revokes the units of an order, as of the time at which they were granted: what was revoked since then is not revoked again. Takes
    /// at most the units that the account still has. Returns false if it has none of them: they were revoked before, the user was
    /// erased, or the resource was granted anew in a way that does not count.
    pub(super) async fn revoke_units(
        &self,
        tx: &mut Tx,
        order: &Order,
        sale: &Sale,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let granted = grant(order, sale, order.granted_at.unwrap_or(now));
        let left = self.entitlements.balance_in(tx, &granted.holding).await?.unwrap_or_default();
        if left == 0 {
            return Ok(false);
        }
        let quantity = Some(left.min(order.quantity));
        let revoke = Change { action: Action::Revoke { quantity }, ..granted };
        let key = format!("{}-refunded", order.id);
        let answer = self.entitlements.apply_in(tx, CALLER, &key, &[revoke]).await?;
        Ok(answer.results()?.iter().all(|result| result["effect"] != "superseded"))
    }
}

/// What a paid order gives. Units are counted, so that a refund takes back what its order gave and nothing else.
pub(super) fn grant(order: &Order, sale: &Sale, at: Timestamp) -> Change {
    Change {
        holding: Holding { user: order.user, account: order.account, resource: sale.resource.clone() },
        action: Action::Grant { quantity: Some(order.quantity), valid_until: None },
        occurred_at: at,
        reference: Some(order.id.to_string()),
    }
}

/// Returns an error that no repetition changes. Fails with any other.
fn refusal(error: entitlement::Error) -> Result<entitlement::Error, Error> {
    match error {
        entitlement::Error::NoAccount(_)
        | entitlement::Error::Counted
        | entitlement::Error::NotCounted
        | entitlement::Error::Invalid { .. } => Ok(error),
        _ => Err(error.into()),
    }
}
