//! Who somebody is, by the word of an OpenID Connect issuer.
//!
//! [`Provider`] is what a relying party needs of its issuer: the discovery document and the keys, the check of access, ID and
//! logout tokens, the code flow with PKCE, refresh, revocation and the end of the session. [`builtin`] is a small issuer for
//! development. Sessions and cookies are not known here.
//!
//! # Invariants
//! - **The token chooses nothing.** Algorithms are those of the configuration, of which none is symmetric, and a key is used only
//!   with an algorithm that fits its kind. Issuer, audience and expiry are always required.
//! - **Strangers cause no traffic.** A key that is not known is asked for once by all who miss it. If the answer brought none that
//!   is new, nobody asks again for `keys_cooldown`; meanwhile, tokens with unknown keys are refused at once.
//! - **A known key stays** until the issuer has answered without it. Tokens that it signed are forgotten together with it.
//! - **Secrets stay inside.** Tokens, codes, verifiers and client secrets are in no `Debug`, no log and no error.
//!
//! # Failure modes
//! While the issuer is away, tokens with known keys are accepted as before; signing in and refreshing fail with
//! [`Error::Unreachable`], which passes. An issuer that never answered makes every token [`Refused::Unavailable`].

pub mod builtin;
mod claims;
mod config;
mod doctor;
mod error;
mod http;
mod jwt;
mod keys;
mod metadata;
mod metrics;
mod provider;
mod remembered;
mod secret;

pub use claims::{Access, IdToken, LogoutToken};
pub use config::{Algorithm, Config, IssuerUrl, is_loopback};
pub use doctor::examine;
pub use error::{Error, Refused};
pub use metrics::Metrics;
pub use provider::{Authorize, Provider, Tokens};
pub use secret::{Pkce, Token, random_token};
