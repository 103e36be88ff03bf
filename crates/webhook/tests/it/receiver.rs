//! Receivers of webhooks.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

type Received = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;
type Answer = Arc<dyn Fn() -> BoxFuture<'static, Response> + Send + Sync>;

/// A server that records its requests.
pub(crate) struct Receiver {
    pub(crate) port: u16,
    received: Received,
}

impl Receiver {
    /// Starts a server that responds at once.
    pub(crate) async fn start<R: IntoResponse>(answer: impl Fn() -> R + Send + Sync + 'static) -> Self {
        Self::start_slow(move || {
            let answer = answer().into_response();
            async { answer }
        })
        .await
    }

    /// Starts a server that responds when the future completes.
    pub(crate) async fn start_slow<F>(answer: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let received = Received::default();
        let answer: Answer = Arc::new(move || Box::pin(answer()));
        let router = Router::new().fallback(receive).with_state((received.clone(), answer));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { port, received }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook", self.port)
    }

    pub(crate) fn received(&self) -> Vec<(HeaderMap, Bytes)> {
        self.received.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.received.lock().unwrap().len()
    }
}

async fn receive(
    State((received, answer)): State<(Received, Answer)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    received.lock().unwrap().push((headers, body));
    answer().await
}

/// Starts a server that reads a request, writes `answer` and closes the connection. Returns its URL.
pub(crate) async fn start_raw(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _ = socket.read(&mut request).await;
            let _ = socket.write_all(answer.as_bytes()).await;
        }
    });
    url
}
