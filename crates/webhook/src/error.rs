//! Why there can be no such destination.

use crate::guard::Forbidden;

/// Why there can be no such destination.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the url must start with http:// or https://")]
    NotHttp,
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    /// The client for it cannot be made.
    #[error("the client cannot be made")]
    Client(#[source] reqwest::Error),
}
