//! What the screen and its actions use, and the sample players.

use std::net::SocketAddr;
use std::sync::Arc;

use account::{Accounts, Error, SignIn, SignInResult, UserState, UserView};
use base::Code;
use base::error::{Coded, chain};
use drops::Drops;
use entitlement::Entitlements;
use http_server::Problem;
use matchmaking::Players;
use notification::{Inbox, Notifications};
use oidc::builtin::{Builtin, SampleUser};

use crate::events::Events;

/// Why the screen and its actions are refused.
pub(crate) const IS_OFF: &str =
    "This is only for development, and `console.try_it` is off. `playhouse dev` turns it on.";
pub(crate) const NEEDS_BUILTIN_ISSUER: &str = "Sample players sign in at the builtin issuer, which this process does not run. Sign in at \
     your own issuer, or start `playhouse dev` with `identity.issuer = \"builtin:\"`.";

/// The tools, or why there are none. Cheap to clone; clones share state.
#[derive(Clone, Debug)]
pub(crate) struct TryIt(Result<Arc<Tools>, &'static str>);

/// The services that the screen shows and that its actions call.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) issuer: Builtin,
    pub(crate) accounts: Accounts,
    pub(crate) entitlements: Entitlements,
    pub(crate) notifications: Notifications,
    pub(crate) inbox: Inbox,
    pub(crate) players: Players,
    pub(crate) drops: Drops,
    pub(crate) events: Events,
    pub(crate) addresses: Addresses,
}

/// The addresses in the commands that the screen shows.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// The URL of the gateway, without a slash at its end.
    pub(crate) gateway: String,
    pub(crate) admin: SocketAddr,
}

impl TryIt {
    pub(crate) fn on(tools: Tools) -> Self {
        Self(Ok(Arc::new(tools)))
    }

    pub(crate) const fn refused(reason: &'static str) -> Self {
        Self(Err(reason))
    }

    /// Returns the tools. Fails with the reason if this process must not, or cannot, act for players.
    pub(crate) fn tools(&self) -> Result<&Tools, Problem> {
        match &self.0 {
            Ok(tools) => Ok(tools),
            Err(reason) => Err(Problem::new(Code::FailedPrecondition).detail(*reason)),
        }
    }
}

impl Tools {
    /// Signs a sample player in, as their first request to the gateway would: creates the user, the identity and the default account.
    pub(crate) async fn sign_in(&self, user: &str) -> Result<SignInResult, Problem> {
        let SampleUser { issuer, subject, name } = self.sample(user)?;
        let sign_in = SignIn { issuer, subject, display_name: Some(name), roles: Vec::new() };
        self.accounts.sign_in(&sign_in).await.map_err(|error| failed("account", &error))
    }

    /// Finds a sample player. None if they have never signed in, or were erased.
    pub(crate) async fn find(&self, user: &str) -> Result<Option<UserView>, Problem> {
        let SampleUser { issuer, subject, .. } = self.sample(user)?;
        match self.accounts.find(&issuer, &subject).await {
            Ok(found) => Ok(Some(found)),
            Err(Error::UnknownIdentity) => Ok(None),
            Err(error) => Err(failed("account", &error)),
        }
    }

    /// Finds a sample player who can act. Fails if they have never signed in or are banned.
    pub(crate) async fn active(&self, user: &str) -> Result<UserView, Problem> {
        let found = self.find(user).await?.ok_or_else(|| {
            let detail = format!("{user} has never signed in. Run `playhouse try-it sign-in {user}` first.");
            Problem::new(Code::NotFound).detail(detail)
        })?;
        match found.state {
            UserState::Active => Ok(found),
            UserState::Banned | UserState::Erased => {
                let detail =
                    format!("{user} is banned and cannot act. Unban the player, or choose another name.");
                Err(Problem::new(Code::FailedPrecondition).detail(detail))
            }
        }
    }

    fn sample(&self, user: &str) -> Result<SampleUser, Problem> {
        let invalid = |error: oidc::Error| Problem::new(Code::InvalidArgument).detail(error.to_string());
        self.issuer.sample_user(user).map_err(invalid)
    }
}

/// Maps an error of a service to a response, and logs internal causes.
pub(crate) fn failed<E: Coded + 'static>(service: &'static str, error: &E) -> Problem {
    let problem = Problem::new(error.code());
    match error.code() {
        Code::Internal => {
            tracing::error!(service, cause = chain(error), "a call to a service failed");
            problem
        }
        Code::Unavailable | Code::Timeout => {
            tracing::warn!(outage = service, service, cause = chain(error), "a service does not answer");
            problem.detail(format!("The {service} service does not answer; try again."))
        }
        _ => problem.detail(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_refused_with_the_reason() {
        for reason in [IS_OFF, NEEDS_BUILTIN_ISSUER] {
            let refused = TryIt::refused(reason).tools().unwrap_err();
            assert_eq!((refused.code(), refused.text()), (Code::FailedPrecondition, reason));
        }
    }
}
