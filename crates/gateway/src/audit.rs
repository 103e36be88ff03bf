//! The audit log: security events as log lines of the target `audit`, and counted.
//!
//! A line says what happened, from which address and to whom, and never holds a token, a cookie or a code.

use std::net::IpAddr;

use account::UserId;

use crate::metrics::{EventLabels, Metrics};

/// What is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    SignedIn,
    SignInFailed,
    SignedOut,
    BackChannelLogout,
    BackChannelRefused,
    SessionEndedByIssuer,
    TokenRefused,
    RoleRefused,
    CsrfRefused,
    RateLimited,
}

impl Event {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 10] = [
        Self::SignedIn,
        Self::SignInFailed,
        Self::SignedOut,
        Self::BackChannelLogout,
        Self::BackChannelRefused,
        Self::SessionEndedByIssuer,
        Self::TokenRefused,
        Self::RoleRefused,
        Self::CsrfRefused,
        Self::RateLimited,
    ];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::SignedIn => "signed_in",
            Self::SignInFailed => "sign_in_failed",
            Self::SignedOut => "signed_out",
            Self::BackChannelLogout => "back_channel_logout",
            Self::BackChannelRefused => "back_channel_refused",
            Self::SessionEndedByIssuer => "session_ended_by_issuer",
            Self::TokenRefused => "token_refused",
            Self::RoleRefused => "role_refused",
            Self::CsrfRefused => "csrf_refused",
            Self::RateLimited => "rate_limited",
        }
    }
}

/// Writes the audit log. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Audit(Metrics);

impl Audit {
    pub(crate) const fn new(metrics: Metrics) -> Self {
        Self(metrics)
    }

    /// Writes down an event, with what is known of whom it concerns and why.
    pub(crate) fn note(&self, event: Event, address: Option<IpAddr>, user: Option<UserId>, why: &str) {
        self.0.security_events.get_or_create(&EventLabels { event: event.word() }).inc();
        let (address, user) = (address.map(tracing::field::display), user.map(tracing::field::display));
        tracing::info!(target: "audit", event = event.word(), address, user, why, "security event");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_event_has_its_own_word() {
        let words: HashSet<&str> = Event::ALL.map(Event::word).into();
        assert_eq!(words.len(), Event::ALL.len());
    }
}
