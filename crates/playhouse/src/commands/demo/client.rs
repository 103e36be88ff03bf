//! Calls the APIs of the process, as a game client, a shop and an operator would.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, RequestBuilder, redirect};
use serde_json::Value;
use uuid::Uuid;

use crate::listeners::{Addresses, DevTokens, Listener};

const TIMEOUT: Duration = Duration::from_secs(5);

/// A player who is signed in.
#[derive(Clone, Debug)]
pub(super) struct Player {
    pub(super) name: &'static str,
    pub(super) token: String,
    pub(super) user_id: String,
    pub(super) account_id: String,
}

/// A client of the three APIs. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    gateway: String,
    service_api: String,
    admin: String,
    open_match: String,
    tokens: DevTokens,
    /// Makes idempotency keys of this start unique.
    run: Uuid,
    failures: Arc<AtomicU64>,
}

impl Client {
    pub(super) fn new(addresses: &Addresses, tokens: &DevTokens) -> Option<Self> {
        let http =
            reqwest::Client::builder().timeout(TIMEOUT).redirect(redirect::Policy::none()).build().ok()?;
        tokens.service.as_ref()?;
        Some(Self {
            http,
            gateway: addresses.url(Listener::Gateway)?,
            service_api: addresses.url(Listener::ServiceApi)?,
            admin: addresses.url(Listener::Admin)?,
            open_match: addresses.url(Listener::OpenMatch)?,
            tokens: tokens.clone(),
            run: Uuid::new_v4(),
            failures: Arc::default(),
        })
    }

    /// Signs a player in and reads who they are. The first sign-in creates the user. A banned player cannot sign in.
    pub(super) async fn sign_in(&self, name: &'static str) -> Option<Player> {
        let url =
            format!("{}/issuer/tokens?user={}", self.admin, utf8_percent_encode(name, NON_ALPHANUMERIC));
        let created = self.send(self.http.post(url).bearer_auth(&self.tokens.operator)).await?;
        let token = created["token"].as_str()?.to_owned();
        let me = self.send(self.http.get(format!("{}/v1/me", self.gateway)).bearer_auth(&token)).await?;
        let account_id = me["accounts"][0]["account_id"].as_str()?.to_owned();
        Some(Player { name, token, user_id: me["user_id"].as_str()?.to_owned(), account_id })
    }

    /// Calls Open Match, as a game server does.
    pub(super) async fn game_server(&self, path: &str, body: &Value) -> Option<Value> {
        self.send(self.http.post(format!("{}/v1/frontendservice/{path}", self.open_match)).json(body)).await
    }

    /// Calls the gateway as a player.
    pub(super) async fn player(
        &self,
        player: &Player,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Option<Value> {
        let request = self.http.request(method, format!("{}{path}", self.gateway)).bearer_auth(&player.token);
        self.send(with_body(request, body)).await
    }

    pub(super) async fn reserve(
        &self,
        player: &Player,
        path: &str,
        step: u64,
        body: &Value,
    ) -> Option<Value> {
        let request = self.http.post(format!("{}{path}", self.gateway)).bearer_auth(&player.token);
        let request = request.header("idempotency-key", format!("{}-{}-{step}", self.run, player.name));
        self.send(with_body(request, Some(body))).await
    }

    /// Calls the service API as a shop.
    pub(super) async fn service(&self, method: Method, path: &str, key: &str, body: &Value) -> Option<Value> {
        let token = self.tokens.service.as_deref().unwrap_or_default();
        let request =
            self.http.request(method.clone(), format!("{}{path}", self.service_api)).bearer_auth(token);
        let request = request.header("idempotency-key", format!("{}-{key}", self.run));
        self.send(with_body(request, (method != Method::GET).then_some(body))).await
    }

    /// Calls the admin API as an operator.
    pub(super) async fn operator(&self, method: Method, path: &str, body: Option<&Value>) -> Option<Value> {
        let request = self.http.request(method, format!("{}{path}", self.admin));
        self.send(with_body(request.bearer_auth(&self.tokens.operator), body)).await
    }

    /// Presses a button of the demo checkout.
    pub(super) async fn check_out(&self, order: &Value, result: &str) {
        let (id, amount) = (order["order_id"].as_str().unwrap_or_default(), order["amount"].to_string());
        let currency = order["currency"].as_str().unwrap_or_default();
        let form = format!("order_id={id}&amount={amount}&currency={currency}&result={result}");
        let request = self.http.post(format!("{}/demo/checkout", self.gateway)).body(form);
        self.send(request.header("content-type", "application/x-www-form-urlencoded")).await;
    }

    /// Returns the response if it is JSON and no error.
    async fn send(&self, request: RequestBuilder) -> Option<Value> {
        let response = match request.send().await.and_then(reqwest::Response::error_for_status) {
            Ok(response) => response,
            Err(error) => {
                let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
                tracing::debug!(%error, failures, "a request of the demo traffic failed");
                return None;
            }
        };
        serde_json::from_slice(&response.bytes().await.ok()?).ok()
    }
}

fn with_body(request: RequestBuilder, body: Option<&Value>) -> RequestBuilder {
    match body {
        Some(body) => request.header("content-type", "application/json").body(body.to_string()),
        None => request,
    }
}
