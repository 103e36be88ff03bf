//! What can go wrong with the issuer, and why a token is refused.

use std::sync::Arc;

use base::Code;
use base::error::Coded;

/// What can go wrong between us and the issuer, by what can be done about it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The issuer is away. Try again later.
    #[error("the issuer cannot be reached")]
    Unreachable(#[source] Arc<reqwest::Error>),
    /// The issuer answers that it cannot. Try again later.
    #[error("the issuer has trouble: {what} answered with status {status}")]
    Failing { what: &'static str, status: u16 },
    /// The issuer does not do what we ask; an error of RFC 6749, section 5.2.
    #[error("the issuer refuses: {error}{}", described(.description.as_deref()))]
    Rejected { error: String, description: Option<String> },
    /// The issuer answers, but not as an issuer does; or it is another than it should be.
    #[error("{what} of the issuer is not as it should be: {why}")]
    Malformed { what: &'static str, why: String },
    /// What we were given to start with cannot work.
    #[error("the issuer cannot be set up: {0}")]
    Setup(String),
    /// A token could not be signed, or there is no key to do it with.
    #[error("a key does not work: {0}")]
    Key(&'static str),
}

impl Error {
    /// Whether a code or a refresh token is spent, expired or revoked: the user has to sign in again.
    pub fn is_invalid_grant(&self) -> bool {
        matches!(self, Self::Rejected { error, .. } if error == "invalid_grant")
    }

    pub(crate) fn malformed(what: &'static str, why: impl Into<String>) -> Self {
        Self::Malformed { what, why: why.into() }
    }
}

impl From<reqwest::Error> for Error {
    fn from(error: reqwest::Error) -> Self {
        Self::Unreachable(Arc::new(error.without_url()))
    }
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Unreachable(_) | Self::Failing { .. } => Code::Unavailable,
            Self::Rejected { error, .. } => match error.as_str() {
                "invalid_grant" => Code::Unauthenticated,
                "temporarily_unavailable" | "server_error" => Code::Unavailable,
                _ => Code::Internal,
            },
            Self::Malformed { .. } | Self::Setup(_) | Self::Key(_) => Code::Internal,
        }
    }
}

/// Why a token is not accepted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    #[error("the token is not a signed JWT, or lacks what it must say")]
    Malformed,
    #[error("the token is too large")]
    TooLarge,
    #[error("the token is signed with a key that the issuer does not publish")]
    UnknownKey,
    #[error("the token is signed with an algorithm that is not accepted")]
    WrongAlgorithm,
    #[error("the signature of the token is wrong")]
    BadSignature,
    #[error("the token is from another issuer")]
    WrongIssuer,
    #[error("the token is for somebody else")]
    WrongAudience,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
    #[error("the token is of another kind")]
    WrongType,
    #[error("the token answers another sign-in")]
    WrongNonce,
    /// The token may be good, but there are no keys to tell.
    #[error("the token cannot be checked at the moment")]
    Unavailable(#[source] Error),
}

impl Refused {
    /// For `error_description` in `WWW-Authenticate`: short, without quotes, the same for everybody.
    pub fn describe(&self) -> String {
        self.to_string()
    }

    /// For the label of a metric.
    pub(crate) const fn label(&self) -> &'static str {
        match self {
            Self::Malformed | Self::TooLarge => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::WrongAlgorithm => "wrong_algorithm",
            Self::BadSignature => "bad_signature",
            Self::WrongIssuer => "wrong_issuer",
            Self::WrongAudience => "wrong_audience",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::WrongType => "wrong_type",
            Self::WrongNonce => "wrong_nonce",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

impl Coded for Refused {
    fn code(&self) -> Code {
        match self {
            Self::Unavailable(error) => error.code(),
            _ => Code::Unauthenticated,
        }
    }
}

fn described(description: Option<&str>) -> String {
    description.map(|text| format!(" ({text})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_grant_means_signing_in_again_and_nothing_else_does() {
        let rejected = |error: &str| Error::Rejected { error: error.to_owned(), description: None };
        assert!(rejected("invalid_grant").is_invalid_grant());
        assert_eq!(rejected("invalid_grant").code(), Code::Unauthenticated);
        assert!(!rejected("invalid_client").is_invalid_grant());
        assert_eq!(rejected("invalid_client").code(), Code::Internal);
        assert!(rejected("temporarily_unavailable").is_passing());
        assert!(Error::Failing { what: "keys", status: 503 }.is_passing());
    }

    #[test]
    fn what_is_said_of_a_refused_token_fits_into_a_header() {
        for refused in [Refused::Malformed, Refused::TooLarge, Refused::UnknownKey, Refused::BadSignature] {
            let text = refused.describe();
            assert!(text.chars().all(|c| c.is_ascii() && !c.is_ascii_control() && c != '"' && c != '\\'));
        }
    }
}
