//! Settings of operators.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use ::config::{Reader, Section};
use http_server::TokenHash;
use service::ProbeAccess;

const DAY: Duration = Duration::from_secs(86_400);

/// Settings of the admin API and its operators.
#[derive(Clone, Debug)]
pub struct Config {
    /// Operators with a configured token, by name.
    pub operators: BTreeMap<String, ConfiguredOperator>,
    /// The callers that may read `/healthz` and `/readyz`.
    pub health: ProbeAccess,
    /// The callers that may read `/metrics`.
    pub metrics: ProbeAccess,
    /// How long entries of the audit log are kept.
    pub audit_retention: Duration,
    /// The file with the token of the operator, for commands of the same user. Only `playhouse dev` writes one.
    pub token_file: Option<PathBuf>,
}

/// An operator with a configured token.
#[derive(Clone, Copy, Debug)]
pub struct ConfiguredOperator {
    pub token_hash: TokenHash,
    pub read_only: bool,
}

impl Config {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Self {
        let config = Self {
            operators: reader.tables("operators"),
            health: reader.get("admin.health"),
            metrics: reader.get("admin.metrics"),
            audit_retention: reader.get_within("admin.audit_retention", DAY..=36_500 * DAY),
            token_file: None,
        };
        let mut known = BTreeMap::new();
        for (name, operator) in &config.operators {
            if let Some(other) = known.insert(operator.token_hash.to_string(), name) {
                let keys = [format!("operators.{other}.token_hash"), format!("operators.{name}.token_hash")];
                reader.check(&[&keys[0], &keys[1]], false, || {
                    "two operators have the same token, so that the audit log could not distinguish them"
                        .to_owned()
                });
            }
        }
        config
    }
}

impl Section for ConfiguredOperator {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self { token_hash: reader.required("token_hash"), read_only: reader.get("read_only") }
    }
}
