//! Open responses: server-sent events over HTTP/1.1 (ADR 13).
//!
//! A process may serve tens of thousands of streams, and nearly all are idle. Hyper's buffers for reading the next request and writing
//! a response take several times the memory of the stream itself. So hyper writes only the head and is dropped; the socket and the
//! body stay. The connection serves no further request, and the head says so (`Connection: close`).

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use ::http::header::{CONNECTION, CONTENT_TYPE};
use ::http::{HeaderValue, Method, Request, Version};
use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::Frame;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The start of the content type of server-sent events. A charset may follow.
const EVENTS: &[u8] = b"text/event-stream";

/// Takes the body of an open response from hyper. One per connection; clones share state.
#[derive(Clone, Debug, Default)]
pub(super) struct Handover(Arc<Mutex<HandoverState>>);

#[derive(Debug, Default)]
enum HandoverState {
    /// There is no open response.
    #[default]
    None,
    /// Hyper has the head.
    HeadQueued(Body),
    /// Hyper has polled the body, so it has encoded the head.
    HeadEncoded(Body),
    /// Hyper has written the whole head.
    HeadWritten(Body),
}

impl Handover {
    /// Returns whether the response to this request may be taken from hyper. HTTP/1.0 has no chunked encoding.
    pub(super) fn is_possible<B>(request: &Request<B>) -> bool {
        request.version() == Version::HTTP_11 && request.method() == Method::GET
    }

    /// Keeps the body of a stream of events. Returns the response to give to hyper instead.
    pub(super) fn keep_body(&self, response: Response) -> Response {
        let kind = response.headers().get(CONTENT_TYPE);
        let is_events = kind.is_some_and(|kind| kind.as_bytes().starts_with(EVENTS));
        // The length of an open response is unknown, so it is written in chunks.
        if !is_events || response.body().size_hint().exact().is_some() {
            return response;
        }
        let (mut head, body) = response.into_parts();
        head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        *self.state() = HandoverState::HeadQueued(body);
        Response::from_parts(head, Body::new(Placeholder(self.clone())))
    }

    /// Records that the socket was flushed.
    pub(super) fn flushed(&self) {
        self.step(|state| match state {
            HandoverState::HeadEncoded(body) => HandoverState::HeadWritten(body),
            other => other,
        });
    }

    /// Takes the body of the open response, once its head is written.
    pub(super) fn take_body(&self) -> Option<Body> {
        let mut state = self.state();
        match std::mem::take(&mut *state) {
            HandoverState::HeadWritten(body) => Some(body),
            other => {
                *state = other;
                None
            }
        }
    }

    fn step(&self, next: impl FnOnce(HandoverState) -> HandoverState) {
        let mut state = self.state();
        *state = next(std::mem::take(&mut *state));
    }

    fn state(&self) -> MutexGuard<'_, HandoverState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body that hyper gets instead. It never yields data.
struct Placeholder(Handover);

impl HttpBody for Placeholder {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.0.step(|state| match state {
            HandoverState::HeadQueued(body) => HandoverState::HeadEncoded(body),
            other => other,
        });
        Poll::Pending
    }
}

/// An open response, after its head.
#[derive(Debug)]
pub(super) struct OpenResponse<S> {
    socket: S,
    body: Body,
    /// The client has sent data after its request. Nothing more is read then, so a disconnect is noticed only by the next write.
    has_extra_input: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> OpenResponse<S> {
    pub(super) fn new(socket: S, body: Body, has_extra_input: bool) -> Self {
        Self { socket, body, has_extra_input }
    }

    /// Writes the body until it ends or the client disconnects.
    pub(super) async fn write(mut self) -> io::Result<()> {
        loop {
            let mut input = [0; 1];
            let frame = tokio::select! {
                frame = next(&mut self.body) => frame,
                read = self.socket.read(&mut input), if !self.has_extra_input => {
                    if read? == 0 {
                        return Ok(());
                    }
                    self.has_extra_input = true;
                    continue;
                }
            };
            let Some(frame) = frame else { break };
            // Trailers are ignored.
            let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
            // An empty chunk would end the response.
            if !data.is_empty() {
                self.socket.write_all(&chunk(&data)).await?;
            }
        }
        self.socket.write_all(b"0\r\n\r\n").await?;
        self.socket.shutdown().await
    }
}

async fn next(body: &mut Body) -> Option<Result<Frame<Bytes>, axum::Error>> {
    std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
}

fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}
