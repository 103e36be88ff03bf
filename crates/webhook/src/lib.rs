//! Requests to other people's servers: signed, guarded, paced.
//!
//! A [`Destination`] is sent [messages](Message) as [Standard Webhooks](https://www.standardwebhooks.com) describes them: a `POST`
//! with `webhook-id`, `webhook-timestamp` and `webhook-signature`. It tries once per call and says what came of it. What is tried
//! again, and when, is for the caller to say: this crate keeps no messages.
//!
//! A [`Verifier`] is the other side: it verifies requests that somebody else has signed in this way.
//!
//! # Invariants
//! - All [`Secrets`] of a destination sign each request, so a receiver that knows the old one or the new one verifies it.
//! - No request goes to an address that is not public, unless `allow_networks` has it. What is judged is the address that is
//!   connected to, at the time it is connected to: a name that is pointed elsewhere gains nothing.
//! - Redirects are not followed, proxies of the environment are not used, and the time that an answer takes and what is read of it
//!   are bounded.
//! - A destination that fails is left alone, for longer each time, and asked by one request at a time until it answers well.
//! - One destination does not slow down another: each has its own connections and its own places.
//!
//! # Failure modes
//! Sending never fails as a function: every outcome is a [`Sent`]. What was sent and not answered well may have been taken all the
//! same: receivers tell messages apart by their id, which is the same however often one is tried.

mod address;
mod answer;
mod config;
mod destination;
mod error;
mod gate;
mod guard;
mod message;
mod metrics;
mod secret;
mod verify;

pub use config::Config;
pub use destination::{Destination, Sent};
pub use error::Error;
pub use guard::Forbidden;
pub use message::{Id, Message, NotAnId, headers};
pub use metrics::{Instruments, Metrics};
pub use secret::{BadSecret, Secrets};
pub use verify::{BadKey, Unverified, Verified, Verifier};
