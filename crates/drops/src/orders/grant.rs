//! Grants and revokes the entitlements that orders pay for.

use base::Timestamp;
use db::Tx;
use entitlement::{Action, Change, Holding, NewRequest};

use super::OrderTransactions;
use super::model::Order;
use super::sell::{GrantResult, LockedOrder};
use crate::error::Error;
use crate::stock::Sale;

/// Our caller name in the entitlement service.
const CALLER: &str = "drops";

impl OrderTransactions {
    /// Grants the units of orders of one drop, with one query for all of them. Sets `granted_at` of the orders whose units were granted.
    pub(super) async fn grant_units(
        &self,
        tx: &mut Tx,
        locked_orders: &mut [LockedOrder],
        sale: &Sale,
        at: Timestamp,
    ) -> Result<Vec<GrantResult>, Error> {
        let request = |LockedOrder { order, trace, .. }: &LockedOrder| NewRequest {
            key: format!("{}-paid", order.id),
            changes: vec![grant(order, sale, at)],
            traceparent: trace.clone(),
        };
        let requests: Vec<NewRequest> = locked_orders.iter().map(request).collect();
        let answers = self.entitlements.apply_each_in(tx, CALLER, &requests).await?;
        let granted = locked_orders.iter_mut().zip(answers).map(|(locked, answer)| match answer {
            Ok(_) => {
                locked.order.granted_at = Some(at);
                Ok(GrantResult::Granted)
            }
            Err(entitlement::Error::Superseded(newest)) => Ok(GrantResult::Superseded(newest)),
            Err(error) => Ok(GrantResult::Refused(refusal(error)?)),
        });
        granted.collect()
    }

    /// Revokes the units of an order as of the time they were granted, so that nothing revoked since then is revoked again. Revokes at most
    /// the units that the account still has. Returns false if it has none: they were already revoked, the user was erased, or the resource
    /// was granted anew without a quantity.
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

/// Builds the grant of a paid order. Units are counted, so that a refund revokes exactly what its order granted.
pub(super) fn grant(order: &Order, sale: &Sale, at: Timestamp) -> Change {
    Change {
        holding: Holding { user: order.user, account: order.account, resource: sale.resource.clone() },
        action: Action::Grant { quantity: Some(order.quantity), valid_until: None },
        occurred_at: at,
        reference: Some(order.id.to_string()),
    }
}

/// Returns the error if it is permanent. Fails with any other, so that the request is retried.
fn refusal(error: entitlement::Error) -> Result<entitlement::Error, Error> {
    match error {
        entitlement::Error::NoAccount(_)
        | entitlement::Error::Counted
        | entitlement::Error::NotCounted
        | entitlement::Error::Invalid { .. } => Ok(error),
        _ => Err(error.into()),
    }
}
