//! What it is compared with: an axum server with a handler that does nothing and one whose stream stays idle, in a process of its own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use futures::{Stream, StreamExt, stream};
use testkit::{Program, Running};

const WANTED: &str = "BENCH_REFERENCE";
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether this process is to be the reference.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os(WANTED).is_some()
}

/// Serves until killed, as axum's own example does.
#[expect(clippy::print_stdout, reason = "it tells where it is")]
pub(crate) fn serve() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("at {}", listener.local_addr().unwrap());
        let router = Router::new().route("/", get(async || "")).route("/events", get(events));
        axum::serve(listener, router).await.unwrap();
    });
}

async fn events() -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let hello = stream::iter([Ok(Event::default().data("hello"))]);
    Sse::new(hello.chain(stream::pending())).keep_alive(KeepAlive::default())
}

pub(crate) struct Reference {
    running: Running,
    address: SocketAddr,
}

impl Reference {
    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

pub(crate) async fn start() -> Reference {
    let running = Program::new(std::env::current_exe().unwrap()).env(WANTED, "1").start().unwrap();
    let line = running.wait_for_line("at ", PATIENCE).await;
    let address = line.strip_prefix("at ").unwrap().parse().unwrap();
    Reference { running, address }
}
