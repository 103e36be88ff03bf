//! The configured payment provider.

use url::Url;

use crate::config::PaymentConfig;
use crate::orders::Order;
use crate::payment::PaymentWebhooks;

/// The payment provider: its checkout URL and its webhook keys. Cheap to clone; clones share the keys.
#[derive(Clone, Debug)]
pub struct PaymentProvider {
    webhooks: Option<PaymentWebhooks>,
    checkout_url: Option<Url>,
}

impl PaymentProvider {
    pub fn new(config: &PaymentConfig) -> Self {
        let webhooks =
            config.secrets.clone().map(|verifier| PaymentWebhooks::new(verifier, config.tolerance));
        Self { webhooks, checkout_url: config.checkout_url.clone() }
    }

    /// Returns the webhook parser. None if no keys are configured: then no webhook can be verified.
    pub const fn webhooks(&self) -> Option<&PaymentWebhooks> {
        self.webhooks.as_ref()
    }

    /// Returns the URL where the player pays for an order. None if no checkout is configured: the game uses its own.
    pub fn checkout(&self, order: &Order) -> Option<Url> {
        let mut url = self.checkout_url.clone()?;
        url.query_pairs_mut()
            .append_pair("order_id", &order.id.to_string())
            .append_pair("amount", &order.amount.to_string())
            .append_pair("currency", &order.currency);
        Some(url)
    }
}
