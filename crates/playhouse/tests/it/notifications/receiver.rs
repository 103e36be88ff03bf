//! Somebody else's server that is told things by webhooks.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tokio::net::TcpListener;

use crate::*;

/// The server. Clones are the same.
#[derive(Clone)]
pub(super) struct Receiver {
    address: String,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    /// What it answers, and how late.
    answer: (StatusCode, Duration),
    got: Vec<Got>,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Got {
    /// What tells repeats.
    pub(super) id: String,
    pub(super) title: String,
    pub(super) at: Instant,
    pub(super) answer: StatusCode,
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

    /// Answers like this from now on.
    pub(super) fn answers(&self, status: StatusCode, after: Duration) {
        self.inner.lock().unwrap().answer = (status, after);
    }

    pub(super) fn got(&self) -> Vec<Got> {
        self.inner.lock().unwrap().got.clone()
    }

    /// The settings of a destination of this name, which is this server.
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
    let (answer, after) = receiver.inner.lock().unwrap().answer;
    tokio::time::sleep(after).await;
    let got = Got {
        id: headers["webhook-id"].to_str().unwrap().to_owned(),
        title: body["data"]["texts"]["en"]["title"].as_str().unwrap().to_owned(),
        at,
        answer,
    };
    receiver.inner.lock().unwrap().got.push(got);
    answer
}
