//! A minimal client: one request at a time per connection.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::future::join_all;
use open_match_load::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The statuses of responses.
pub(crate) const OK: &str = "200";
pub(crate) const TOO_MANY: &str = "429";

/// The results of a run.
pub(crate) struct Run {
    pub(crate) times: Histogram,
    pub(crate) took: Duration,
}

/// Returns the bytes of a request. Each player has its own client address.
pub(crate) fn request(path: &str, token: &str, player: usize) -> Vec<u8> {
    let [.., high, low] = player.to_be_bytes();
    let authorization =
        if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
    format!(
        "GET {path} HTTP/1.1\r\nhost: bench\r\nx-forwarded-for: 10.1.{high}.{low}\r\naccept: application/json\r\n{authorization}\r\n"
    )
    .into_bytes()
}

/// Sends each request once.
pub(crate) async fn once(to: SocketAddr, requests: &[Vec<u8>]) {
    let mut socket = TcpStream::connect(to).await.unwrap();
    let mut buffer = vec![0; 16 * 1024];
    for request in requests {
        socket.write_all(request).await.unwrap();
        read_response(&mut socket, &mut buffer, OK).await;
    }
}

/// Sends the requests in turn for `length`. Panics if a response has another status.
pub(crate) async fn run(
    to: SocketAddr,
    requests: &[Vec<u8>],
    status: &str,
    connections: usize,
    length: Duration,
) -> Run {
    let began = Instant::now();
    let end = began + length;
    let all = join_all((0..connections).map(|at| one(to, requests, status, at, end))).await;
    let took = began.elapsed();
    let mut times = Histogram::default();
    all.iter().for_each(|one| times.merge(one));
    Run { times, took }
}

async fn one(to: SocketAddr, requests: &[Vec<u8>], status: &str, first: usize, end: Instant) -> Histogram {
    let mut socket = TcpStream::connect(to).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let (mut times, mut buffer) = (Histogram::default(), vec![0; 16 * 1024]);
    for request in requests.iter().cycle().skip(first) {
        let began = Instant::now();
        if began >= end {
            break;
        }
        socket.write_all(request).await.unwrap();
        read_response(&mut socket, &mut buffer, status).await;
        times.record(began.elapsed());
    }
    times
}

/// Reads one response and checks its status.
async fn read_response(socket: &mut TcpStream, buffer: &mut [u8], status: &str) {
    let mut filled = 0;
    loop {
        let read = socket.read(&mut buffer[filled..]).await.unwrap();
        assert!(read > 0, "the connection was closed");
        filled += read;
        let Some(head) = buffer[..filled].windows(4).position(|end| end == b"\r\n\r\n") else { continue };
        let text = std::str::from_utf8(&buffer[..head]).unwrap();
        assert_eq!(text.split(' ').nth(1), Some(status), "{text}");
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if filled >= head + 4 + length.parse::<usize>().unwrap() {
            return;
        }
    }
}
