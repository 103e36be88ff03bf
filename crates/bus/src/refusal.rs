//! Classifies JetStream's refusals: permanent (the event's fault) or transient.

use std::error::Error as StdError;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};

use crate::Error;

/// Why an event was not stored. Used as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The bus does not answer in time.
    Unreachable,
    /// The servers are still replicating an earlier publication of the same id.
    DuplicateInProcess,
    /// The account or the server has no storage left.
    StorageLimit,
    /// The stream is overloaded.
    TooManyRequests,
    /// The stream cannot write: it is full and discards nothing, or its disk fails.
    StoreFailed,
    /// The stream is missing, sealed, offline or unsuitable.
    Stream,
    /// The embedded bus is full of events that a consumer has not acknowledged.
    Full,
    /// The event is larger than the stream or the server accepts.
    TooLarge,
    /// The event's subject is invalid, or the event cannot be encoded as JSON.
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

    /// Classifies by the server's own error code. Its HTTP-like code does not help: 400, 409 and 429 also stand for transient errors.
    const fn from_code(code: ErrorCode) -> Self {
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
    /// No stream received the event: the stream does not exist.
    NoStream,
    Failed(Error),
}

impl Failure {
    /// Classifies an error. Only the errors listed here are permanent; any other, also of a later server version, is transient.
    pub(crate) fn from_error(error: PublishError) -> Self {
        let refusal = error.source().and_then(|cause| cause.downcast_ref::<async_nats::jetstream::Error>());
        let Some(refusal) = refusal else {
            return match error.kind() {
                PublishErrorKind::StreamNotFound => Self::NoStream,
                PublishErrorKind::MaxPayloadExceeded => {
                    Self::Failed(Error::TooLarge(base::error::chain(&error)))
                }
                _ => Self::Failed(Error::unreachable(error)),
            };
        };
        let said = refusal.to_string();
        match refusal.error_code() {
            ErrorCode::STREAM_NOT_FOUND | ErrorCode::STREAM_NOT_MATCH => Self::NoStream,
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
                Self::Failed(Error::TooLarge(said))
            }
            code => Self::Failed(Error::Refusing { reason: Reason::from_code(code), said }),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::error::Coded;

    use super::*;

    /// Builds a refusal with codes from nats-server's `errors.json`.
    fn refused(code: u16, err_code: u64, description: &str) -> Failure {
        let said = serde_json::json!({ "code": code, "err_code": err_code, "description": description });
        let said: async_nats::jetstream::Error = serde_json::from_value(said).unwrap();
        Failure::from_error(PublishError::with_source(PublishErrorKind::Other, said))
    }

    #[test]
    fn most_refusals_are_transient() {
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
            (400, 19999, "a code of a later version", Reason::Other),
        ] {
            let Failure::Failed(error) = refused(code, err_code, said) else { panic!("{said}") };
            assert!(error.is_transient() && !error.is_permanent(), "{error:?}");
            assert_eq!(error.reason(), reason, "{said}");
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn too_large_is_permanent() {
        for (err_code, said) in
            [(10054, "message size exceeds maximum allowed"), (10097, "header size exceeds maximum allowed")]
        {
            let Failure::Failed(error) = refused(400, err_code, said) else { panic!("{said}") };
            assert!(error.is_permanent() && !error.is_transient(), "{error:?}");
            assert_eq!(error.reason(), Reason::TooLarge);
        }
        let large = Failure::from_error(PublishError::new(PublishErrorKind::MaxPayloadExceeded));
        assert!(matches!(large, Failure::Failed(error) if error.is_permanent()));
    }

    #[test]
    fn missing_stream_is_detected() {
        assert!(matches!(refused(404, 10059, "stream not found"), Failure::NoStream));
        assert!(matches!(refused(400, 10060, "expected stream does not match"), Failure::NoStream));
        let no_responder = Failure::from_error(PublishError::new(PublishErrorKind::StreamNotFound));
        assert!(matches!(no_responder, Failure::NoStream));
        let late = Failure::from_error(PublishError::new(PublishErrorKind::TimedOut));
        assert!(matches!(late, Failure::Failed(Error::Unreachable(_))));
    }
}
