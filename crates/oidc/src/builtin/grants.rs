//! Who has signed in at the builtin issuer, and what was given for it: sessions, codes and refresh tokens.
//!
//! Codes and tokens are kept as hashes.

use std::collections::HashMap;
use std::time::Duration;

use base::Timestamp;
use url::Url;

use crate::secret::{Pkce, random_token, sha256};

const CODE_TTL: Duration = Duration::from_secs(60);
/// How long a refresh token is good, and so a session in which nothing happens.
const REFRESH_TTL: Duration = Duration::from_secs(12 * 3600);
/// So many sign-ins a developer does not have. Beyond it the oldest go.
const MAX_SESSIONS: usize = 10_000;

#[derive(Default)]
pub(super) struct Grants {
    sessions: HashMap<String, Session>,
    codes: HashMap<[u8; 32], Code>,
    refresh_tokens: HashMap<[u8; 32], RefreshToken>,
}

/// Somebody who has signed in.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) sid: String,
    pub(super) user: String,
    pub(super) roles: Vec<String>,
    pub(super) scope: String,
    pub(super) auth_time: Timestamp,
    expires_at: Timestamp,
}

/// What a client asked for, as far as it matters when it comes with the code.
pub(super) struct Asked {
    pub(super) redirect_uri: Url,
    pub(super) challenge: String,
    pub(super) nonce: Option<String>,
}

struct Code {
    sid: String,
    asked: Asked,
    is_spent: bool,
    expires_at: Timestamp,
}

struct RefreshToken {
    sid: String,
    is_spent: bool,
    expires_at: Timestamp,
}

/// What is given: the session, and the refresh token for the next time.
pub(super) struct Granted {
    pub(super) session: Session,
    pub(super) refresh_token: String,
    /// Of a sign-in that was just completed.
    pub(super) nonce: Option<String>,
}

impl Grants {
    /// Somebody has signed in. Returns the code for it.
    pub(super) fn sign_in(
        &mut self,
        user: &str,
        roles: Vec<String>,
        scope: &str,
        asked: Asked,
        now: Timestamp,
    ) -> String {
        self.forget_what_is_over(now);
        let (sid, code) = (random_token(), random_token());
        // It lives no longer than the code, until that is redeemed.
        let expires_at = now.after(CODE_TTL);
        let session = Session {
            sid: sid.clone(),
            user: user.to_owned(),
            roles,
            scope: scope.to_owned(),
            auth_time: now,
            expires_at,
        };
        self.sessions.insert(sid.clone(), session);
        self.codes.insert(sha256(code.as_bytes()), Code { sid, asked, is_spent: false, expires_at });
        code
    }

    /// What a code is good for, once. Whoever comes with a code that is spent, or cannot prove that it is theirs, ends the
    /// session that it began.
    pub(super) fn redeem(
        &mut self,
        code: &str,
        verifier: &str,
        redirect_uri: &str,
        now: Timestamp,
    ) -> Option<Granted> {
        let code = self.codes.get_mut(&sha256(code.as_bytes())).filter(|code| now < code.expires_at)?;
        let is_theirs = Pkce::of(verifier.to_owned()).challenge == code.asked.challenge
            && code.asked.redirect_uri.as_str() == redirect_uri;
        let is_good = is_theirs && !code.is_spent;
        code.is_spent = true;
        let (sid, nonce) = (code.sid.clone(), code.asked.nonce.clone());
        if is_good {
            return self.grant(&sid, nonce, now);
        }
        self.end(&sid);
        None
    }

    /// What a refresh token is good for, once. If it comes again, the session ends.
    pub(super) fn refresh(&mut self, token: &str, now: Timestamp) -> Option<Granted> {
        let token = self.refresh_tokens.get_mut(&sha256(token.as_bytes()));
        let token = token.filter(|token| now < token.expires_at)?;
        let is_good = !std::mem::replace(&mut token.is_spent, true);
        let sid = token.sid.clone();
        if is_good {
            return self.grant(&sid, None, now);
        }
        self.end(&sid);
        None
    }

    /// Ends the session of a refresh token, spent or not.
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

    fn grant(&mut self, sid: &str, nonce: Option<String>, now: Timestamp) -> Option<Granted> {
        let session = self.sessions.get_mut(sid).filter(|session| now < session.expires_at)?;
        let (refresh_token, expires_at) = (random_token(), now.after(REFRESH_TTL));
        session.expires_at = expires_at;
        let session = session.clone();
        let kept = RefreshToken { sid: sid.to_owned(), is_spent: false, expires_at };
        self.refresh_tokens.insert(sha256(refresh_token.as_bytes()), kept);
        Some(Granted { session, refresh_token, nonce })
    }

    fn forget_what_is_over(&mut self, now: Timestamp) {
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
