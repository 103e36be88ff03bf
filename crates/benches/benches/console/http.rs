//! A minimal HTTP/1.1 client, which costs little on the machine that it shares with the product.

use std::io;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A keep-alive connection. It reconnects if the server has closed it while it was idle.
pub(crate) struct Connection {
    address: String,
    socket: TcpStream,
    buffer: Vec<u8>,
}

pub(crate) struct Response {
    pub(crate) status: u16,
    /// The head, with names in lower case as the server sends them.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// Returns the value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON. Panics unless the request succeeded.
    pub(crate) fn json(&self) -> Value {
        assert!((200..300).contains(&self.status), "{}\n{}", self.head, self.text());
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Builds the bytes of a request. `headers` are lines that end with CRLF.
pub(crate) fn request(method: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = if method == "GET" { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    format!("{method} {path} HTTP/1.1\r\nhost: bench\r\n{headers}{length}\r\n{body}").into_bytes()
}

/// Builds the headers of a JSON request with a bearer token.
pub(crate) fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\ncontent-type: application/json\r\n")
}

impl Connection {
    pub(crate) async fn open(address: &str) -> Self {
        Self { address: address.to_owned(), socket: connect(address).await, buffer: Vec::new() }
    }

    pub(crate) async fn send(&mut self, request: &[u8]) -> Response {
        match self.try_send(request).await {
            Ok(response) => response,
            Err(_) => {
                self.socket = connect(&self.address).await;
                self.buffer.clear();
                self.try_send(request).await.unwrap()
            }
        }
    }

    async fn try_send(&mut self, request: &[u8]) -> io::Result<Response> {
        self.socket.write_all(request).await?;
        let end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            self.read().await?;
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        let mut response = Response { status: status(&head), head, body: Vec::new() };
        let length = response.header("content-length").map_or(0, |length| length.parse().unwrap());
        assert!(response.header("transfer-encoding").is_none(), "{}", response.head);
        while self.buffer.len() < end + length {
            self.read().await?;
        }
        response.body = self.buffer.drain(..end + length).skip(end).collect();
        Ok(response)
    }

    async fn read(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 * 1024];
        match self.socket.read(&mut piece).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.buffer.extend_from_slice(&piece[..read]);
                Ok(())
            }
        }
    }
}

/// A stream of server-sent events.
pub(crate) struct EventStream {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl EventStream {
    /// Opens the stream and waits for its first line.
    pub(crate) async fn open(address: &str, request: &[u8]) -> Self {
        let mut stream = Self { socket: connect(address).await, buffer: Vec::new() };
        stream.socket.write_all(request).await.unwrap();
        let end = loop {
            if let Some(end) = find(&stream.buffer, b"\r\n\r\n") {
                break end + 4;
            }
            assert!(stream.read().await, "{}", String::from_utf8_lossy(&stream.buffer));
        };
        let head: Vec<u8> = stream.buffer.drain(..end).collect();
        let head = String::from_utf8_lossy(&head).into_owned();
        assert_eq!(status(&head), 200, "{head}");
        stream
    }

    /// Waits for more events and returns their data. Returns none when the stream has ended. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Vec<Value>> {
        if !self.read().await {
            return None;
        }
        let mut events = Vec::new();
        // Each event is a chunk of its own, so that a line is never split by the length of a chunk.
        while let Some(end) = find(&self.buffer, b"\n\n") {
            let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
            let text = String::from_utf8_lossy(&event).into_owned();
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            events.extend(data.map(|data| serde_json::from_str::<Value>(data).unwrap()));
        }
        Some(events)
    }

    /// Returns false at the end of the stream.
    async fn read(&mut self) -> bool {
        let mut piece = [0; 4 * 1024];
        let read = self.socket.read(&mut piece).await.unwrap_or(0);
        self.buffer.extend_from_slice(&piece[..read]);
        // The last chunk is empty.
        read > 0 && !self.buffer.ends_with(b"\r\n0\r\n\r\n")
    }
}

async fn connect(address: &str) -> TcpStream {
    let socket = TcpStream::connect(address).await.unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}
