//! The reference: an axum server with an empty handler and one with an idle stream, in a separate process.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use futures::{Stream, StreamExt, stream};
use testkit::{Program, RunningProgram};

const VARIABLE: &str = "BENCH_REFERENCE";
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns whether this process was started as the reference.
pub(crate) fn is_reference() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Serves until it is killed.
#[expect(clippy::print_stdout, reason = "reports its address to the parent")]
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
    running: RunningProgram,
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
    let running = Program::new(std::env::current_exe().unwrap()).env(VARIABLE, "1").start().unwrap();
    let line = running.wait_for_line("at ", TIMEOUT).await;
    let address = line.strip_prefix("at ").unwrap().parse().unwrap();
    Reference { running, address }
}
