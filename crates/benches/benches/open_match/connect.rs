//! A minimal client of the Connect protocol over HTTP/1.1, with encoded messages.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: &str) -> Self {
        Self { socket: TcpStream::connect(address).await.unwrap(), buffer: Vec::new() }
    }

    /// Calls a method that returns one message.
    pub(crate) async fn call(&mut self, path: &str, message: &[u8]) -> Vec<u8> {
        self.send(path, "application/proto", message).await
    }

    /// Calls a method that returns a stream. Returns its messages.
    pub(crate) async fn stream(&mut self, path: &str, message: &[u8]) -> Vec<Vec<u8>> {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let body = [&[0][..], &length, message].concat();
        let body = self.send(path, "application/connect+proto", &body).await;
        let (mut rest, mut messages) = (&body[..], Vec::new());
        while let Some((head, more)) = rest.split_at_checked(5) {
            let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
            match head[0] {
                0 => messages.push(more[..length].to_vec()),
                _ => assert!(!more.starts_with(b"{\"error\""), "{}", String::from_utf8_lossy(more)),
            }
            rest = &more[length..];
        }
        messages
    }

    async fn send(&mut self, path: &str, kind: &str, body: &[u8]) -> Vec<u8> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\nconnect-protocol-version: 1\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        self.socket.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        let end = self.until(0, b"\r\n\r\n").await;
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        self.buffer.drain(..end);
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        match length {
            Some(length) => self.take(length.parse().unwrap()).await,
            None => self.chunks().await,
        }
    }

    async fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let end = self.until(0, b"\r\n").await;
            let size = String::from_utf8_lossy(&self.buffer[..end - 2]).into_owned();
            self.buffer.drain(..end);
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            let chunk = self.take(size + 2).await;
            if size == 0 {
                return body;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }

    async fn take(&mut self, size: usize) -> Vec<u8> {
        while self.buffer.len() < size {
            self.read().await;
        }
        self.buffer.drain(..size).collect()
    }

    /// Reads until these bytes. Returns where they end.
    async fn until(&mut self, from: usize, bytes: &[u8]) -> usize {
        loop {
            let found = self.buffer[from..].windows(bytes.len()).position(|window| window == bytes);
            match found {
                Some(at) => return from + at + bytes.len(),
                None => self.read().await,
            }
        }
    }

    async fn read(&mut self) {
        self.buffer.reserve(256 << 10);
        let read = self.socket.read_buf(&mut self.buffer).await.unwrap();
        assert_ne!(read, 0, "the connection was closed");
    }
}
