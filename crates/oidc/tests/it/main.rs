//! The relying party, against a fake issuer that can misbehave in every way, and against the builtin issuer.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod access;
mod builtin;
mod client;
mod fake_issuer;
mod flow;
mod id_tokens;
mod logout;
mod outages;
mod rotation;

use std::time::Duration;

use base::{Clock, Timestamp};
use config::{Secret, Setting, Value};
use oidc::{Algorithm, Config, IssuerUrl, Metrics, Provider};
use prometheus_client::registry::Registry;
use url::Url;

const PATIENCE: Duration = Duration::from_secs(20);
/// The start time of every test.
const NOW: Timestamp = Timestamp::from_millis(1_772_366_400_000);

/// The default settings.
fn config() -> Config {
    Config {
        issuer: IssuerUrl::Builtin,
        client_id: "playhouse".to_owned(),
        client_secret: None,
        scopes: vec!["openid".to_owned(), "profile".to_owned()],
        audiences: vec!["playhouse".to_owned()],
        algorithms: vec![Algorithm::Rs256, Algorithm::Ps256, Algorithm::Es256, Algorithm::EdDsa],
        clock_skew: Duration::from_secs(30),
        timeout: Duration::from_secs(5),
        keys_cooldown: Duration::from_secs(10),
        keys_max_age: Duration::from_secs(3600),
        roles_claim: "realm_access.roles".to_owned(),
        operator_role: "playhouse-operator".to_owned(),
        readonly_operator_role: "playhouse-operator-readonly".to_owned(),
        service_role: "playhouse-service".to_owned(),
        right_prefix: "playhouse-may-".to_owned(),
        name_claim: "name".to_owned(),
    }
}

fn secret(text: &str) -> Secret {
    Secret::parse(&Value::Text(text.to_owned())).unwrap()
}

fn provider(config: &Config, issuer: &Url, clock: &Clock) -> Provider {
    provider_in(config, issuer, clock, &mut Registry::default())
}

fn provider_in(config: &Config, issuer: &Url, clock: &Clock, registry: &mut Registry) -> Provider {
    Provider::new(config, issuer.clone(), clock.clone(), Metrics::new(registry)).unwrap()
}
