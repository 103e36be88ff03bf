//! A minimal HTTP/1.1 client, which costs little on the machine that it shares with the product.

use std::io;
use std::time::Instant;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A keep-alive connection.
pub(crate) struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: &str) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket, buffer: Vec::new() }
    }

    pub(crate) async fn get(&mut self, path: &str, token: &str) -> Value {
        let head = format!("GET {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n\r\n");
        self.send(head.into_bytes()).await
    }

    pub(crate) async fn post(&mut self, path: &str, token: &str, key: &str, body: &Value) -> Value {
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\nidempotency-key: {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.send(request.into_bytes()).await
    }

    async fn send(&mut self, request: Vec<u8>) -> Value {
        self.socket.write_all(&request).await.unwrap();
        let head_end = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            self.read().await.unwrap();
        };
        let head = String::from_utf8_lossy(&self.buffer[..head_end]).to_lowercase();
        let length =
            head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()).unwrap_or("0");
        let length: usize = length.trim().parse().unwrap();
        while self.buffer.len() < head_end + length {
            self.read().await.unwrap();
        }
        let body: Vec<u8> = self.buffer.drain(..head_end + length).skip(head_end).collect();
        assert!(head.starts_with("http/1.1 2"), "{head}{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap_or_default()
    }

    async fn read(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 * 1024];
        let read = self.socket.read(&mut piece).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.buffer.extend_from_slice(&piece[..read]);
        Ok(())
    }
}

/// A player's event stream.
pub(crate) struct Events {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Events {
    /// Opens the stream and waits for its `ready` event.
    pub(crate) async fn open(address: &str, token: &str, forwarded_for: &str) -> Self {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "GET /v1/stream HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n\
             x-forwarded-for: {forwarded_for}\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut events = Self { socket, buffer: Vec::new() };
        while find(&events.buffer, b"event: ready").is_none() {
            events.read().await;
        }
        events.buffer = Vec::new();
        events
    }

    async fn read(&mut self) {
        let mut piece = [0; 16 * 1024];
        let read = self.socket.read(&mut piece).await.unwrap();
        assert!(read > 0, "the stream has ended: {}", String::from_utf8_lossy(&self.buffer));
        self.buffer.extend_from_slice(&piece[..read]);
    }

    /// Waits for the next notifications. Returns their time of arrival and the granted resources.
    pub(crate) async fn granted(&mut self) -> (Instant, Vec<u64>) {
        const FIELD: &[u8] = b"\"resource\":\"r";
        loop {
            self.read().await;
            let arrived = Instant::now();
            let Some(end) = rfind(&self.buffer, b"\n\n") else { continue };
            let complete: Vec<u8> = self.buffer.drain(..end + 2).collect();
            let mut granted = Vec::new();
            let mut rest = &complete[..];
            while let Some(at) = find(rest, FIELD) {
                rest = &rest[at + FIELD.len()..];
                let digits: String =
                    rest.iter().take_while(|c| c.is_ascii_digit()).map(|c| char::from(*c)).collect();
                granted.push(digits.parse().unwrap());
            }
            if !granted.is_empty() {
                return (arrived, granted);
            }
        }
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn rfind(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).rposition(|window| window == part)
}
