//! The two calls of a player.

use bytes::Bytes;

use crate::http2::{Call, Http2Client};
use crate::wire::{self, Malformed};

const CREATE: &str = "/openmatch.FrontendService/CreateTicket";
const WATCH: &str = "/openmatch.FrontendService/WatchAssignments";

/// Why a player got no assignment.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// The connection failed or broke.
    #[error("connection: {0}")]
    Connection(String),
    /// A gRPC status other than OK.
    #[error("gRPC status {code}: {message}")]
    Status {
        /// The number of the status, as it was sent.
        code: String,
        /// The message of the status.
        message: String,
    },
    /// A response that Open Match does not send.
    #[error("{0}")]
    Malformed(String),
    /// The stream of assignments ended without one.
    #[error("the watch ended without an assignment")]
    Ended,
    /// No assignment within [`Options::timeout`](crate::Options::timeout).
    #[error("timeout")]
    Timeout,
}

impl From<Malformed> for Failure {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// Creates a ticket and returns its id.
pub(crate) async fn create(client: &Http2Client, body: &Bytes) -> Result<Bytes, Failure> {
    let mut call = client.call(CREATE, body)?;
    let ticket = call.message().await?.ok_or(Malformed("no ticket in the response"))?;
    // Reads the end of the stream, so that it need not be reset.
    if call.message().await?.is_some() {
        return Err(Malformed("two responses to one request").into());
    }
    Ok(wire::ticket_id(&ticket)?)
}

/// A stream of a ticket's assignments. Dropping it cancels the stream.
#[derive(Debug)]
pub(crate) struct Watch(Call);

impl Watch {
    pub(crate) fn start(client: &Http2Client, ticket: &[u8]) -> Result<Self, Failure> {
        client.call(WATCH, &wire::watch_assignments(ticket)).map(Self)
    }

    /// Returns the connection of the next assignment, or `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        while let Some(message) = self.0.message().await? {
            if let Some(connection) = wire::connection(&message)? {
                return Ok(Some(connection));
            }
        }
        Ok(None)
    }
}
