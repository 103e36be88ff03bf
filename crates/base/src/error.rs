//! The error table: the errors that callers see, and how each protocol expresses them.
//!
//! A crate's own error type describes what happened. [`Code`] describes what the caller can do about it. Handlers never choose a
//! status: they map their error to a code, and this table maps the code to HTTP and gRPC.

/// The error codes that callers see, one row of the table each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    InvalidArgument,
    Unauthenticated,
    PermissionDenied,
    NotFound,
    MethodNotAllowed,
    SlowRequest,
    Conflict,
    FailedPrecondition,
    TooLarge,
    UriTooLong,
    UnsupportedMediaType,
    Unprocessable,
    UpgradeRequired,
    RateLimited,
    Internal,
    Unimplemented,
    Unavailable,
    Timeout,
}

struct Row {
    http: u16,
    grpc: u8,
    slug: &'static str,
    title: &'static str,
}

impl Code {
    pub const ALL: [Self; 18] = [
        Self::InvalidArgument,
        Self::Unauthenticated,
        Self::PermissionDenied,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::SlowRequest,
        Self::Conflict,
        Self::FailedPrecondition,
        Self::TooLarge,
        Self::UriTooLong,
        Self::UnsupportedMediaType,
        Self::Unprocessable,
        Self::UpgradeRequired,
        Self::RateLimited,
        Self::Internal,
        Self::Unimplemented,
        Self::Unavailable,
        Self::Timeout,
    ];

    const fn row(self) -> Row {
        let (http, grpc, slug, title) = match self {
            Self::InvalidArgument => (400, 3, "invalid-argument", "The request is not valid"),
            Self::Unauthenticated => (401, 16, "unauthenticated", "Authentication required"),
            Self::PermissionDenied => (403, 7, "permission-denied", "Not allowed"),
            Self::NotFound => (404, 5, "not-found", "Not found"),
            Self::MethodNotAllowed => (405, 12, "method-not-allowed", "Method not allowed"),
            Self::SlowRequest => (408, 4, "request-timeout", "The request did not arrive in time"),
            Self::Conflict => (409, 10, "conflict", "Conflict with the current state"),
            Self::FailedPrecondition => (409, 9, "failed-precondition", "Not possible in the current state"),
            Self::TooLarge => (413, 8, "too-large", "The request is too large"),
            Self::UriTooLong => (414, 3, "uri-too-long", "The address is too long"),
            Self::UnsupportedMediaType => (415, 3, "unsupported-media-type", "Unsupported media type"),
            Self::Unprocessable => (422, 9, "unprocessable", "The request contradicts an earlier one"),
            Self::UpgradeRequired => (426, 9, "upgrade-required", "This client is too old"),
            Self::RateLimited => (429, 8, "rate-limited", "Too many requests"),
            Self::Internal => (500, 13, "internal", "Internal error"),
            Self::Unimplemented => (501, 12, "unimplemented", "Not implemented"),
            Self::Unavailable => (503, 14, "unavailable", "Temporarily unavailable"),
            Self::Timeout => (504, 4, "timeout", "Timed out"),
        };
        Row { http, grpc, slug, title }
    }

    pub const fn http_status(self) -> u16 {
        self.row().http
    }

    pub const fn grpc_status(self) -> u8 {
        self.row().grpc
    }

    /// Returns the stable `type` of the problem document. It is a URN because there is no page behind it.
    pub fn problem_type(self) -> String {
        Self::problem_type_of(self.row().slug)
    }

    /// Returns the `type` of a problem document with a cause of its own, such as `drops:sold-out`.
    pub fn problem_type_of(cause: &str) -> String {
        format!("urn:playhouse:problem:{cause}")
    }

    pub const fn title(self) -> &'static str {
        self.row().title
    }
}

/// An error that maps to a [`Code`].
pub trait Coded: std::error::Error {
    fn code(&self) -> Code;

    /// Returns whether a retry may succeed without any other change.
    fn is_transient(&self) -> bool {
        matches!(self.code(), Code::Unavailable | Code::Timeout)
    }
}

/// Formats an error with its causes in one line. For logs and operators, never for callers.
///
/// Many errors include the text of their cause. A cause that the line already contains is left out.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |error| error.source()) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn chain_contains_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Layer(&'static str, #[source] Option<Box<Layer>>);
        let layer = |text, cause| Some(Box::new(Layer(text, cause)));
        let error =
            Layer("cannot start", layer("db: refused (111)", layer("refused (111)", layer("port 1", None))));
        assert_eq!(chain(&error), "cannot start: db: refused (111): port 1");
    }

    #[test]
    fn every_code_has_its_own_row() {
        let types: HashSet<_> = Code::ALL.map(Code::problem_type).into();
        assert_eq!(types.len(), Code::ALL.len());
        for code in Code::ALL {
            assert!((400..600).contains(&code.http_status()), "{code:?}");
            assert!((1..=16).contains(&code.grpc_status()), "{code:?}");
        }
    }
}
