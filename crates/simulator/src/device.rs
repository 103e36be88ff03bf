//! A device of a player: one stream, which resumes where it was.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use reqwest::Client;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::api::GaveUp;
use crate::history::DeviceHistory;
use crate::meter::Meter;
use crate::session::{Session, UNAUTHORIZED};
use crate::world::World;

/// The wait before a reconnect if the server named none.
const RETRY: Duration = Duration::from_millis(500);
/// Says in milliseconds how often a stream has a byte at least.
const HEARTBEAT: &str = "x-playhouse-heartbeat";
/// The interval of the heartbeat if the server does not say it.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(15);
/// After this many heartbeats without a byte the connection is dead, as in the clients that we ship.
const MISSED_HEARTBEATS: f64 = 2.5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a stream may take to begin.
const START_TIMEOUT: Duration = Duration::from_secs(15);

/// The events of a player, from all devices.
pub(crate) trait OnEvent: Send + Sync + 'static {
    fn on_event(&self, kind: &str, data: &Value);
}

/// A device. Its stream is open while `online` is true.
#[derive(Debug)]
pub(crate) struct Device {
    history: Mutex<DeviceHistory>,
}

/// Creates the client for streams: each has a connection of its own, and no deadline.
pub(crate) fn stream_client() -> Result<Client, GaveUp> {
    let client = Client::builder().connect_timeout(CONNECT_TIMEOUT).pool_max_idle_per_host(0).build();
    client.map_err(|error| GaveUp(format!("cannot create an HTTP client: {error}")))
}

impl Device {
    pub(crate) fn new(from: u64) -> Self {
        Self { history: Mutex::new(DeviceHistory { from, ..DeviceHistory::default() }) }
    }

    pub(crate) fn history(&self) -> DeviceHistory {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the position of the last notification.
    pub(crate) fn position(&self) -> u64 {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.seen.last().map_or(history.from, |(position, _)| *position)
    }

    /// Follows the stream until the sender of `online` is gone.
    pub(crate) async fn run(
        self: Arc<Self>,
        world: Arc<World>,
        session: Arc<Session>,
        events: Arc<dyn OnEvent>,
        mut online: watch::Receiver<bool>,
    ) {
        let mut is_first = true;
        while online.wait_for(|online| *online).await.is_ok() {
            if !std::mem::take(&mut is_first) {
                world.api.meter.count(|counts| counts.reconnects += 1);
            }
            let retry = tokio::select! {
                retry = self.follow(&world, &session, events.as_ref()) => retry,
                changed = online.wait_for(|online| !*online) => match changed {
                    Ok(_) => continue,
                    Err(_) => return,
                },
            };
            tokio::time::sleep(retry).await;
        }
    }

    /// Follows one stream until it ends. Returns how long to wait before the next one.
    async fn follow(&self, world: &World, session: &Session, events: &dyn OnEvent) -> Duration {
        let position = self.position();
        let url = format!("{}/v1/stream", world.api.gateway());
        let from = session.credentials().await;
        let request = from.sign(world.streams.get(url));
        let sent = timeout(START_TIMEOUT, request.header("last-event-id", position).send()).await;
        let Ok(Ok(mut response)) = sent else { return RETRY };
        if response.status() == UNAUTHORIZED && session.renew(&from).await.is_ok() {
            return RETRY;
        }
        if !response.status().is_success() {
            return RETRY * 4;
        }
        let _open = OpenStream::new(&world.api.meter);
        let (mut parser, mut retry) = (Parser::default(), RETRY);
        let silence = silence(response.headers());
        loop {
            let chunk = match timeout(silence, response.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(_) => break,
                Err(_) => {
                    world.api.meter.count(|counts| counts.silences += 1);
                    break;
                }
            };
            for event in parser.push(&chunk) {
                if let Some(wait) = event.retry {
                    retry = wait;
                }
                let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
                self.record(&event.kind, &data, world);
                events.on_event(&event.kind, &data);
            }
        }
        retry
    }

    fn record(&self, kind: &str, data: &Value, world: &World) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        match kind {
            "ready" if data["resumed"] == false => history.not_resumed += 1,
            "notification" => {
                let id = data["notification_id"].as_str().unwrap_or_default().to_owned();
                history.seen.push((data["position"].as_u64().unwrap_or_default(), id));
                drop(history);
                world.api.meter.count(|counts| counts.notified += 1);
            }
            _ => {}
        }
    }
}

/// Returns after how much silence a stream is dead.
fn silence(headers: &HeaderMap) -> Duration {
    let interval = headers.get(HEARTBEAT).and_then(|value| value.to_str().ok()?.parse().ok());
    interval.map_or(DEFAULT_HEARTBEAT, Duration::from_millis).mul_f64(MISSED_HEARTBEATS)
}

/// Counts a stream while it is open.
struct OpenStream<'a>(&'a Meter);

impl<'a> OpenStream<'a> {
    fn new(meter: &'a Meter) -> Self {
        meter.count(|counts| counts.streams += 1);
        Self(meter)
    }
}

impl Drop for OpenStream<'_> {
    fn drop(&mut self) {
        self.0.closed_stream();
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Event {
    kind: String,
    data: String,
    retry: Option<Duration>,
}

/// Parses server-sent events from chunks.
#[derive(Debug, Default)]
struct Parser {
    rest: Vec<u8>,
    event: Event,
}

impl Parser {
    fn push(&mut self, chunk: &[u8]) -> Vec<Event> {
        self.rest.extend_from_slice(chunk);
        let mut events = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                let event = std::mem::take(&mut self.event);
                if event != Event::default() {
                    events.push(event);
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut self.event.kind),
                "data" if self.event.data.is_empty() => value.clone_into(&mut self.event.data),
                "data" => {
                    self.event.data.push('\n');
                    self.event.data.push_str(value);
                }
                "retry" => self.event.retry = value.parse().ok().map(Duration::from_millis),
                _ => {}
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_the_bytes_arrive() {
        let text = b"retry: 250\n\n:\n\nevent: ready\ndata: {}\n\nid: 7\nevent: notification\r\ndata: a\ndata: b\n\n";
        let whole = Parser::default().push(text);
        assert_eq!(whole.len(), 3);
        assert_eq!(whole[0].retry, Some(Duration::from_millis(250)));
        assert_eq!((whole[2].kind.as_str(), whole[2].data.as_str()), ("notification", "a\nb"));
        for size in 1..text.len() {
            let mut parser = Parser::default();
            let events: Vec<Event> = text.chunks(size).flat_map(|chunk| parser.push(chunk)).collect();
            assert_eq!(events, whole, "in chunks of {size}");
        }
    }
}
