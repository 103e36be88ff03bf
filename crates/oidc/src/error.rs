//! Errors of the issuer, and the reasons for refusing a token.

use std::sync::Arc;

use base::Code;
use base::error::Coded;

/// An error between us and the issuer. There is one variant per reaction of the caller.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The issuer cannot be reached. Transient: retry later.
    #[error("the issuer cannot be reached")]
    Unreachable(#[source] Arc<reqwest::Error>),
    /// The issuer responds with a server error. Transient: retry later.
    #[error("the issuer fails: {what} responded with status {status}")]
    Failing { what: &'static str, status: u16 },
    /// The issuer rejects the request with an error of RFC 6749, section 5.2.
    #[error("the issuer rejected the request: {error}{}", in_parentheses(.description.as_deref()))]
    Rejected { error: String, description: Option<String> },
    /// The response is not that of an OpenID Connect issuer, or it is from another issuer.
    #[error("{what} of the issuer is not valid: {why}")]
    Malformed { what: &'static str, why: String },
    /// The configuration cannot work.
    #[error("the issuer is not configured correctly: {0}")]
    Setup(String),
    /// Nobody can have this name at the builtin issuer.
    #[error("{0:?} is not a valid user name: use 1 to 64 letters, digits, `.`, `_` and `-`")]
    UserName(String),
    /// The builtin issuer could not generate a key or sign a token.
    #[error("the signing key failed: {0}")]
    Key(&'static str),
}

impl Error {
    /// Returns whether a code or a refresh token is spent, expired or revoked. The user must sign in again.
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
            Self::UserName(_) => Code::InvalidArgument,
            Self::Malformed { .. } | Self::Setup(_) | Self::Key(_) => Code::Internal,
        }
    }
}

/// The reason for refusing a token.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TokenError {
    #[error("the token is not a signed JWT, or a required claim is missing")]
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
    #[error("the token is for another audience")]
    WrongAudience,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
    #[error("the token is of another kind")]
    WrongType,
    #[error("the token belongs to another sign-in")]
    WrongNonce,
    /// The keys are not available. The token may be valid.
    #[error("the token cannot be verified at the moment")]
    Unavailable(#[source] Error),
}

impl TokenError {
    /// Returns the text for `error_description` in `WWW-Authenticate`. It is short and has no quotes.
    pub fn describe(&self) -> String {
        self.to_string()
    }

    /// Returns the value of the metric label.
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

impl Coded for TokenError {
    fn code(&self) -> Code {
        match self {
            Self::Unavailable(error) => error.code(),
            _ => Code::Unauthenticated,
        }
    }
}

fn in_parentheses(description: Option<&str>) -> String {
    description.map(|text| format!(" ({text})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_invalid_grant_requires_a_new_sign_in() {
        let rejected = |error: &str| Error::Rejected { error: error.to_owned(), description: None };
        assert!(rejected("invalid_grant").is_invalid_grant());
        assert_eq!(rejected("invalid_grant").code(), Code::Unauthenticated);
        assert!(!rejected("invalid_client").is_invalid_grant());
        assert_eq!(rejected("invalid_client").code(), Code::Internal);
        assert!(rejected("temporarily_unavailable").is_transient());
        assert!(Error::Failing { what: "keys", status: 503 }.is_transient());
    }

    #[test]
    fn description_of_a_refused_token_fits_into_a_header() {
        for error in
            [TokenError::Malformed, TokenError::TooLarge, TokenError::UnknownKey, TokenError::BadSignature]
        {
            let text = error.describe();
            assert!(text.chars().all(|c| c.is_ascii() && !c.is_ascii_control() && c != '"' && c != '\\'));
        }
    }
}
