//! Server-sent events of services, which the gateway serves.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use base::Code;
use futures::StreamExt;
use futures::stream::BoxStream;
use http_server::Problem;
use serde::Serialize;

/// The response of a player route that is a stream. The gateway sends the events while the caller is signed in. It counts the stream
/// against `gateway.max_streams`, sends heartbeats, and asks clients to reconnect when the process stops.
#[derive(Clone)]
pub struct PlayerEvents(Arc<Mutex<Option<BoxStream<'static, Bytes>>>>);

impl PlayerEvents {
    /// Creates a response of events that are formatted by [`event`]. It ends when the stream ends.
    pub fn new(events: impl futures::Stream<Item = Bytes> + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(events.boxed()))))
    }

    /// Takes the events out of a response. Returns none for any other response.
    pub fn take(response: &mut Response) -> Option<BoxStream<'static, Bytes>> {
        let Self(events) = response.extensions_mut().remove()?;
        events.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Carries the events to the gateway, the only server that can send them.
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

/// Formats an event. A client that reconnects sends the last `id` that it received.
pub fn event(id: Option<i64>, name: &str, data: &impl Serialize) -> Bytes {
    // Serialising plain values cannot fail.
    let data = serde_json::to_string(data).unwrap_or_default();
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    Bytes::from(format!("{id}event: {name}\ndata: {data}\n\n"))
}
