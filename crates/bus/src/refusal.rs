//! Which refusals of JetStream are the event's fault, and which pass.

use std::error::Error as StdError;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};

use crate::Error;

/// Why an event was not stored: a label of few values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The bus does not answer, or not in time.
    Unreachable,
    /// An earlier publication under the same id is still being agreed on by the servers.
    DuplicateInProcess,
    /// The account or the server has used up its storage.
    StorageLimit,
    /// The stream has more to store than it gets done.
    TooManyRequests,
    /// The stream cannot write: it is full and discards nothing, or its disk fails.
    StoreFailed,
    /// The stream is not there, sealed, offline, or not what we need.
    Stream,
    /// The embedded bus is full of events that a consumer has not acknowledged.
    Full,
    /// The event is larger than the stream or the server takes.
    TooLarge,
    /// The event's subject is none, or it cannot be written as JSON.
    BadEvent,
    Other,
}

impl Reason {
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::DuplicateInProcess => "duplicate_in_process",
            Self::StorageLimit => "storage_limit",
            Self::TooManyRequests => "too_many_requests",
            Self::StoreFailed => "store_failed",
            Self::Stream => "stream",
            Self::Full => "full",
            Self::TooLarge => "too_large",
            Self::BadEvent => "bad_event",
            Self::Other => "other",
        }
    }

    /// By the server's own code. The HTTP-like code beside it does not help: 400, 409 and 429 are given for what passes.
    const fn of(code: ErrorCode) -> Self {
        match code {
            ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT => Self::DuplicateInProcess,
            ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
            | ErrorCode::INSUFFICIENT_RESOURCES
            | ErrorCode::MEMORY_RESOURCES_EXCEEDED
            | ErrorCode::STORAGE_RESOURCES_EXCEEDED => Self::StorageLimit,
            ErrorCode::STREAM_TOO_MANY_REQUESTS => Self::TooManyRequests,
            ErrorCode::STREAM_STORE_FAILED => Self::StoreFailed,
            ErrorCode::STREAM_SEALED | ErrorCode::STREAM_OFFLINE | ErrorCode::STREAM_OFFLINE_REASON => {
                Self::Stream
            }
            _ => Self::Other,
        }
    }
}

/// What a failed publication means for its event.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Nobody took it: the stream is not there.
    Untaken,
    Failed(Error),
}

impl Failure {
    /// The one rule. Hopeless is only what is listed here; whatever else the server says, now or in a later version, passes.
    pub(crate) fn of(error: PublishError) -> Self {
        let refusal = error.source().and_then(|cause| cause.downcast_ref::<async_nats::jetstream::Error>());
        let Some(refusal) = refusal else {
            return match error.kind() {
                PublishErrorKind::StreamNotFound => Self::Untaken,
                PublishErrorKind::MaxPayloadExceeded => {
                    Self::Failed(Error::TooLarge(base::error::chain(&error)))
                }
                _ => Self::Failed(Error::unreachable(error)),
            };
        };
        let said = refusal.to_string();
        match refusal.error_code() {
            ErrorCode::STREAM_NOT_FOUND | ErrorCode::STREAM_NOT_MATCH => Self::Untaken,
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
                Self::Failed(Error::TooLarge(said))
            }
            code => Self::Failed(Error::Refusing { reason: Reason::of(code), said }),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::error::Coded;

    use super::*;

    /// As the server's answers have them, by nats-server's `errors.json`.
    fn refused(code: u16, err_code: u64, description: &str) -> Failure {
        let said = serde_json::json!({ "code": code, "err_code": err_code, "description": description });
        let said: async_nats::jetstream::Error = serde_json::from_value(said).unwrap();
        Failure::of(PublishError::with_source(PublishErrorKind::Other, said))
    }

    #[test]
    fn refusals_that_pass_are_not_the_events_fault() {
        for (code, err_code, said, reason) in [
            (409, 10158, "duplicate message id is in process", Reason::DuplicateInProcess),
            (400, 10002, "resource limits exceeded for account", Reason::StorageLimit),
            (503, 10023, "insufficient resources", Reason::StorageLimit),
            (500, 10028, "insufficient memory resources available", Reason::StorageLimit),
            (500, 10047, "insufficient storage resources available", Reason::StorageLimit),
            (429, 10167, "too many requests", Reason::TooManyRequests),
            (503, 10077, "maximum bytes exceeded", Reason::StoreFailed),
            (400, 10109, "invalid operation on sealed stream", Reason::Stream),
            (500, 10118, "stream is offline", Reason::Stream),
            (503, 10008, "JetStream system temporarily unavailable", Reason::Other),
            (500, 10009, "JetStream cluster can not handle request", Reason::Other),
            (503, 10163, "expected last sequence per subject not ready", Reason::Other),
            (400, 19999, "something that no version says yet", Reason::Other),
        ] {
            let Failure::Failed(error) = refused(code, err_code, said) else { panic!("{said}") };
            assert!(error.is_passing() && !error.is_hopeless(), "{error:?}");
            assert_eq!(error.reason(), reason, "{said}");
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn what_is_too_large_is_hopeless() {
        for (err_code, said) in
            [(10054, "message size exceeds maximum allowed"), (10097, "header size exceeds maximum allowed")]
        {
            let Failure::Failed(error) = refused(400, err_code, said) else { panic!("{said}") };
            assert!(error.is_hopeless() && !error.is_passing(), "{error:?}");
            assert_eq!(error.reason(), Reason::TooLarge);
        }
        let large = Failure::of(PublishError::new(PublishErrorKind::MaxPayloadExceeded));
        assert!(matches!(large, Failure::Failed(error) if error.is_hopeless()));
    }

    #[test]
    fn a_stream_that_is_not_there_is_made_again() {
        assert!(matches!(refused(404, 10059, "stream not found"), Failure::Untaken));
        assert!(matches!(refused(400, 10060, "expected stream does not match"), Failure::Untaken));
        let nobody = Failure::of(PublishError::new(PublishErrorKind::StreamNotFound));
        assert!(matches!(nobody, Failure::Untaken));
        let late = Failure::of(PublishError::new(PublishErrorKind::TimedOut));
        assert!(matches!(late, Failure::Failed(Error::Unreachable(_))));
    }
}
