//! Server-sent events that a service brings to the gateway.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use base::Code;
use futures::StreamExt;
use futures::stream::BoxStream;
use http_server::Problem;
use serde::Serialize;

/// The answer of a player route that is a stream. The gateway sends the events as long as the caller is signed in: it counts the stream
/// against `gateway.max_streams`, sends heartbeats, and asks clients to connect again when the process stops.
#[derive(Clone)]
pub struct PlayerEvents(Arc<Mutex<Option<BoxStream<'static, Bytes>>>>);

impl PlayerEvents {
    /// Answers these events, each as [`event`] writes it. The end of the stream ends the answer.
    pub fn new(events: impl futures::Stream<Item = Bytes> + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(events.boxed()))))
    }

    /// Takes the events out of an answer. Returns none for any other answer.
    pub fn take(response: &mut Response) -> Option<BoxStream<'static, Bytes>> {
        let Self(events) = response.extensions_mut().remove()?;
        events.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Carries the events to the gateway. Nobody else serves them.
impl IntoResponse for PlayerEvents {
    fn into_response(self) -> Response {
        let mut response = Problem::new(Code::Internal).into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl fmt::Debug for PlayerEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlayerEvents").finish_non_exhaustive()
    }
}

/// Writes an event. A client that connects again sends the last `id` that it received.
pub fn event(id: Option<i64>, name: &str, data: &impl Serialize) -> Bytes {
    // Our data is plain values.
    let data = serde_json::to_string(data).unwrap_or_default();
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    Bytes::from(format!("{id}event: {name}\ndata: {data}\n\n"))
}
