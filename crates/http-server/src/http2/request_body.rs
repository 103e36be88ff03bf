//! The body of an HTTP/2 request.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Bytes, HttpBody};
use h2::{Reason, RecvStream};
use hyper::body::{Frame, SizeHint};

/// The body of a request. Reading it opens the receive window again.
pub(super) struct RequestBody {
    stream: RecvStream,
    is_data_read: bool,
}

impl RequestBody {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self { stream, is_data_read: false }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.is_data_read {
            match ready!(self.stream.poll_data(context)) {
                Some(Ok(data)) => {
                    // Fails only if the stream is closed.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                // NO_ERROR: the body ends here without an error.
                Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.is_data_read = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(context))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.stream.is_end_stream() { SizeHint::with_exact(0) } else { SizeHint::default() }
    }
}
