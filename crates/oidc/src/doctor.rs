//! Whether the issuer is there, and can do what we count on.

use base::Clock;
use base::finding::Finding;
use prometheus_client::registry::Registry;

use crate::config::{Config, IssuerUrl};
use crate::metrics::Metrics;
use crate::provider::Provider;

/// Looks at the issuer.
pub async fn examine(config: &Config, clock: &Clock) -> Vec<Finding> {
    let issuer = match &config.issuer {
        IssuerUrl::None => return vec![Finding::good("nobody signs in")],
        IssuerUrl::Builtin => return vec![Finding::good("in process; for development only")],
        IssuerUrl::Url(url) => url.clone(),
    };
    // What it counts is for nobody.
    let metrics = Metrics::new(&mut Registry::default());
    let looked = async { Provider::new(config, issuer, clock.clone(), metrics)?.abilities().await }.await;
    match looked {
        Ok(abilities) => {
            let ability = |(able, good, lacks, advice): (bool, &str, &str, &str)| {
                Finding::when(able, good, || Finding::warning(lacks, advice))
            };
            let findings = [
                (
                    abilities.ends_sessions,
                    "signs people out there too",
                    "has no end_session_endpoint",
                    "whoever signs out here stays signed in there",
                ),
                (
                    abilities.tells_of_ends,
                    "tells of sessions that end (back-channel logout)",
                    "does not say that it supports back-channel logout",
                    "a session that ends there ends here with its next refresh",
                ),
            ];
            let there = Finding::good("answers, and has keys to check tokens with");
            [there].into_iter().chain(findings.map(ability)).collect()
        }
        Err(error) => {
            let advice =
                "correct identity.issuer, or start the issuer; until its keys are known nobody gets in";
            vec![Finding::failure(base::error::chain(&error), advice)]
        }
    }
}
