//! OpenID Connect relying party: verifies tokens and signs users in at an issuer.
//!
//! [`Provider`] fetches the discovery document and the keys, verifies access, ID and logout tokens, and runs the code flow with
//! PKCE, refresh, revocation and RP-initiated logout. [`builtin`] is a small issuer for development. This crate knows nothing
//! about sessions or cookies.
//!
//! # Invariants
//! - **The token chooses nothing.** Only the configured algorithms are accepted. None is symmetric, and a key is used only with
//!   an algorithm that fits its type. Issuer, audience and expiry are always required.
//! - **Forged tokens cause no traffic.** Concurrent requests that miss the same key share one fetch. A fetch without a new key
//!   blocks further ones for `keys_cooldown`; until then tokens with unknown keys are refused at once.
//! - **A known key stays** until the issuer publishes a key set without it. Cached tokens are dropped together with their key.
//! - **Secrets stay inside.** No `Debug` output, log line or error contains tokens, codes, verifiers or client secrets.
//!
//! # Failure modes
//! While the issuer is unreachable, tokens signed with known keys are still accepted; sign-in and refresh fail with
//! [`Error::Unreachable`], which is transient. Until the issuer has answered once, every token is [`TokenError::Unavailable`].

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
mod secret;
mod token_cache;

pub use claims::{AccessToken, IdToken, LogoutToken};
pub use config::{Algorithm, Config, IssuerUrl, is_loopback};
pub use doctor::examine;
pub use error::{Error, TokenError};
pub use metrics::Metrics;
pub use provider::{AuthorizationRequest, Provider, Tokens};
pub use secret::{Pkce, Token, random_token};
