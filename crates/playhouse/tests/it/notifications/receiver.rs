//! A customer's server that receives webhooks.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tokio::net::TcpListener;

use crate::*;

/// The server. Cheap to clone; clones share state.
#[derive(Clone)]
pub(super) struct Receiver {
    address: String,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    /// The status of its responses, and their delay.
    response: (StatusCode, Duration),
    requests: Vec<ReceivedRequest>,
}

/// A request that the server received.
#[derive(Clone, Debug)]
pub(super) struct ReceivedRequest {
    /// The `webhook-id`, the same for all attempts.
    pub(super) id: String,
    pub(super) title: String,
    pub(super) at: Instant,
    pub(super) status: StatusCode,
}

impl Receiver {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inner: Arc<Mutex<Inner>> = Arc::default();
        let this = Self { address: listener.local_addr().unwrap().to_string(), inner };
        let routes = Router::new().route("/", post(receive)).with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        this
    }

    /// Sets the status and the delay of later responses.
    pub(super) fn set_response(&self, status: StatusCode, delay: Duration) {
        self.inner.lock().unwrap().response = (status, delay);
    }

    pub(super) fn requests(&self) -> Vec<ReceivedRequest> {
        self.inner.lock().unwrap().requests.clone()
    }

    /// Returns the settings of a destination that sends to this server.
    pub(super) fn settings(&self, name: &str) -> String {
        format!(
            "[notification.webhooks.{name}]\nurl = \"http://{}/\"\n\
             secrets = [\"whsec_ZXhhbXBsZSBvZiBhIHNlY3JldCB0aGF0IHNpZ25z\"]\n\
             allow_networks = [\"127.0.0.0/8\"]\nretry_min = \"10ms\"\nretry_max = \"20ms\"\n",
            self.address
        )
    }
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: String) -> StatusCode {
    let at = Instant::now();
    let body: Value = serde_json::from_str(&body).unwrap();
    let (status, delay) = receiver.inner.lock().unwrap().response;
    tokio::time::sleep(delay).await;
    let request = ReceivedRequest {
        id: headers["webhook-id"].to_str().unwrap().to_owned(),
        title: body["data"]["texts"]["en"]["title"].as_str().unwrap().to_owned(),
        at,
        status,
    };
    receiver.inner.lock().unwrap().requests.push(request);
    status
}
