//! A client of `/v1/stream`, on its own socket: it can be cut off in the middle of a word, or stop reading.

use std::collections::BTreeSet;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};

use crate::*;

/// How much is read at once.
const AT_ONCE: usize = 16 << 10;
/// How often a stream may send counts before the event that a test waits for.
const MOST_COUNTS: usize = 10;

/// A stream. Dropping it closes the connection.
pub(super) struct Stream {
    socket: TcpStream,
    /// What was read and not yet understood: chunks of HTTP, then events.
    raw: Vec<u8>,
    text: Vec<u8>,
    /// How much is left of the chunk that is being read.
    chunk: Option<usize>,
    /// How soon to connect again, in milliseconds, once the stream has said so.
    pub(super) retry: Option<u64>,
    /// How many comments came, which say that the stream is alive.
    pub(super) beats: usize,
}

/// An event of a stream.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) id: Option<i64>,
    pub(super) name: String,
    pub(super) data: Value,
}

impl Stream {
    pub(super) async fn open(at: &str, token: &str, last: Option<i64>) -> Self {
        let last = last.map(|last| format!("last-event-id: {last}\r\n")).unwrap_or_default();
        Self::ask(TcpSocket::new_v4().unwrap(), at, token, &last).await
    }

    /// With a socket of one's own, and these headers.
    pub(super) async fn ask(socket: TcpSocket, at: &str, token: &str, headers: &str) -> Self {
        let mut stream = Self::begin(socket, at, token, headers).await;
        let deadline = Instant::now() + PATIENCE;
        while !stream.has_answer() {
            let some = timeout_at(deadline, stream.read(AT_ONCE)).await;
            assert!(
                some.expect("an answer in time"),
                "no answer: {:?}",
                String::from_utf8_lossy(&stream.raw)
            );
        }
        stream
    }

    /// Asks, and does not wait for an answer.
    pub(super) async fn begin(socket: TcpSocket, at: &str, token: &str, headers: &str) -> Self {
        let mut socket = socket.connect(at.parse().unwrap()).await.unwrap();
        let request = format!(
            "GET /v1/stream HTTP/1.1\r\nhost: {at}\r\nauthorization: Bearer {token}\r\n{headers}\r\n"
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        Self { socket, raw: Vec::new(), text: Vec::new(), chunk: None, retry: None, beats: 0 }
    }

    /// Whether the head of the answer is there; then it is taken off.
    fn has_answer(&mut self) -> bool {
        let Some(end) = find(&self.raw, b"\r\n\r\n") else { return false };
        let head = String::from_utf8(self.raw.drain(..end + 4).collect()).unwrap().to_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        self.decode();
        true
    }

    /// Reads some bytes, and not more than so many. Says whether there were any.
    pub(super) async fn read(&mut self, most: usize) -> bool {
        let mut some = vec![0; most];
        // A connection that was reset is at its end, too.
        let count = self.socket.read(&mut some).await.unwrap_or(0);
        self.raw.extend_from_slice(&some[..count]);
        count > 0
    }

    /// Takes the chunks apart.
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

    /// The next event of those that have been read to their end.
    pub(super) fn pop(&mut self) -> Option<Told> {
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
                    return Some(Told { id, name, data: serde_json::from_str(&data).unwrap() });
                }
                _ => self.beats += usize::from(block.starts_with(':')),
            }
        }
        None
    }

    /// The next event; nothing when the stream is over.
    pub(super) async fn next(&mut self) -> Option<Told> {
        self.next_within(PATIENCE * 3).await
    }

    pub(super) async fn next_within(&mut self, patience: Duration) -> Option<Told> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(told) = self.pop() {
                return Some(told);
            }
            let some = timeout_at(deadline, self.read(AT_ONCE)).await;
            if !some.unwrap_or_else(|_| panic!("no event within {patience:?}, {} beats", self.beats)) {
                return None;
            }
        }
    }

    /// Returns the next event, which has this name. Some `inbox` events may come before it: a stream that finds itself behind its
    /// inbox, which it may at any heartbeat, sends the counts again.
    pub(super) async fn expect(&mut self, name: &str) -> Told {
        for _ in 0..=MOST_COUNTS {
            let told = self.next().await.unwrap_or_else(|| panic!("over, without {name}"));
            if told.name == name {
                return told;
            }
            assert_eq!(told.name, "inbox", "instead of {name}: {told:?}");
        }
        panic!("{MOST_COUNTS} times counts, and no {name}");
    }

    /// Returns the next event with these counts. Some others may come before it, for the same reason.
    pub(super) async fn expect_counts(&mut self, counts: &Value) -> Told {
        for _ in 0..=MOST_COUNTS {
            let told = self.expect("inbox").await;
            if told.data == *counts {
                return told;
            }
        }
        panic!("{MOST_COUNTS} times other counts than {counts}");
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// What a client has been told, over all its connections.
pub(super) struct Tape {
    /// Where the next connection goes on from.
    pub(super) last: i64,
    pub(super) notifications: Vec<Value>,
}

impl Tape {
    /// Of somebody who was told up to here.
    pub(super) fn from(last: i64) -> Self {
        Self { last, notifications: Vec::new() }
    }

    /// Takes an event down. A notification is the next one, or something was lost, or came twice.
    #[track_caller]
    pub(super) fn take(&mut self, told: Told) {
        if told.name == "notification" {
            assert_eq!(told.id, Some(self.last + 1), "after {}: {told:?}", self.last);
            assert_eq!(told.data["position"], self.last + 1, "{told:?}");
            self.last += 1;
            self.notifications.push(told.data);
        }
    }

    /// Takes down what a stream tells, until so many notifications are there. Says whether it came to that.
    pub(super) async fn record(&mut self, stream: &mut Stream, count: usize) -> bool {
        while self.notifications.len() < count {
            let Some(told) = stream.next().await else { return false };
            self.take(told);
        }
        true
    }

    /// The ids of all notifications: as many as there are notifications, or one came twice.
    #[track_caller]
    pub(super) fn ids(&self) -> BTreeSet<String> {
        ids(&self.notifications)
    }
}

/// The ids of notifications, each of which is there once.
#[track_caller]
pub(super) fn ids(notifications: &[Value]) -> BTreeSet<String> {
    let id = |notification: &Value| notification["notification_id"].as_str().unwrap().to_owned();
    let ids: BTreeSet<String> = notifications.iter().map(id).collect();
    assert_eq!(ids.len(), notifications.len(), "a notification is there twice");
    ids
}

/// The numbers of news, each of which is there once.
#[track_caller]
pub(super) fn numbers<'a>(notifications: impl IntoIterator<Item = &'a Value>) -> BTreeSet<u64> {
    let mut numbers = BTreeSet::new();
    for notification in notifications {
        if let Some(n) = notification["data"]["n"].as_u64() {
            assert!(numbers.insert(n), "{n} is there twice");
        }
    }
    numbers
}
