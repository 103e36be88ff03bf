//! Services that come with a token of the issuer, instead of one that the configuration knows.

use base::Code;
use base::error::chain;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_server::{Caller, Problem, Right, Vouch};
use oidc::{Provider, Refused};

/// Lets in services that the issuer vouches for: their roles say what they may do.
#[derive(Clone, Debug)]
pub(crate) struct IssuedServices {
    pub(crate) provider: Provider,
    /// The rights that a role can stand for, by name.
    pub(crate) rights: Vec<Right>,
}

impl Vouch for IssuedServices {
    fn caller<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<Caller>, Problem>> {
        async move {
            match self.provider.verify_access(token).await {
                Ok(access) if access.is_service => {
                    let word = |right: &Right| access.rights.iter().any(|word| word == right.word());
                    let may: Vec<Right> = self.rights.iter().copied().filter(word).collect();
                    let name = access.client.as_deref().unwrap_or(&access.subject);
                    Ok(Some(Caller::new(name, &may)))
                }
                // A player has no business here.
                Ok(_) => Ok(None),
                Err(Refused::Unavailable(error)) => {
                    tracing::warn!(outage = "issuer", cause = chain(&error), "tokens cannot be checked");
                    let detail = "The issuer's keys cannot be had at the moment; try again.";
                    Err(Problem::new(Code::Unavailable).detail(detail))
                }
                Err(_) => Ok(None),
            }
        }
        .boxed()
    }
}
