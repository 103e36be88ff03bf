//! A client of `/v1/stream` on its own socket, which can disconnect in the middle of an event or stop reading.

use std::collections::BTreeSet;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};

use crate::*;

/// Bytes per read.
const READ_SIZE: usize = 16 << 10;
/// How many times a stream may send counts before the event that a test waits for.
const MAX_COUNTS: usize = 10;

/// A stream. Dropping it closes the connection.
pub(super) struct Stream {
    socket: TcpStream,
    /// Bytes of HTTP that are not decoded yet.
    raw: Vec<u8>,
    /// Decoded text that is not an event yet.
    text: Vec<u8>,
    /// Bytes left of the current chunk.
    chunk: Option<usize>,
    /// The reconnect delay in milliseconds that the stream has sent.
    pub(super) retry: Option<u64>,
    /// How many comments were received, which are heartbeats.
    pub(super) heartbeats: usize,
}

/// An event of a stream.
#[derive(Clone, Debug)]
pub(super) struct StreamEvent {
    pub(super) id: Option<i64>,
    pub(super) name: String,
    pub(super) data: Value,
}

impl Stream {
    pub(super) async fn open(at: &str, token: &str, last: Option<i64>) -> Self {
        let last = last.map(|last| format!("last-event-id: {last}\r\n")).unwrap_or_default();
        Self::open_on(TcpSocket::new_v4().unwrap(), at, token, &last).await
    }

    /// Opens a stream on this socket with these headers and waits for the head of the response.
    pub(super) async fn open_on(socket: TcpSocket, at: &str, token: &str, headers: &str) -> Self {
        let mut stream = Self::send_request(socket, at, token, headers).await;
        let deadline = Instant::now() + PATIENCE;
        while !stream.take_head() {
            let some = timeout_at(deadline, stream.read(READ_SIZE)).await;
            assert!(
                some.expect("no response in time"),
                "no response: {:?}",
                String::from_utf8_lossy(&stream.raw)
            );
        }
        stream
    }

    /// Sends the request without waiting for the response.
    pub(super) async fn send_request(socket: TcpSocket, at: &str, token: &str, headers: &str) -> Self {
        let mut socket = socket.connect(at.parse().unwrap()).await.unwrap();
        let request = format!(
            "GET /v1/stream HTTP/1.1\r\nhost: {at}\r\nauthorization: Bearer {token}\r\n{headers}\r\n"
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        Self { socket, raw: Vec::new(), text: Vec::new(), chunk: None, retry: None, heartbeats: 0 }
    }

    /// Removes the head of the response from the buffer. Returns false if it has not arrived.
    fn take_head(&mut self) -> bool {
        let Some(end) = find(&self.raw, b"\r\n\r\n") else { return false };
        let head = String::from_utf8(self.raw.drain(..end + 4).collect()).unwrap().to_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        self.decode();
        true
    }

    /// Reads up to `limit` bytes. Returns false at the end of the stream.
    pub(super) async fn read(&mut self, limit: usize) -> bool {
        let mut some = vec![0; limit];
        // A reset is an end, too.
        let count = self.socket.read(&mut some).await.unwrap_or(0);
        self.raw.extend_from_slice(&some[..count]);
        count > 0
    }

    /// Decodes chunks.
    fn decode(&mut self) {
        loop {
            match self.chunk {
                None => {
                    let Some(end) = find(&self.raw, b"\r\n") else { return };
                    let size = std::str::from_utf8(&self.raw[..end]).unwrap();
                    self.chunk = Some(usize::from_str_radix(size, 16).unwrap());
                    self.raw.drain(..end + 2);
                }
                Some(0) if self.raw.len() < 2 => return,
                Some(0) => {
                    self.raw.drain(..2);
                    self.chunk = None;
                }
                Some(_) if self.raw.is_empty() => return,
                Some(left) => {
                    let taken = left.min(self.raw.len());
                    self.text.extend(self.raw.drain(..taken));
                    self.chunk = Some(left - taken);
                }
            }
        }
    }

    /// Returns the next complete event.
    pub(super) fn pop(&mut self) -> Option<StreamEvent> {
        self.decode();
        while let Some(end) = find(&self.text, b"\n\n") {
            let block = String::from_utf8(self.text.drain(..end + 2).collect()).unwrap();
            let field =
                |name: &str| block.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
            if let Some(retry) = field("retry:") {
                self.retry = Some(retry.parse().unwrap());
            }
            match (field("event:"), field("data:")) {
                (Some(name), Some(data)) => {
                    let id = field("id:").map(|id| id.parse().unwrap());
                    return Some(StreamEvent { id, name, data: serde_json::from_str(&data).unwrap() });
                }
                _ => self.heartbeats += usize::from(block.starts_with(':')),
            }
        }
        None
    }

    /// Waits for the next event. Returns `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Option<StreamEvent> {
        self.next_within(PATIENCE * 3).await
    }

    pub(super) async fn next_within(&mut self, patience: Duration) -> Option<StreamEvent> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(event) = self.pop() {
                return Some(event);
            }
            let some = timeout_at(deadline, self.read(READ_SIZE)).await;
            if !some
                .unwrap_or_else(|_| panic!("no event within {patience:?}, {} heartbeats", self.heartbeats))
            {
                return None;
            }
        }
    }

    /// Waits for the next event and asserts its name. Some `inbox` events may come before it: a stream that finds itself behind its
    /// inbox at a heartbeat sends the counts again.
    pub(super) async fn expect(&mut self, name: &str) -> StreamEvent {
        for _ in 0..=MAX_COUNTS {
            let event = self.next().await.unwrap_or_else(|| panic!("the stream ended without {name}"));
            if event.name == name {
                return event;
            }
            assert_eq!(event.name, "inbox", "instead of {name}: {event:?}");
        }
        panic!("counts came more than {MAX_COUNTS} times, and no {name}");
    }

    /// Waits for an `inbox` event with these counts. Some others may come before it, for the same reason.
    pub(super) async fn expect_counts(&mut self, counts: &Value) -> StreamEvent {
        for _ in 0..=MAX_COUNTS {
            let event = self.expect("inbox").await;
            if event.data == *counts {
                return event;
            }
        }
        panic!("other counts came more than {MAX_COUNTS} times, and not {counts}");
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// The notifications that a client received over all its connections.
pub(super) struct Received {
    /// The position from which the next connection resumes.
    pub(super) last: i64,
    pub(super) notifications: Vec<Value>,
}

impl Received {
    /// Starts after this position.
    pub(super) fn after(last: i64) -> Self {
        Self { last, notifications: Vec::new() }
    }

    /// Adds an event. Fails if a notification is not the next one, so none may be lost or repeated.
    #[track_caller]
    pub(super) fn add(&mut self, event: StreamEvent) {
        if event.name == "notification" {
            assert_eq!(event.id, Some(self.last + 1), "after {}: {event:?}", self.last);
            assert_eq!(event.data["position"], self.last + 1, "{event:?}");
            self.last += 1;
            self.notifications.push(event.data);
        }
    }

    /// Adds events of a stream until `count` notifications have arrived. Returns false if the stream ends first.
    pub(super) async fn read_until(&mut self, stream: &mut Stream, count: usize) -> bool {
        while self.notifications.len() < count {
            let Some(event) = stream.next().await else { return false };
            self.add(event);
        }
        true
    }

    /// Returns the ids of all notifications. Fails if one was received twice.
    #[track_caller]
    pub(super) fn ids(&self) -> BTreeSet<String> {
        ids(&self.notifications)
    }
}

/// Returns the ids of notifications. Fails if one occurs twice.
#[track_caller]
pub(super) fn ids(notifications: &[Value]) -> BTreeSet<String> {
    let id = |notification: &Value| notification["notification_id"].as_str().unwrap().to_owned();
    let ids: BTreeSet<String> = notifications.iter().map(id).collect();
    assert_eq!(ids.len(), notifications.len(), "a notification occurs twice");
    ids
}

/// Returns the numbers of news. Fails if one occurs twice.
#[track_caller]
pub(super) fn numbers<'a>(notifications: impl IntoIterator<Item = &'a Value>) -> BTreeSet<u64> {
    let mut numbers = BTreeSet::new();
    for notification in notifications {
        if let Some(n) = notification["data"]["n"].as_u64() {
            assert!(numbers.insert(n), "{n} occurs twice");
        }
    }
    numbers
}
