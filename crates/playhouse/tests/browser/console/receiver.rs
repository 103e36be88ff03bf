//! The programs that a site calls: two receivers of webhooks, and a service that allocates game servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A listener on loopback. The webhook `analytics` always succeeds. `partner` answers 410 Gone until it is repaired. `game` keeps requests
/// for servers waiting until it is released, and then refuses them all.
#[derive(Clone)]
pub(super) struct Receiver {
    address: SocketAddr,
    state: Arc<Answers>,
}

struct Answers {
    partner: AtomicU16,
    delivered: AtomicUsize,
    is_released: watch::Sender<bool>,
}

impl Receiver {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = Arc::new(Answers {
            partner: AtomicU16::new(StatusCode::GONE.as_u16()),
            delivered: AtomicUsize::new(0),
            is_released: watch::channel(false).0,
        });
        let routes = Router::new()
            .route("/analytics", post(async || StatusCode::OK))
            .route("/partner", post(partner))
            .route("/game", post(game))
            .with_state(Arc::clone(&state));
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { address, state }
    }

    pub(super) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    /// Sets what the partner answers to webhooks.
    pub(super) fn set_partner(&self, status: StatusCode) {
        self.state.partner.store(status.as_u16(), Ordering::SeqCst);
    }

    /// Returns how many webhooks the partner has accepted.
    pub(super) fn delivered(&self) -> usize {
        self.state.delivered.load(Ordering::SeqCst)
    }

    /// Refuses all requests for servers, also those that wait.
    pub(super) fn release_game(&self) {
        self.state.is_released.send_replace(true);
    }
}

async fn partner(State(state): State<Arc<Answers>>) -> StatusCode {
    let status = StatusCode::from_u16(state.partner.load(Ordering::SeqCst)).unwrap();
    if status.is_success() {
        state.delivered.fetch_add(1, Ordering::SeqCst);
    }
    status
}

async fn game(State(state): State<Arc<Answers>>, Json(message): Json<Value>) -> StatusCode {
    if message["type"] == "match.abandoned" {
        return StatusCode::FORBIDDEN;
    }
    let _ = state.is_released.subscribe().wait_for(|is_released| *is_released).await;
    StatusCode::INTERNAL_SERVER_ERROR
}
