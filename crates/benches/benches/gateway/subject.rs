//! The gateway, as it is shipped.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use testkit::{Folder, Program, Running};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(30);

/// A queue in which nobody is matched.
const QUEUE: &str = "[matchmaking.queues.waiting]\n";

pub(crate) struct Gateway {
    running: Running,
    addresses: HashMap<String, String>,
    _folder: Folder,
}

/// A ticket that waits, and the headers by which its player asks for it.
pub(crate) struct Ticket {
    id: String,
    head: String,
}

impl Gateway {
    pub(crate) async fn start(program: &Path) -> Self {
        let folder = Folder::fresh().unwrap();
        let config = folder.path().join("bench.toml");
        std::fs::write(&config, format!("{}{QUEUE}", benches::CONFIG)).unwrap();
        let running = Program::new(program)
            .args(["serve", "--print-addresses", "--config", config.to_str().unwrap()])
            .env("PLAYHOUSE_DB_URL", format!("sqlite:{}", folder.path().join("bench.db").display()))
            .start()
            .unwrap();
        let line = running.wait_for_line("\"admin\":", PATIENCE).await;
        Self { addresses: serde_json::from_str(&line).unwrap(), running, _folder: folder }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses["gateway"].parse().unwrap()
    }

    /// Tokens of so many players.
    pub(crate) async fn players(&self, count: usize) -> Vec<String> {
        let mut tokens = Vec::with_capacity(count);
        for at in 0..count {
            let ask = format!(
                "POST /issuer/tokens?user=player-{at} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {}\r\n\
                 connection: close\r\n\r\n",
                benches::OPERATOR_TOKEN
            );
            let answer = self.ask(&self.addresses["admin"], &ask).await;
            tokens.push(field(&answer, "token"));
        }
        tokens
    }

    /// A ticket that waits for each of these players.
    pub(crate) async fn tickets(&self, players: &[String]) -> Vec<Ticket> {
        const BODY: &str = "{\"queue\":\"waiting\"}";
        let mut tickets = Vec::with_capacity(players.len());
        for player in players {
            let head =
                format!("host: bench\r\nauthorization: Bearer {player}\r\nx-forwarded-for: 10.2.0.1\r\n");
            let ask = format!(
                "POST /v1/matchmaking/tickets HTTP/1.1\r\n{head}connection: close\r\ncontent-type: \
                 application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
                BODY.len()
            );
            let answer = self.ask(&self.addresses["gateway"], &ask).await;
            tickets.push(Ticket { id: field(&answer, "ticket_id"), head });
        }
        tickets
    }

    /// Opens so many streams of these tickets, in turn.
    pub(crate) async fn streams(&self, tickets: &[Ticket], count: usize) -> Vec<TcpStream> {
        let mut streams = Vec::with_capacity(count);
        for Ticket { id, head } in tickets.iter().cycle().take(count) {
            let mut stream = TcpStream::connect(self.address()).await.unwrap();
            let ask = format!("GET /v1/matchmaking/tickets/{id}/stream HTTP/1.1\r\n{head}\r\n");
            stream.write_all(ask.as_bytes()).await.unwrap();
            let mut start = Vec::new();
            while !start.windows(8).any(|part| part == b"WAITING\"") {
                let mut buffer = [0; 4096];
                let read = stream.read(&mut buffer).await.unwrap();
                start.extend_from_slice(&buffer[..read]);
                assert!(read > 0, "{}", String::from_utf8_lossy(&start));
            }
            streams.push(stream);
        }
        streams
    }

    async fn ask(&self, to: &str, request: &str) -> String {
        let mut socket = TcpStream::connect(to).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

fn field(answer: &str, name: &str) -> String {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    body[name].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}
