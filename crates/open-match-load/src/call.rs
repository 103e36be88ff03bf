//! One call, and the two calls of a player.

use bytes::Bytes;

use crate::http2::{Call, Link};
use crate::wire::{self, Malformed};

const CREATE: &str = "/openmatch.FrontendService/CreateTicket";
const WATCH: &str = "/openmatch.FrontendService/WatchAssignments";

/// Why a player got nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// No connection, or one that broke.
    #[error("connection: {0}")]
    Connection(String),
    /// A status of gRPC other than OK.
    #[error("gRPC status {code}: {message}")]
    Status {
        /// Its number, as it was sent.
        code: String,
        /// Its words.
        message: String,
    },
    /// An answer that is not what Open Match sends.
    #[error("{0}")]
    Malformed(String),
    /// The stream of assignments ended without one.
    #[error("the watch ended without an assignment")]
    Ended,
    /// Nothing within the time that a player waits.
    #[error("timeout")]
    Timeout,
}

impl From<Malformed> for Failure {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// Creates a ticket and returns its id.
pub(crate) async fn create(link: &Link, body: &Bytes) -> Result<Bytes, Failure> {
    let mut call = link.call(CREATE, body)?;
    let ticket = call.message().await?.ok_or(Malformed("no ticket in the answer"))?;
    // Waits for the end, so that the stream need not be reset.
    if call.message().await?.is_some() {
        return Err(Malformed("two answers to one request").into());
    }
    Ok(wire::ticket_id(&ticket)?)
}

/// The assignments of a ticket. Dropping it cancels the stream.
#[derive(Debug)]
pub(crate) struct Watch(Call);

impl Watch {
    pub(crate) fn start(link: &Link, ticket: &[u8]) -> Result<Self, Failure> {
        link.call(WATCH, &wire::watch_assignments(ticket)).map(Self)
    }

    /// The connection of the next assignment; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        while let Some(message) = self.0.message().await? {
            if let Some(connection) = wire::connection(&message)? {
                return Ok(Some(connection));
            }
        }
        Ok(None)
    }
}
