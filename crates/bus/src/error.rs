//! What can go wrong with the event bus.

use std::error::Error as StdError;

use async_nats::ConnectErrorKind;
use base::Code;
use base::error::Coded;

/// What can go wrong, by what can be done about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bus is away. Try again later.
    #[error("NATS cannot be reached")]
    Unreachable(#[source] Box<dyn StdError + Send + Sync>),
    /// The server does not let us in.
    #[error(
        "NATS refuses the connection: check the scheme, the user and the password in bus.url, and bus.credentials"
    )]
    Refused(#[source] Box<dyn StdError + Send + Sync>),
    #[error("JetStream is not enabled for us: start the server with `-js`, or enable it for the account")]
    NoJetStream,
    #[error("cannot read bus.credentials")]
    Credentials(#[source] std::io::Error),
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Unreachable(_) => Code::Unavailable,
            _ => Code::Internal,
        }
    }
}

impl From<async_nats::ConnectError> for Error {
    fn from(error: async_nats::ConnectError) -> Self {
        match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                Self::Refused(error.into())
            }
            ConnectErrorKind::Tls => Self::Refused(error.into()),
            _ => Self::Unreachable(error.into()),
        }
    }
}
