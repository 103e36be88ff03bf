//! A webhook destination for tests.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::*;

/// The status of a receiver that never answers.
pub(crate) const HANGS: u16 = 0;

/// Records the requests that it receives, and answers with a configurable status.
pub(crate) struct Receiver {
    url: String,
    inner: Arc<Inner>,
}

struct Inner {
    status: AtomicU16,
    received: Mutex<Vec<(Instant, HeaderMap, serde_json::Value)>>,
}

impl Receiver {
    pub(crate) async fn start(status: u16) -> Self {
        let inner = Arc::new(Inner { status: AtomicU16::new(status), received: Mutex::default() });
        let router = Router::new().fallback(receive).with_state(inner.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, inner }
    }

    pub(crate) fn answer_with(&self, status: u16) {
        self.inner.status.store(status, Ordering::SeqCst);
    }

    /// Returns the configuration of this destination, with a short backoff.
    pub(crate) fn config(&self) -> webhook::Config {
        webhook::Config {
            url: self.url.parse().unwrap(),
            secrets: webhook::Secrets::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap(),
            timeout: Duration::from_secs(2),
            max_in_flight: 8,
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_millis(50)),
            allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
        }
    }

    /// Returns the times, ids and bodies of all messages.
    pub(crate) fn received(&self) -> Vec<(Instant, String, serde_json::Value)> {
        let received = self.inner.received.lock().unwrap();
        let id = |headers: &HeaderMap| headers["webhook-id"].to_str().unwrap().to_owned();
        received.iter().map(|(at, headers, body)| (*at, id(headers), body.clone())).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.inner.received.lock().unwrap().len()
    }
}

async fn receive(State(inner): State<Arc<Inner>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let body = serde_json::from_slice(&body).unwrap();
    inner.received.lock().unwrap().push((Instant::now(), headers, body));
    match inner.status.load(Ordering::SeqCst) {
        HANGS => std::future::pending().await,
        status => StatusCode::from_u16(status).unwrap(),
    }
}
