//! Settings of drops.

use std::time::Duration;

use ::config::{Reader, Secret, Section};
use url::Url;
use webhook::Verifier;

use crate::player_api::DemoProvider;

/// Shorter secrets could be guessed from a signed token.
const MIN_KEY_LENGTH: usize = 32;

/// Settings of drops.
#[derive(Clone, Debug)]
pub struct Config {
    /// The prefix of all Redis keys.
    pub key_prefix: String,
    /// The secrets of the keys that sign admission tokens. The first one signs, all of them verify. If empty, one in SQL is used.
    pub keys: Vec<Secret>,
    /// The minimum time between two live messages about one stock.
    pub stock_interval: Duration,
    /// How often a stock stream sends the snapshot without a change, and how often a watched stock is read from SQL.
    pub stock_sync: Duration,
    /// How often lines are compared with SQL.
    pub reconcile_every: Duration,
    pub payments: PaymentConfig,
    /// The demo payment provider of `playhouse dev`, with a demo drop. It cannot be configured.
    pub(crate) demo: Option<DemoProvider>,
}

/// Settings of the payment provider.
#[derive(Clone, Debug)]
pub struct PaymentConfig {
    /// Verifies the provider's webhooks. If none, no webhook is accepted.
    pub secrets: Option<Verifier>,
    /// How far the timestamp of a webhook may differ from our clock.
    pub tolerance: Duration,
    /// How long the ids of webhooks are kept to detect repetitions.
    pub webhook_retention: Duration,
    /// Where players pay.
    pub checkout_url: Option<Url>,
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        let (short, hour) = (Duration::from_millis(10), Duration::from_secs(3_600));
        let config = Self {
            key_prefix: reader.get("key_prefix"),
            keys: reader.optional("keys").unwrap_or_default(),
            stock_interval: reader.get_within("stock_interval", short..=Duration::from_secs(60)),
            stock_sync: reader.get_within("stock_sync", Duration::from_secs(1)..=hour),
            reconcile_every: reader.get_within("reconcile_every", Duration::from_millis(100)..=hour),
            payments: reader.section("payments"),
            demo: None,
        };
        let is_long = |key: &Secret| key.expose().len() >= MIN_KEY_LENGTH;
        reader.check(&["keys"], config.keys.iter().all(is_long), || {
            format!(
                "each must have at least {MIN_KEY_LENGTH} characters; `openssl rand -base64 32` generates one"
            )
        });
        config
    }
}

impl Config {
    /// Adds the demo provider unless a provider is configured.
    pub(crate) fn or_demo(mut self) -> Self {
        let is_configured = self.payments.secrets.is_some() || self.payments.checkout_url.is_some();
        if let Some(demo) = DemoProvider::new().filter(|_| !is_configured) {
            self.payments.secrets = Verifier::new([demo.secret()]).ok();
            self.demo = Some(demo);
        }
        self
    }
}

impl Section for PaymentConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3_600));
        let config = Self {
            secrets: reader.optional("secrets"),
            tolerance: reader.get_within("tolerance", second..=hour),
            webhook_retention: reader.get_within("webhook_retention", hour..=3_650 * 24 * hour),
            checkout_url: reader.optional("checkout_url"),
        };
        let is_web = |url: &Url| matches!(url.scheme(), "https" | "http");
        reader.check(&["checkout_url"], config.checkout_url.as_ref().is_none_or(is_web), || {
            "must begin with https:// (or http:// for a test)".to_owned()
        });
        config
    }
}
