//! Why a destination cannot be created.

use crate::guard::ForbiddenAddress;

/// Why a destination cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the url must start with http:// or https://")]
    NotHttp,
    #[error(transparent)]
    ForbiddenAddress(#[from] ForbiddenAddress),
    #[error("cannot create the HTTP client")]
    Client(#[source] reqwest::Error),
}
