//! The payment provider, as the configuration names it.

use url::Url;

use crate::config::PaymentConfig;
use crate::orders::Order;
use crate::payment::Payments;

/// The payment provider: where players pay, and what verifies its webhooks. Cheap to clone; clones share the keys.
#[derive(Clone, Debug)]
pub struct PaymentProvider {
    payments: Option<Payments>,
    checkout_url: Option<Url>,
}

impl PaymentProvider {
    pub fn new(config: &PaymentConfig) -> Self {
        let payments = config.secrets.clone().map(|verifier| Payments::new(verifier, config.tolerance));
        Self { payments, checkout_url: config.checkout_url.clone() }
    }

    /// Returns what reads webhooks. None if no keys are configured: then no webhook can be trusted.
    pub const fn payments(&self) -> Option<&Payments> {
        self.payments.as_ref()
    }

    /// Returns where the player pays for an order. None if no checkout is configured: the game sends the player to its own.
    pub fn checkout(&self, order: &Order) -> Option<Url> {
        let mut url = self.checkout_url.clone()?;
        url.query_pairs_mut()
            .append_pair("order_id", &order.id.to_string())
            .append_pair("amount", &order.amount.to_string())
            .append_pair("currency", &order.currency);
        Some(url)
    }
}
