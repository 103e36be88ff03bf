//! Services and operators that authenticate with a token of the issuer instead of a configured one.

use base::Code;
use base::error::chain;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_server::{Caller, CallerVerifier, Problem, Right};
use oidc::{Provider, TokenError};
use service::{Operator, OperatorVerifier, Proof, TokenHolder};

/// The longest name of an operator that the audit log can store.
const MAX_NAME: usize = 80;

/// Verifies services by the issuer's tokens. Their roles at the issuer are their rights.
#[derive(Clone, Debug)]
pub(crate) struct IssuedServices {
    pub(crate) provider: Provider,
    /// The rights that a role may name.
    pub(crate) rights: Vec<Right>,
}

impl CallerVerifier for IssuedServices {
    fn caller<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<Caller>, Problem>> {
        async move {
            match self.provider.verify_access(token).await {
                Ok(access) if access.is_service => {
                    let is_granted = |right: &Right| access.rights.iter().any(|word| word == right.word());
                    let may: Vec<Right> = self.rights.iter().copied().filter(is_granted).collect();
                    let name = access.client.as_deref().unwrap_or(&access.subject);
                    Ok(Some(Caller::new(name, &may)))
                }
                // Players may not call the service API.
                Ok(_) => Ok(None),
                Err(refused) => unavailable(&refused).map_or(Ok(None), Err),
            }
        }
        .boxed()
    }
}

/// Verifies operators by the issuer's tokens and their roles there.
#[derive(Clone, Debug)]
pub(crate) struct IssuedOperators(pub(crate) Provider);

impl OperatorVerifier for IssuedOperators {
    fn holder<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<TokenHolder>, Problem>> {
        async move {
            match self.0.verify_access(token).await {
                Ok(access) => {
                    let name = access.name.as_deref().filter(|name| !name.is_empty());
                    let operator = Operator {
                        name: name.unwrap_or(&access.subject).chars().take(MAX_NAME).collect(),
                        proof: Proof::IssuedToken { subject: access.subject.clone() },
                        read_only: !access.is_operator,
                    };
                    let is_operator = access.is_operator || access.is_readonly_operator;
                    Ok(Some(if is_operator {
                        TokenHolder::Operator(operator)
                    } else {
                        TokenHolder::OtherUser(operator)
                    }))
                }
                Err(refused) => unavailable(&refused).map_or(Ok(None), Err),
            }
        }
        .boxed()
    }
}

/// Returns the problem if a token could not be verified. Returns none if it was verified and is not valid.
fn unavailable(refused: &TokenError) -> Option<Problem> {
    let TokenError::Unavailable(error) = refused else { return None };
    tracing::warn!(cause = chain(error), "cannot verify tokens");
    let detail = "The issuer's keys cannot be fetched at the moment; try again.";
    Some(Problem::new(Code::Unavailable).detail(detail))
}
