//! The sessions, codes and refresh tokens of the builtin issuer.
//!
//! Codes and tokens are stored as hashes.

use std::collections::HashMap;
use std::time::Duration;

use base::Timestamp;
use url::Url;

use crate::secret::{Pkce, random_token, sha256};

const CODE_TTL: Duration = Duration::from_secs(60);
/// The lifetime of a refresh token, and so of an idle session.
const REFRESH_TTL: Duration = Duration::from_secs(12 * 3600);
/// The most sessions, far beyond what development needs. A further sign-in ends the oldest one.
const MAX_SESSIONS: usize = 10_000;

#[derive(Default)]
pub(super) struct Grants {
    sessions: HashMap<String, Session>,
    codes: HashMap<[u8; 32], Code>,
    refresh_tokens: HashMap<[u8; 32], RefreshToken>,
}

/// A signed-in user.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) sid: String,
    pub(super) client_id: String,
    pub(super) user: String,
    pub(super) roles: Vec<String>,
    pub(super) scope: String,
    pub(super) auth_time: Timestamp,
    expires_at: Timestamp,
}

/// The parts of an authorization request that are checked when its code is redeemed.
pub(super) struct PendingCode {
    pub(super) client_id: String,
    pub(super) redirect_uri: Url,
    pub(super) challenge: String,
    pub(super) nonce: Option<String>,
}

struct Code {
    sid: String,
    pending: PendingCode,
    is_spent: bool,
    expires_at: Timestamp,
}

struct RefreshToken {
    sid: String,
    is_spent: bool,
    expires_at: Timestamp,
}

/// A successful grant: the session and its next refresh token.
pub(super) struct Grant {
    pub(super) session: Session,
    pub(super) refresh_token: String,
    /// The nonce of the sign-in; none after a refresh.
    pub(super) nonce: Option<String>,
}

impl Grants {
    /// Starts a session for a user and returns the code for it.
    pub(super) fn sign_in(
        &mut self,
        user: &str,
        roles: Vec<String>,
        scope: &str,
        pending: PendingCode,
        now: Timestamp,
    ) -> String {
        self.remove_expired(now);
        let (sid, code) = (random_token(), random_token());
        // Until the code is redeemed, the session expires together with it.
        let expires_at = now.after(CODE_TTL);
        let session = Session {
            sid: sid.clone(),
            client_id: pending.client_id.clone(),
            user: user.to_owned(),
            roles,
            scope: scope.to_owned(),
            auth_time: now,
            expires_at,
        };
        self.sessions.insert(sid.clone(), session);
        self.codes.insert(sha256(code.as_bytes()), Code { sid, pending, is_spent: false, expires_at });
        code
    }

    /// Redeems a code once. A second attempt, or one by another client or without the right verifier, ends the session.
    pub(super) fn redeem(
        &mut self,
        client_id: &str,
        code: &str,
        verifier: &str,
        redirect_uri: &str,
        now: Timestamp,
    ) -> Option<Grant> {
        let code = self.codes.get_mut(&sha256(code.as_bytes())).filter(|code| now < code.expires_at)?;
        // Compared as URLs: `http://127.0.0.1:5000` and `http://127.0.0.1:5000/` are the same address.
        let is_owner = Pkce::from_verifier(verifier.to_owned()).challenge == code.pending.challenge
            && Url::parse(redirect_uri).is_ok_and(|uri| uri == code.pending.redirect_uri)
            && code.pending.client_id == client_id;
        let is_valid = is_owner && !code.is_spent;
        code.is_spent = true;
        let (sid, nonce) = (code.sid.clone(), code.pending.nonce.clone());
        if is_valid {
            return self.grant(&sid, nonce, now);
        }
        self.end(&sid);
        None
    }

    /// Redeems a refresh token once. A second attempt, or one by another client, ends the session.
    pub(super) fn refresh(&mut self, client_id: &str, token: &str, now: Timestamp) -> Option<Grant> {
        let token = self.refresh_tokens.get_mut(&sha256(token.as_bytes()));
        let token = token.filter(|token| now < token.expires_at)?;
        let is_unspent = !std::mem::replace(&mut token.is_spent, true);
        let sid = token.sid.clone();
        let is_owner = self.sessions.get(&sid).is_some_and(|session| session.client_id == client_id);
        if is_unspent && is_owner {
            return self.grant(&sid, None, now);
        }
        self.end(&sid);
        None
    }

    /// Ends the session of a refresh token, even if the token is spent.
    pub(super) fn revoke(&mut self, token: &str) {
        if let Some(token) = self.refresh_tokens.get(&sha256(token.as_bytes())) {
            let sid = token.sid.clone();
            self.end(&sid);
        }
    }

    pub(super) fn end(&mut self, sid: &str) {
        self.sessions.remove(sid);
        self.refresh_tokens.retain(|_, token| token.sid != sid);
    }

    pub(super) fn is_open(&self, sid: &str, now: Timestamp) -> bool {
        self.sessions.get(sid).is_some_and(|session| now < session.expires_at)
    }

    fn grant(&mut self, sid: &str, nonce: Option<String>, now: Timestamp) -> Option<Grant> {
        let session = self.sessions.get_mut(sid).filter(|session| now < session.expires_at)?;
        let (refresh_token, expires_at) = (random_token(), now.after(REFRESH_TTL));
        session.expires_at = expires_at;
        let session = session.clone();
        let stored = RefreshToken { sid: sid.to_owned(), is_spent: false, expires_at };
        self.refresh_tokens.insert(sha256(refresh_token.as_bytes()), stored);
        Some(Grant { session, refresh_token, nonce })
    }

    fn remove_expired(&mut self, now: Timestamp) {
        self.codes.retain(|_, code| now < code.expires_at);
        self.sessions.retain(|_, session| now < session.expires_at);
        if self.sessions.len() >= MAX_SESSIONS
            && let Some(oldest) = self.sessions.values().min_by_key(|session| session.auth_time)
        {
            let sid = oldest.sid.clone();
            self.sessions.remove(&sid);
        }
        let sessions = &self.sessions;
        self.refresh_tokens.retain(|_, token| now < token.expires_at && sessions.contains_key(&token.sid));
    }
}
