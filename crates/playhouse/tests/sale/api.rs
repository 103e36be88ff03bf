//! Requests to the gateways of a fleet, retried until one of them answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::{Client, Method, StatusCode};
use serde_json::Value;

/// The statuses after which a client sends the same request again.
const RETRYABLE: [StatusCode; 3] =
    [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];

/// The addresses of a fleet, and the issuer and payment provider that it trusts.
#[derive(Clone)]
pub(crate) struct FleetAccess {
    /// The addresses of the gateways. Some of them may be gone.
    pub(crate) gateways: Vec<String>,
    /// The admin API of a process that runs until the end of the test.
    pub(crate) admin: String,
    pub(crate) issuer: Arc<testkit::issuer::Issuer>,
    pub(crate) signer: Arc<testkit::issuer::Signer>,
    pub(crate) provider: Arc<testkit::PaymentProvider>,
}

/// Sends requests. Cheap to clone; clones share connections.
#[derive(Clone)]
pub(crate) struct Api {
    client: Client,
    gateways: Arc<Vec<String>>,
    next: Arc<AtomicUsize>,
    admin: String,
}

/// A request that is retried until it is answered.
pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Option<&'a str>,
}

impl Api {
    pub(crate) fn new(fleet: &FleetAccess) -> Self {
        // One connection per gateway: thousands of sockets would add load that is not measured.
        let client =
            Client::builder().http2_prior_knowledge().timeout(Duration::from_secs(20)).build().unwrap();
        let gateways = Arc::new(fleet.gateways.clone());
        Self { client, gateways, next: Arc::default(), admin: fleet.admin.clone() }
    }

    /// Sends a request to one gateway after another until one gives a final response.
    pub(crate) async fn send(&self, request: &Request<'_>) -> (StatusCode, Value) {
        let mut pause = Duration::from_millis(100);
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed) % self.gateways.len();
            if let Some((status, body)) = self.try_send(&self.gateways[at], request).await
                && !RETRYABLE.contains(&status)
            {
                return (status, body);
            }
            tokio::time::sleep(pause + Duration::from_millis(fastrand::u64(..200))).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    async fn try_send(&self, gateway: &str, request: &Request<'_>) -> Option<(StatusCode, Value)> {
        let url = format!("http://{gateway}{}", request.path);
        let mut sending = self.client.request(request.method.clone(), url);
        for (name, value) in &request.headers {
            sending = sending.header(*name, value);
        }
        if let Some(body) = request.body {
            sending = sending.header("content-type", "application/json").body(body.to_owned());
        }
        let response = sending.send().await.ok()?;
        let status = response.status();
        let body = response.bytes().await.ok()?;
        Some((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }

    /// Calls the admin API until it succeeds: a database that restarts under load takes a while.
    pub(crate) async fn call_admin(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        let headers = vec![
            ("idempotency-key", format!("{method}:{path}")),
            ("authorization", format!("Bearer {}", super::OPERATOR_TOKEN)),
        ];
        testkit::eventually(&format!("{method} {path}"), super::OUTAGE, async || {
            let text = body.map(Value::to_string);
            let (method, path) = (method.clone(), path.to_owned());
            let request = Request { method, path, headers: headers.clone(), body: text.as_deref() };
            match self.try_send(&self.admin, &request).await {
                Some((status, body)) if status.is_success() => Ok(body),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }
}
