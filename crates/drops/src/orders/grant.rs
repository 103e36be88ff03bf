//! What an order does to the entitlement of the buyer's account.

use base::Timestamp;
use db::Tx;
use entitlement::{Action, Change, Holding};
use serde_json::Value;

use super::Orders;
use super::model::Order;
use crate::error::Error;
use crate::stock::Sale;

/// The name under which entitlements know us.
const CALLER: &str = "drops";

/// Whether units were granted.
#[derive(Debug)]
pub(super) enum Granted {
    Yes,
    /// They never will be: the account is gone, or owns the resource in a way that does not count.
    Refused(entitlement::Error),
    /// Something newer than the grant is known. Repeat with a later time than this.
    Superseded(Timestamp),
}

impl Orders {
    /// Grants the units of an order. Notes the time in the order.
    pub(super) async fn grant_units(
        &self,
        tx: &mut Tx,
        order: &mut Order,
        sale: &Sale,
        at: Timestamp,
    ) -> Result<Granted, Error> {
        let key = format!("{}-paid", order.id);
        let granted = match self.entitlements.apply_in(tx, CALLER, &key, &[grant(order, sale, at)]).await {
            Ok(answer) => superseded_by(&answer.results()?)?.map_or(Granted::Yes, Granted::Superseded),
            Err(error) => Granted::Refused(refusal(error)?),
        };
        if matches!(granted, Granted::Yes) {
            order.granted_at = Some(at);
        }
        Ok(granted)
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
        Ok(superseded_by(&answer.results()?)?.is_none())
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

/// Returns the time of what superseded a change. None if the change was applied.
fn superseded_by(results: &[Value]) -> Result<Option<Timestamp>, Error> {
    let Some(superseded) = results.iter().find(|result| result["effect"] == "superseded") else {
        return Ok(None);
    };
    let as_of = superseded["entitlement"]["as_of"].as_str().and_then(|text| text.parse().ok());
    as_of.map(Some).ok_or(Error::UnreadableAnswer)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_superseded_grant_is_never_taken_for_a_grant() {
        let results =
            |effect: &str, as_of: Value| [json!({ "effect": effect, "entitlement": { "as_of": as_of } })];
        let at = Timestamp::from_millis(1_772_366_400_123);
        assert_eq!(superseded_by(&results("applied", json!(at.to_rfc3339()))).unwrap(), None);
        assert_eq!(superseded_by(&results("superseded", json!(at.to_rfc3339()))).unwrap(), Some(at));
        for unreadable in [json!("yesterday"), json!(7), json!(null)] {
            let refused = superseded_by(&results("superseded", unreadable));
            assert!(matches!(refused, Err(Error::UnreadableAnswer)), "{refused:?}");
        }
    }
}
