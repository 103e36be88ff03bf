//! Services and operators that come with a token of the issuer, instead of one that the configuration knows.

use base::Code;
use base::error::chain;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_server::{Caller, Problem, Right, Vouch};
use oidc::{Provider, Refused};
use service::{Operator, Proof, TokenHolder, VouchForOperators};

/// How long the name of an operator may be: ledgers have room for it.
const MAX_NAME: usize = 80;

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
                Err(refused) => not_checked(&refused).map_or(Ok(None), Err),
            }
        }
        .boxed()
    }
}

/// Finds operators by their roles at the issuer.
#[derive(Clone, Debug)]
pub(crate) struct IssuerOfOperators(pub(crate) Provider);

impl VouchForOperators for IssuerOfOperators {
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
                        TokenHolder::SomebodyElse(operator)
                    }))
                }
                Err(refused) => not_checked(&refused).map_or(Ok(None), Err),
            }
        }
        .boxed()
    }
}

/// The problem of a token that could not be checked. None for one that was, and is not valid.
fn not_checked(refused: &Refused) -> Option<Problem> {
    let Refused::Unavailable(error) = refused else { return None };
    tracing::warn!(cause = chain(error), "tokens cannot be checked");
    let detail = "The issuer's keys cannot be had at the moment; try again.";
    Some(Problem::new(Code::Unavailable).detail(detail))
}
