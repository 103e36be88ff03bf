//! Requests to the instance, repeated as a careful client does: with the same idempotency key, at another gateway, and not before
//! `Retry-After`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::backoff::Backoff;
use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::meter::Meter;
use crate::target::Target;

/// How many requests are in flight at once: enough to keep two cores busy, few enough not to measure the simulator. The report says how
/// long requests waited for it.
const IN_FLIGHT: usize = 128;
const TIMEOUT: Duration = Duration::from_secs(15);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(3));
/// How long one request is repeated while the truth is read.
const GRACE: Duration = Duration::from_secs(120);
/// How long an instance may answer nothing while the truth is read.
const SILENCE: Duration = Duration::from_secs(30);
/// The longest `Retry-After` that is obeyed as it is.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The error of a step that failed for good: no response in time, or an invalid one. The text has the cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GaveUp(pub String);

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The name in the report.
    pub(crate) what: &'static str,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Option<String>,
    pub(crate) form: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) headers: HeaderMap,
}

#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

/// A player's credentials and address.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    pub(crate) token: Arc<str>,
    /// The address that the player seems to come from.
    pub(crate) address: String,
}

/// How long requests are repeated.
#[derive(Debug)]
enum Patience {
    /// Until the players give up.
    Until(Instant),
    /// At the end, while the truth is read: as long as requests are answered, and for [`GRACE`] each. What gave up before must not take
    /// this time from what comes after.
    WhileAnswered { last: Instant },
}

/// Sends requests. Cheap to clone; clones share connections and figures.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    http: Client,
    gateways: Arc<[String]>,
    admins: Arc<[String]>,
    operator_token: Arc<str>,
    next: Arc<AtomicUsize>,
    in_flight: Arc<Semaphore>,
    patience: Arc<Mutex<Patience>>,
    pub(crate) meter: Arc<Meter>,
}

impl Call {
    pub(crate) fn new(what: &'static str, method: Method, path: impl Into<String>) -> Self {
        let headers = HeaderMap::new();
        Self { what, method, path: path.into(), body: None, form: None, key: None, headers }
    }

    pub(crate) fn get(what: &'static str, path: impl Into<String>) -> Self {
        Self::new(what, Method::GET, path)
    }

    pub(crate) fn post(what: &'static str, path: impl Into<String>) -> Self {
        Self::new(what, Method::POST, path)
    }

    pub(crate) fn json(mut self, body: &Value) -> Self {
        self.body = Some(body.to_string());
        self
    }

    pub(crate) fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
}

impl Credentials {
    /// Adds the token and the address to a request.
    pub(crate) fn sign(&self, request: RequestBuilder) -> RequestBuilder {
        request.bearer_auth(&self.token).header("x-forwarded-for", &self.address)
    }
}

impl Response {
    pub(crate) const fn is_success(&self) -> bool {
        self.status >= 200 && self.status < 400
    }

    /// Returns the end of the problem's type: `sold-out`.
    pub(crate) fn cause(&self) -> &str {
        self.body["type"].as_str().and_then(|kind| kind.rsplit(':').next()).unwrap_or_default()
    }

    pub(crate) fn describe(&self) -> String {
        format!("{} {}", self.status, self.body)
    }
}

impl Api {
    pub(crate) fn new(target: &Target, meter: Arc<Meter>, players_end: Instant) -> Result<Self, GaveUp> {
        let client = Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none());
        let client = client.pool_max_idle_per_host(IN_FLIGHT).build();
        Ok(Self {
            http: client.map_err(|error| GaveUp(format!("cannot create an HTTP client: {error}")))?,
            gateways: target.gateways.clone().into(),
            admins: target.admins.clone().into(),
            operator_token: target.operator_token.as_str().into(),
            next: Arc::default(),
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
            patience: Arc::new(Mutex::new(Patience::Until(players_end))),
            meter,
        })
    }

    /// Repeats requests from now on as long as the instance answers: the players have ended, and the truth is read.
    pub(crate) fn begin_reading(&self) {
        *self.patience() = Patience::WhileAnswered { last: Instant::now() };
    }

    fn patience(&self) -> MutexGuard<'_, Patience> {
        self.patience.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns until when a request that began at `began` is repeated.
    fn give_up_at(&self, began: Instant) -> Instant {
        match &*self.patience() {
            Patience::Until(end) => *end,
            Patience::WhileAnswered { last } => (began + GRACE).min(*last + SILENCE),
        }
    }

    /// Returns one gateway after the other.
    pub(crate) fn gateway(&self) -> &str {
        self.one_of(&self.gateways)
    }

    fn one_of<'a>(&self, addresses: &'a [String]) -> &'a str {
        &addresses[self.next.fetch_add(1, Ordering::Relaxed) % addresses.len()]
    }

    pub(crate) async fn player(&self, from: &Credentials, call: &Call) -> Result<Response, GaveUp> {
        self.send(&self.gateways, call, |request| from.sign(request)).await
    }

    /// Calls the gateway without signing in.
    pub(crate) async fn anyone(&self, call: &Call) -> Result<Response, GaveUp> {
        self.send(&self.gateways, call, |request| request).await
    }

    pub(crate) async fn operator(&self, call: &Call) -> Result<Response, GaveUp> {
        let token = format!("Bearer {}", self.operator_token);
        self.send(&self.admins, call, |request| request.header(AUTHORIZATION, &token)).await
    }

    /// Calls the admin API and fails unless the call succeeds.
    pub(crate) async fn operate(&self, call: &Call) -> Result<Value, GaveUp> {
        let answer = self.operator(call).await?;
        if answer.is_success() {
            return Ok(answer.body);
        }
        let Call { method, path, .. } = call;
        Err(GaveUp(format!("{method} {path} on the admin API was answered with {}", answer.describe())))
    }

    /// Sends a request until it is answered: refusals because of load, and broken connections, are no answers.
    async fn send(
        &self,
        addresses: &[String],
        call: &Call,
        complete: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<Response, GaveUp> {
        let (mut failures, began) = (0, Instant::now());
        loop {
            let address = self.one_of(addresses);
            let (why, wait) = match self.attempt(address, call, &complete).await {
                Ok((response, wait)) => match response.status {
                    429 | 502 | 503 | 504 => (response.describe(), wait),
                    _ => {
                        if let Patience::WhileAnswered { last } = &mut *self.patience() {
                            *last = Instant::now();
                        }
                        return Ok(response);
                    }
                },
                Err(error) => (error.to_string(), None),
            };
            failures += 1;
            self.meter.retried();
            let wait = wait.unwrap_or_default().min(LONGEST_WAIT) + BACKOFF.after(failures);
            if Instant::now() + wait >= self.give_up_at(began) {
                let Call { what, method, path, .. } = call;
                return Err(GaveUp(format!(
                    "{what}: {method} {path} failed {failures} times, last with {why}"
                )));
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn attempt(
        &self,
        address: &str,
        call: &Call,
        complete: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<(Response, Option<Duration>), reqwest::Error> {
        let mut request = self.http.request(call.method.clone(), format!("{address}{}", call.path));
        request = complete(request.headers(call.headers.clone()));
        if let Some(body) = &call.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        if let Some(form) = &call.form {
            request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form.clone());
        }
        if let Some(key) = &call.key {
            request = request.header("idempotency-key", key);
        }
        // Before the wait for the simulator's own limit: the player waits for that, too.
        let started = Instant::now();
        // The semaphore is never closed.
        let _permit = self.in_flight.acquire().await.ok();
        let held_back = started.elapsed();
        let response = request.send().await?;
        let status = response.status().as_u16();
        let wait = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes = response.bytes().await?;
        self.meter.answered(call.what, status, started.elapsed(), held_back);
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Ok((Response { status, body }, wait.map(Duration::from_secs)))
    }
}
