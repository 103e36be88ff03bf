//! The audit log: security events as log lines of the target `audit`, and a counter.
//!
//! A line has the event, the address and the user, but never a token, a cookie or a code.

use std::net::IpAddr;

use account::UserId;

use crate::metrics::Metrics;

/// A security event. The gateway records its own events here too, so that there is one audit log and one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityEvent {
    SignedIn,
    SignInFailed,
    SignedOut,
    BackChannelLogout,
    BackChannelRefused,
    SessionEndedByIssuer,
    SessionReverted,
    TokenRefused,
    RoleRefused,
    CsrfRefused,
    RateLimited,
}

impl SecurityEvent {
    #[cfg(test)]
    const ALL: [Self; 11] = [
        Self::SignedIn,
        Self::SignInFailed,
        Self::SignedOut,
        Self::BackChannelLogout,
        Self::BackChannelRefused,
        Self::SessionEndedByIssuer,
        Self::SessionReverted,
        Self::TokenRefused,
        Self::RoleRefused,
        Self::CsrfRefused,
        Self::RateLimited,
    ];

    const fn word(self) -> &'static str {
        match self {
            Self::SignedIn => "signed_in",
            Self::SignInFailed => "sign_in_failed",
            Self::SignedOut => "signed_out",
            Self::BackChannelLogout => "back_channel_logout",
            Self::BackChannelRefused => "back_channel_refused",
            Self::SessionEndedByIssuer => "session_ended_by_issuer",
            Self::SessionReverted => "session_reverted",
            Self::TokenRefused => "token_refused",
            Self::RoleRefused => "role_refused",
            Self::CsrfRefused => "csrf_refused",
            Self::RateLimited => "rate_limited",
        }
    }
}

/// Writes the audit log. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub struct Audit(Metrics);

impl Audit {
    pub const fn new(metrics: Metrics) -> Self {
        Self(metrics)
    }

    /// Counts an event without a log line, because an equal one was logged just before.
    pub fn count(&self, event: SecurityEvent) {
        self.0.security_event(event.word());
    }

    /// Logs and counts an event, with the address and the user if they are known.
    pub fn record(&self, event: SecurityEvent, address: Option<IpAddr>, user: Option<UserId>, why: &str) {
        self.count(event);
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
        let words: HashSet<&str> = SecurityEvent::ALL.map(SecurityEvent::word).into();
        assert_eq!(words.len(), SecurityEvent::ALL.len());
    }
}
