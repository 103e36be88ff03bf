//! Answers that stay open: server-sent events over HTTP/1.1.
//!
//! There may be tens of thousands of them, and nearly always nothing happens on any. What hyper has ready to read the next request
//! and to write an answer takes several times the memory that such an answer needs. So hyper writes the head and is let go; the
//! socket and the body stay. The connection has no request after that one, and the head says so.

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

/// How the type of events begins; it may go on with their charset.
const EVENTS: &[u8] = b"text/event-stream";

/// Takes the body of an answer that stays open from hyper to us. Clones are the same; a connection has one.
#[derive(Clone, Debug, Default)]
pub(super) struct Handover(Arc<Mutex<Stage>>);

#[derive(Debug, Default)]
enum Stage {
    /// No answer stays open.
    #[default]
    Nothing,
    /// Hyper was given the head.
    Answered(Body),
    /// Hyper asks for the body: it has made the head into bytes.
    Headed(Body),
    /// It has written them all.
    Written(Body),
}

impl Handover {
    /// Whether an answer to this request may stay open without hyper. By HTTP/1.0 there are no chunks.
    pub(super) fn may_follow<B>(request: &Request<B>) -> bool {
        request.version() == Version::HTTP_11 && request.method() == Method::GET
    }

    /// What hyper is given in place of this answer.
    pub(super) fn keep(&self, response: Response) -> Response {
        let kind = response.headers().get(CONTENT_TYPE);
        let is_events = kind.is_some_and(|kind| kind.as_bytes().starts_with(EVENTS));
        // The length of one that stays open is not known: hyper writes it in chunks, and so do we.
        if !is_events || response.body().size_hint().exact().is_some() {
            return response;
        }
        let (mut head, body) = response.into_parts();
        head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        *self.stage() = Stage::Answered(body);
        Response::from_parts(head, Body::new(Kept(self.clone())))
    }

    /// Everything that was to be written has been.
    pub(super) fn flushed(&self) {
        self.step(|stage| match stage {
            Stage::Headed(body) => Stage::Written(body),
            other => other,
        });
    }

    /// The body of the answer that stays open, once its head has been written.
    pub(super) fn taken(&self) -> Option<Body> {
        let mut stage = self.stage();
        match std::mem::take(&mut *stage) {
            Stage::Written(body) => Some(body),
            other => {
                *stage = other;
                None
            }
        }
    }

    fn step(&self, next: impl FnOnce(Stage) -> Stage) {
        let mut stage = self.stage();
        *stage = next(std::mem::take(&mut *stage));
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What hyper has for a body that it will not write.
struct Kept(Handover);

impl HttpBody for Kept {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.0.step(|stage| match stage {
            Stage::Answered(body) => Stage::Headed(body),
            other => other,
        });
        Poll::Pending
    }
}

/// An answer that stays open, after its head.
#[derive(Debug)]
pub(super) struct OpenAnswer<S> {
    socket: S,
    body: Body,
    /// The client has sent something after its request. It is left lying, and so is the end of what it sends: that it has gone is
    /// noticed by the next write then.
    said_more: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> OpenAnswer<S> {
    pub(super) fn new(socket: S, body: Body, said_more: bool) -> Self {
        Self { socket, body, said_more }
    }

    /// Writes what the body brings, until it ends or the client goes.
    pub(super) async fn write(mut self) -> io::Result<()> {
        loop {
            let mut more = [0; 1];
            let frame = tokio::select! {
                frame = next(&mut self.body) => frame,
                read = self.socket.read(&mut more), if !self.said_more => {
                    if read? == 0 {
                        return Ok(());
                    }
                    self.said_more = true;
                    continue;
                }
            };
            let Some(frame) = frame else { break };
            // Trailers have no place in events.
            let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
            // An empty chunk would be the end.
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
