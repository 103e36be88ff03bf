//! One call, and the two calls of a player.

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, StatusCode};

use crate::pool::Target;
use crate::wire::{self, Malformed};

const OK: &str = "0";

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

impl From<h2::Error> for Failure {
    fn from(error: h2::Error) -> Self {
        match error.reason() {
            Some(reason) if reason != Reason::NO_ERROR => Self::Connection(reason.description().to_owned()),
            _ => Self::Connection(error.to_string()),
        }
    }
}

impl From<Malformed> for Failure {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// Creates a ticket and returns its id.
pub(crate) async fn create(
    target: &Target,
    sender: &mut SendRequest<Bytes>,
    body: &Bytes,
) -> Result<Bytes, Failure> {
    let mut call = Call::start(sender, target.create(), body.clone())?;
    let ticket = call.message().await?.ok_or(Malformed("no ticket in the answer"))?;
    call.end().await?;
    Ok(wire::ticket_id(&ticket)?)
}

/// The assignments of a ticket. Dropping it cancels the stream.
#[derive(Debug)]
pub(crate) struct Watch(Call);

impl Watch {
    pub(crate) fn start(
        target: &Target,
        sender: &mut SendRequest<Bytes>,
        ticket: &[u8],
    ) -> Result<Self, Failure> {
        Call::start(sender, target.watch(), wire::watch_assignments(ticket)).map(Self)
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

/// A call whose request has been sent.
#[derive(Debug)]
struct Call {
    answer: Answer,
    received: BytesMut,
}

#[derive(Debug)]
enum Answer {
    Head(ResponseFuture),
    Body(RecvStream),
}

impl Call {
    fn start(sender: &mut SendRequest<Bytes>, head: Request<()>, body: Bytes) -> Result<Self, Failure> {
        let (head, mut stream) = sender.send_request(head, false)?;
        stream.send_data(body, true)?;
        Ok(Self { answer: Answer::Head(head), received: BytesMut::new() })
    }

    async fn body(&mut self) -> Result<&mut RecvStream, Failure> {
        if let Answer::Head(head) = &mut self.answer {
            let (head, body) = head.await?.into_parts();
            if head.status != StatusCode::OK {
                return Err(Failure::Malformed(format!("HTTP status {}", head.status)));
            }
            // An answer that is nothing but an error has its status here.
            status(&head.headers)?;
            self.answer = Answer::Body(body);
        }
        match &mut self.answer {
            Answer::Body(body) => Ok(body),
            Answer::Head(_) => Err(Failure::Malformed("no head".to_owned())),
        }
    }

    /// The next message; `None` after the last one of a call that ended well.
    async fn message(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            if let Some(message) = wire::take_message(&mut self.received)? {
                return Ok(Some(message));
            }
            let body = self.body().await?;
            match body.data().await {
                Some(data) => {
                    let data = data?;
                    body.flow_control().release_capacity(data.len())?;
                    self.received.extend_from_slice(&data);
                }
                None => {
                    if let Some(trailers) = body.trailers().await? {
                        status(&trailers)?;
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// Waits for the end, so that the stream need not be reset.
    async fn end(mut self) -> Result<(), Failure> {
        match self.message().await? {
            None => Ok(()),
            Some(_) => Err(Malformed("two answers to one request").into()),
        }
    }
}

fn status(headers: &HeaderMap) -> Result<(), Failure> {
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    match text("grpc-status") {
        Some(code) if code != OK => {
            Err(Failure::Status { code, message: text("grpc-message").unwrap_or_default() })
        }
        _ => Ok(()),
    }
}
