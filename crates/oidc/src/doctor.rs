//! Checks the issuer for `playhouse doctor`: whether it answers and supports what we rely on.

use base::Clock;
use base::finding::Finding;
use prometheus_client::registry::Registry;

use crate::config::{Config, IssuerUrl};
use crate::metrics::Metrics;
use crate::provider::Provider;

/// Fetches the issuer's discovery document and keys, and reports what it lacks.
pub async fn examine(config: &Config, clock: &Clock) -> Vec<Finding> {
    let issuer = match &config.issuer {
        IssuerUrl::None => return vec![Finding::good("sign-in is not configured")],
        IssuerUrl::Builtin => return vec![Finding::good("runs in this process; for development only")],
        IssuerUrl::Url(url) => url.clone(),
    };
    // Not exported.
    let metrics = Metrics::new(&mut Registry::default());
    let checked = async { Provider::new(config, issuer, clock.clone(), metrics)?.capabilities().await }.await;
    match checked {
        Ok(capabilities) => {
            let finding = |(has_it, good, lacks, advice): (bool, &str, &str, &str)| {
                Finding::check(has_it, good, || Finding::warning(lacks, advice))
            };
            let findings = [
                (
                    capabilities.has_end_session,
                    "signing out here also signs out at the issuer",
                    "has no end_session_endpoint",
                    "a user who signs out here stays signed in at the issuer",
                ),
                (
                    capabilities.has_backchannel_logout,
                    "supports back-channel logout",
                    "does not announce back-channel logout",
                    "a session that ends at the issuer ends here at its next refresh",
                ),
            ];
            let reachable = Finding::good("answers and publishes keys");
            [reachable].into_iter().chain(findings.map(finding)).collect()
        }
        Err(error) => {
            let advice =
                "correct identity.issuer, or start the issuer; until its keys are known no user can sign in";
            vec![Finding::failure(base::error::chain(&error), advice)]
        }
    }
}
