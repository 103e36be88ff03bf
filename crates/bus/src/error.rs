//! What can go wrong with the event bus.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use async_nats::ConnectErrorKind;
use base::Code;
use base::error::Coded;

use crate::Reason;

/// The cause of an error. Shared, because one cause may fail many events.
pub type Cause = Arc<dyn StdError + Send + Sync>;

/// What can go wrong, by what can be done about it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The bus is away, or cannot take anything for the moment. Try again later.
    #[error("NATS cannot be reached")]
    Unreachable(#[source] Cause),
    /// The bus answers and refuses events for now. Try again later, under the same id.
    #[error("the bus refuses events: {said}")]
    Refusing { reason: Reason, said: String },
    /// No event could be stored for this long. [`Bus::ping`](crate::Bus::ping) reports it.
    #[error("no event could be published for {}s", .lasting.as_secs())]
    Stuck {
        lasting: Duration,
        #[source]
        last: Box<Self>,
    },
    /// The server does not let us in.
    #[error(
        "NATS refuses the connection: check the scheme, the user and the password in bus.url, and bus.credentials"
    )]
    Refused(#[source] Cause),
    #[error("JetStream is not enabled for us: start the server with `-js`, or enable it for the account")]
    NoJetStream,
    #[error("cannot read bus.credentials")]
    Credentials(#[source] Arc<std::io::Error>),
    /// The stream is not what we need, and only an operator can say what should become of it.
    #[error("the stream {name} cannot be used: {reason}")]
    Stream { name: String, reason: String },
    /// The subscription is not sound, or a consumer of its name is for something else.
    #[error("the consumer {name} cannot be used: {reason}")]
    Consumer { name: String, reason: String },
    /// The event is larger than the bus takes.
    #[error("the event is too large: {0}")]
    TooLarge(String),
    /// The event cannot be published, now or later.
    #[error("the event cannot be published: {0}")]
    Event(String),
    /// What was delivered is no event of ours, and never will be.
    #[error("the event cannot be read: {0}")]
    Unreadable(String),
}

impl Error {
    pub(crate) fn unreachable(cause: impl StdError + Send + Sync + 'static) -> Self {
        Self::Unreachable(Arc::new(cause))
    }

    /// Whether the event itself can never be published: its subject is no subject, it is larger than the stream or the server
    /// takes, or it cannot be read. Every other error passes or can be mended without touching the event, so the event is
    /// published again under its id until it is stored.
    pub const fn is_hopeless(&self) -> bool {
        matches!(self, Self::TooLarge(_) | Self::Event(_) | Self::Unreadable(_))
    }

    /// Why an event was not stored, as metrics name it.
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
