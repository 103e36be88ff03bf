//! The release build of the gateway.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use testkit::{Folder, Program, RunningProgram};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A queue without a profile, so that no ticket is matched.
const QUEUE: &str = "[matchmaking.queues.waiting]\n";

pub(crate) struct Gateway {
    running: RunningProgram,
    addresses: HashMap<String, String>,
    _folder: Folder,
}

/// A waiting ticket, and the headers of its player's requests.
pub(crate) struct Ticket {
    id: String,
    head: String,
}

impl Gateway {
    pub(crate) async fn start(program: &Path) -> Self {
        Self::with(program, benches::CONFIG).await
    }

    /// Starts a gateway that accepts one request per address and day.
    pub(crate) async fn refusing(program: &Path) -> Self {
        let unlimited = "address = \"10000/s burst 1000000\"";
        assert!(benches::CONFIG.contains(unlimited));
        Self::with(program, &benches::CONFIG.replace(unlimited, "address = \"1/d\"")).await
    }

    async fn with(program: &Path, settings: &str) -> Self {
        let folder = Folder::fresh().unwrap();
        let config = folder.path().join("bench.toml");
        std::fs::write(&config, format!("{settings}{QUEUE}")).unwrap();
        let running = Program::new(program)
            .args(["serve", "--print-addresses", "--config", config.to_str().unwrap()])
            .env("PLAYHOUSE_DB_URL", format!("sqlite:{}", folder.path().join("bench.db").display()))
            .start()
            .unwrap();
        let line = running.wait_for_line("\"admin\":", TIMEOUT).await;
        Self { addresses: serde_json::from_str(&line).unwrap(), running, _folder: folder }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses["gateway"].parse().unwrap()
    }

    /// Returns tokens of `count` players.
    pub(crate) async fn players(&self, count: usize) -> Vec<String> {
        let mut tokens = Vec::with_capacity(count);
        for at in 0..count {
            let request = format!(
                "POST /issuer/tokens?user=player-{at} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {}\r\n\
                 connection: close\r\n\r\n",
                benches::OPERATOR_TOKEN
            );
            let answer = self.request(&self.addresses["admin"], &request).await;
            tokens.push(field(&answer, "token"));
        }
        tokens
    }

    /// Creates a waiting ticket for each player.
    pub(crate) async fn tickets(&self, players: &[String]) -> Vec<Ticket> {
        const BODY: &str = "{\"queue\":\"waiting\"}";
        let mut tickets = Vec::with_capacity(players.len());
        for player in players {
            let head =
                format!("host: bench\r\nauthorization: Bearer {player}\r\nx-forwarded-for: 10.2.0.1\r\n");
            let request = format!(
                "POST /v1/matchmaking/tickets HTTP/1.1\r\n{head}connection: close\r\ncontent-type: \
                 application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
                BODY.len()
            );
            let answer = self.request(&self.addresses["gateway"], &request).await;
            tickets.push(Ticket { id: field(&answer, "ticket_id"), head });
        }
        tickets
    }

    /// Opens `count` streams of the tickets, in turn.
    pub(crate) async fn streams(&self, tickets: &[Ticket], count: usize) -> Vec<TcpStream> {
        let mut streams = Vec::with_capacity(count);
        for Ticket { id, head } in tickets.iter().cycle().take(count) {
            let path = format!("/v1/matchmaking/tickets/{id}/stream");
            streams.push(open_stream(self.address(), &path, head, b"WAITING\"").await);
        }
        streams
    }

    /// Creates a drop and opens it. Returns its id.
    pub(crate) async fn drop(&self) -> String {
        const BODY: &str = r#"{"name":"bench","resource":"hat","stock":1000,"terms":{"price":{"amount":1,"currency":"EUR"},"per_player":1,
            "reservation_ms":60000,"admission":{"batch":10,"capacity":10,"lifetime_ms":60000,"arrive_within_ms":60000}}}"#;
        let head = format!(
            "host: bench\r\nauthorization: Bearer {}\r\nconnection: close\r\ncontent-type: application/json\r\n",
            benches::OPERATOR_TOKEN
        );
        let request = format!(
            "POST /drops HTTP/1.1\r\n{head}idempotency-key: bench\r\ncontent-length: {}\r\n\r\n{BODY}",
            BODY.len()
        );
        let id = field(&self.request(&self.addresses["admin"], &request).await, "drop_id");
        let request = format!("POST /drops/{id}/open HTTP/1.1\r\n{head}content-length: 2\r\n\r\n{{}}");
        assert_eq!(field(&self.request(&self.addresses["admin"], &request).await, "state"), "OPEN");
        id
    }

    /// Opens `count` streams of a drop's stock, by the players in turn.
    pub(crate) async fn stock_streams(&self, drop: &str, players: &[String], count: usize) -> Vec<TcpStream> {
        let mut streams = Vec::with_capacity(count);
        for player in players.iter().cycle().take(count) {
            let head =
                format!("host: bench\r\nauthorization: Bearer {player}\r\nx-forwarded-for: 10.2.0.1\r\n");
            let path = format!("/v1/drops/{drop}/stream");
            streams.push(open_stream(self.address(), &path, &head, b"event: stock").await);
        }
        streams
    }

    async fn request(&self, to: &str, request: &str) -> String {
        let mut socket = TcpStream::connect(to).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

/// Opens a stream and reads until `awaited` arrives.
pub(crate) async fn open_stream(to: SocketAddr, path: &str, head: &str, awaited: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\n{head}\r\n").as_bytes()).await.unwrap();
    let mut start = Vec::new();
    while !start.windows(awaited.len()).any(|part| part == awaited) {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await.unwrap();
        start.extend_from_slice(&buffer[..read]);
        assert!(read > 0, "{}", String::from_utf8_lossy(&start));
    }
    stream
}

fn field(answer: &str, name: &str) -> String {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    body[name].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}
