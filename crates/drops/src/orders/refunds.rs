//! Payments that operators must refund.

use base::{Timestamp, page};

use super::model::Order;
use super::{Orders, clamp_limit, store};
use crate::error::Error;
use crate::{DropId, OrderId};

/// A payment that an operator must refund.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundDue {
    pub order: Order,
    /// The provider's id of the payment: the order's own, or a surplus one.
    pub payment: String,
    /// Whether another payment has paid for the order. If not, no units could be delivered.
    pub is_surplus: bool,
    pub since: Timestamp,
}

/// Which refunds to list, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRefunds {
    /// Only payments for orders of this drop.
    pub drop: Option<DropId>,
    pub after: Option<RefundKey>,
    pub limit: u32,
}

/// The place of a refund in the list, after which the next page begins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RefundKey {
    pub(super) since: Timestamp,
    pub(super) order: OrderId,
    /// The surplus payment. Empty for the order's own payment, which comes first.
    pub(super) surplus: String,
}

/// A page of due refunds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefundPage {
    pub refunds: Vec<RefundDue>,
    /// Where the next page begins, if there is one.
    pub next: Option<RefundKey>,
}

impl RefundKey {
    fn of(due: &RefundDue) -> Self {
        let surplus = if due.is_surplus { due.payment.clone() } else { String::new() };
        Self { since: due.since, order: due.order.id, surplus }
    }

    /// Writes the key as it is in responses. Escape it in URLs: the payment may have any characters.
    pub fn to_text(&self) -> String {
        format!("{}.{}.{}", self.since.as_millis(), self.order, self.surplus)
    }

    /// Reads a key from a request.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let since = Timestamp::from_millis(parts.next()?.parse().ok()?);
        Some(Self { since, order: parts.next()?.parse().ok()?, surplus: parts.next()?.to_owned() })
    }
}

impl Orders {
    /// Lists the payments that operators must refund, the oldest first. A payment leaves the list with the provider's refund webhook, or with
    /// [`settle_refund`](Self::settle_refund).
    pub async fn refunds_due(&self, which: &ListRefunds) -> Result<RefundPage, Error> {
        let limit = clamp_limit(which.limit);
        let rows = page::rows_to_read(limit);
        let reading = async {
            let mut connection = self.transactions.db.connection().await?;
            let mut due = store::own_refunds_due(&mut connection, which, rows).await?;
            due.extend(store::surplus_due(&mut connection, which, rows).await?);
            Ok::<_, Error>(due)
        };
        let mut refunds = self.transactions.db.bounded(reading).await?;
        refunds.sort_by_cached_key(RefundKey::of);
        let next = page::next_page(&mut refunds, limit, RefundKey::of);
        Ok(RefundPage { refunds, next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_page_survives_its_text() {
        for surplus in ["", "pay_2", "pay.with.dots and blanks"] {
            let (since, order) = (Timestamp::from_millis(17), OrderId::generate());
            let key = RefundKey { since, order, surplus: surplus.to_owned() };
            assert_eq!(RefundKey::parse(&key.to_text()), Some(key));
        }
        for bad in ["", "17", "17.x.", "x.0198c0de-0000-7000-8000-000000000001."] {
            assert_eq!(RefundKey::parse(bad), None, "{bad:?}");
        }
    }
}
