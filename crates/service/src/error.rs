//! Why the stores or a service cannot be opened.

use std::error::Error;
use std::time::Duration;

/// Why the stores or a service cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{store} was not reachable within lifecycle.start_timeout ({after:?})")]
    Unreachable { store: &'static str, after: Duration, source: Box<dyn Error + Send + Sync> },
    #[error("{store} cannot be used")]
    Unusable { store: &'static str, source: Box<dyn Error + Send + Sync> },
    #[error(
        "the service {service:?} needs {needed}, which no service before it in the list of services provides"
    )]
    Missing { service: &'static str, needed: String },
}

impl OpenError {
    /// For something that is configured and does not work: `store` is the key or the name of the part.
    pub fn unusable(store: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unusable { store, source: source.into() }
    }
}
