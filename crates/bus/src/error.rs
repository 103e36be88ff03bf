//! Errors of the event bus.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use async_nats::ConnectErrorKind;
use base::Code;
use base::error::Coded;

use crate::Reason;

/// The cause of an error. Shared, because one cause can fail many events.
pub type Cause = Arc<dyn StdError + Send + Sync>;

/// An error of the bus, by what the caller can do about it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The bus is unreachable, or cannot store anything at the moment. Retry later.
    #[error("NATS cannot be reached")]
    Unreachable(#[source] Cause),
    /// The bus answers but refuses events at the moment. Retry later, under the same id.
    #[error("the bus refuses events: {said}")]
    Refusing { reason: Reason, said: String },
    /// No event could be stored for this long. [`Bus::ping`](crate::Bus::ping) reports it.
    #[error("no event could be published for {}s", .lasting.as_secs())]
    Stuck {
        lasting: Duration,
        #[source]
        last: Box<Self>,
    },
    /// The server refuses the connection.
    #[error(
        "NATS refuses the connection: check the scheme, the user and the password in bus.url, and bus.credentials"
    )]
    Refused(#[source] Cause),
    #[error("JetStream is not enabled for us: start the server with `-js`, or enable it for the account")]
    NoJetStream,
    #[error("cannot read bus.credentials")]
    Credentials(#[source] Arc<std::io::Error>),
    /// The stream has unsuitable settings, and only an operator can decide about it.
    #[error("the stream {name} cannot be used: {reason}")]
    Stream { name: String, reason: String },
    /// The subscription is invalid, or a consumer of its name has another purpose.
    #[error("the consumer {name} cannot be used: {reason}")]
    Consumer { name: String, reason: String },
    /// The event is larger than the bus accepts.
    #[error("the event is too large: {0}")]
    TooLarge(String),
    /// The event cannot be published, now or later.
    #[error("the event cannot be published: {0}")]
    Event(String),
    /// The delivered bytes are not a valid event.
    #[error("the event cannot be read: {0}")]
    Unreadable(String),
}

impl Error {
    pub(crate) fn unreachable(cause: impl StdError + Send + Sync + 'static) -> Self {
        Self::Unreachable(Arc::new(cause))
    }

    /// Returns whether the event itself can never be published: its subject is invalid, it is larger than the stream or the server
    /// accepts, or it cannot be read. Every other error is transient or can be fixed without changing the event. Such an event is
    /// published again under its id until it is stored.
    pub const fn is_permanent(&self) -> bool {
        matches!(self, Self::TooLarge(_) | Self::Event(_) | Self::Unreadable(_))
    }

    /// Returns why an event was not stored, for the metrics.
    pub(crate) const fn reason(&self) -> Reason {
        match self {
            Self::Refusing { reason, .. } => *reason,
            Self::TooLarge(_) => Reason::TooLarge,
            Self::Event(_) | Self::Unreadable(_) => Reason::BadEvent,
            Self::Stream { .. } => Reason::Stream,
            _ => Reason::Unreachable,
        }
    }
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Unreachable(_) | Self::Refusing { .. } | Self::Stuck { .. } => Code::Unavailable,
            Self::TooLarge(_) => Code::TooLarge,
            _ => Code::Internal,
        }
    }
}

impl From<async_nats::ConnectError> for Error {
    fn from(error: async_nats::ConnectError) -> Self {
        match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                Self::Refused(Arc::new(error))
            }
            ConnectErrorKind::Tls => Self::Refused(Arc::new(error)),
            _ => Self::unreachable(error),
        }
    }
}
