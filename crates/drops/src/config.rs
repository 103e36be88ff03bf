//! Settings of drops.

use std::time::Duration;

use ::config::{Reader, Secret, Section};
use url::Url;
use webhook::Verifier;

use crate::player_api::DemoProvider;

/// Short secrets can be guessed from anything that was signed with one.
const MIN_KEY_LENGTH: usize = 32;

/// Settings of drops.
#[derive(Clone, Debug)]
pub struct Config {
    /// Begins the names of all keys in Redis.
    pub key_prefix: String,
    /// Secrets of the keys that sign admission tokens: the first one signs, all of them verify. Empty: one that SQL keeps.
    pub keys: Vec<Secret>,
    /// At least this much time lies between two live messages about one stock.
    pub stock_interval: Duration,
    /// How often a stock stream repeats the whole snapshot.
    pub stock_sync: Duration,
    /// How often lines are compared with SQL.
    pub reconcile_every: Duration,
    pub payments: PaymentConfig,
    /// The payment provider of `playhouse dev`, with a drop to try. No file can name it.
    pub(crate) demo: Option<DemoProvider>,
}

/// Settings of the payment provider.
#[derive(Clone, Debug)]
pub struct PaymentConfig {
    /// Verifies the provider's webhooks. None: no webhook is accepted.
    pub secrets: Option<Verifier>,
    /// How old a webhook may be, or how far ahead.
    pub tolerance: Duration,
    /// How long the ids of webhooks are remembered.
    pub webhook_retention: Duration,
    /// Where a player pays.
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
                "each must have at least {MIN_KEY_LENGTH} characters; `openssl rand -base64 32` makes one"
            )
        });
        config
    }
}

impl Config {
    /// Adds a provider to pay at on a laptop, unless one is configured.
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
