//! Requests to customers' servers: signed, guarded, paced.
//!
//! A [`Destination`] receives [messages](Message) in the format of [Standard Webhooks](https://www.standardwebhooks.com): a `POST` with
//! `webhook-id`, `webhook-timestamp` and `webhook-signature`. Each call sends at most one request and returns its outcome. This crate
//! stores no messages: retries are up to the caller.
//!
//! A [`Verifier`] is the receiving side: it verifies requests that others have signed in this format.
//!
//! # Invariants
//! - All [`Secrets`] of a destination sign each request, so a receiver that knows the old or the new one can verify it.
//! - No request goes to an address that is not public, unless `allow_networks` contains it. The address is checked when the connection is
//!   made, so a name that resolves differently later (DNS rebinding) does not get around the check.
//! - Redirects are not followed and proxies of the environment are not used. The duration of a request and the size of the response that
//!   is read are limited.
//! - A destination that fails backs off, for longer each time. After that one request at a time probes it until one succeeds.
//! - A destination does not slow down others: each has its own connections and its own limit of requests in flight.
//!
//! # Failure modes
//! Sending never returns an error: every outcome is a [`SendOutcome`]. A receiver may have processed a request whose response was lost or
//! was no success. Receivers dedupe by the message id, which is the same in all attempts.

mod address;
mod config;
mod destination;
mod error;
mod gate;
mod guard;
mod message;
mod metrics;
mod response;
mod secret;
mod verify;

pub use config::Config;
pub use destination::{Destination, SendOutcome};
pub use error::Error;
pub use guard::ForbiddenAddress;
pub use message::{InvalidMessageId, Message, MessageId, headers};
pub use metrics::{Instruments, Metrics};
pub use secret::{InvalidSecret, Secrets};
pub use verify::{InvalidVerifierKey, VerifiedRequest, Verifier, VerifyError};
