//! A fake payment provider: it accepts payments over HTTP and reports their results by signed webhooks, as unreliably as real
//! providers do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::http::client;
use crate::issuer::now;

/// A provider with its own secret. `POST /payments` creates a payment; the test decides its result.
#[derive(Debug)]
pub struct PaymentProvider {
    /// The base URL of its API.
    pub url: String,
    /// The secret that signs its webhooks: `whsec_…`.
    pub secret: String,
    webhook_url: String,
    payments: Arc<Mutex<Vec<Payment>>>,
}

/// A payment as it was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payment {
    /// The provider's id of the payment.
    pub id: String,
    pub order: String,
    pub amount: i64,
    pub currency: String,
}

/// A webhook. It keeps its id over all attempts.
#[derive(Clone, Debug)]
pub struct PaymentWebhook {
    pub id: String,
    pub body: String,
    /// The timestamp that is signed, in seconds.
    pub sent_at: u64,
    pub secret: String,
}

impl PaymentProvider {
    /// Starts the provider. Its webhooks go to `webhook_url`.
    pub async fn start(webhook_url: impl Into<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port can be bound");
        let url = format!("http://{}", listener.local_addr().expect("a listener has an address"));
        let payments: Arc<Mutex<Vec<Payment>>> = Arc::default();
        let routes = Router::new().route("/payments", post(create_payment)).with_state(payments.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let secret = format!("whsec_{}", STANDARD.encode(random()));
        Self { url, secret, webhook_url: webhook_url.into(), payments }
    }

    /// Returns the payments, oldest first.
    pub fn payments(&self) -> Vec<Payment> {
        self.payments.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Creates a webhook about a payment: `succeeded`, `failed` or `refunded`.
    pub fn webhook(&self, what: &str, payment: &Payment) -> PaymentWebhook {
        let body = json!({
            "type": format!("payment.{what}"),
            "data": {
                "order_id": payment.order, "payment_id": payment.id, "amount": payment.amount,
                "currency": payment.currency,
            },
        });
        PaymentWebhook {
            id: format!("msg_{:016x}", fastrand::u64(..)),
            body: body.to_string(),
            sent_at: now(),
            secret: self.secret.clone(),
        }
    }

    /// Returns the webhook signed with a wrong secret.
    pub fn forge(&self, webhook: &PaymentWebhook) -> PaymentWebhook {
        PaymentWebhook { secret: format!("whsec_{}", STANDARD.encode(random())), ..webhook.clone() }
    }

    /// Sends a webhook once. Returns the status of the response.
    ///
    /// # Panics
    /// If the receiver cannot be reached.
    pub async fn send(&self, webhook: &PaymentWebhook) -> u16 {
        let PaymentWebhook { id, body, .. } = webhook;
        let request = webhook
            .headers()
            .into_iter()
            .fold(client().post(&self.webhook_url), |request, (name, value)| request.header(name, value));
        let request = request.header("content-type", "application/json").body(body.clone());
        request.send().await.unwrap_or_else(|error| panic!("webhook {id}: {error}")).status().as_u16()
    }

    /// Sends webhooks like a bad network: each one to three times, in random order, some of them late. Returns all statuses.
    pub async fn send_unreliably(&self, webhooks: &[PaymentWebhook], mut choices: fastrand::Rng) -> Vec<u16> {
        let mut sends: Vec<&PaymentWebhook> =
            webhooks.iter().flat_map(|webhook| vec![webhook; choices.usize(1..=3)]).collect();
        choices.shuffle(&mut sends);
        let late = |webhook| {
            let delay = Duration::from_millis(choices.u64(..50));
            async move {
                tokio::time::sleep(delay).await;
                self.send(webhook).await
            }
        };
        futures::future::join_all(sends.into_iter().map(late)).await
    }
}

impl PaymentWebhook {
    /// Returns the id, timestamp and signature headers of Standard Webhooks.
    pub fn headers(&self) -> [(&'static str, String); 3] {
        let key = self.secret.trim_start_matches("whsec_");
        let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(key).expect("base64"));
        let content = format!("{}.{}.{}", self.id, self.sent_at, self.body);
        let signature = STANDARD.encode(hmac::sign(&key, content.as_bytes()));
        [
            ("webhook-id", self.id.clone()),
            ("webhook-timestamp", self.sent_at.to_string()),
            ("webhook-signature", format!("v1,{signature}")),
        ]
    }
}

fn random() -> [u8; 32] {
    std::array::from_fn(|_| fastrand::u8(..))
}

/// Creates a payment from `{"order_id": …, "amount": …, "currency": …}`.
async fn create_payment(
    State(payments): State<Arc<Mutex<Vec<Payment>>>>,
    Json(request): Json<Value>,
) -> Json<Value> {
    let text = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
    let id = format!("pay_{:016x}", fastrand::u64(..));
    let payment = Payment {
        id: id.clone(),
        order: text("order_id"),
        amount: request["amount"].as_i64().unwrap_or_default(),
        currency: text("currency"),
    };
    payments.lock().unwrap_or_else(PoisonError::into_inner).push(payment);
    Json(json!({ "payment_id": id }))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use fastrand::Rng;

    use super::*;

    #[tokio::test]
    async fn payments_are_created_and_webhooks_arrive_repeated_in_any_order() {
        let received: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
        let sink = received.clone();
        let receive = move |headers: HeaderMap, body: String| async move {
            let id = headers["webhook-id"].to_str().unwrap().to_owned();
            sink.lock().unwrap().push((id, body));
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let routes = Router::new().route("/hook", post(receive));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let provider = PaymentProvider::start(url).await;
        let request = json!({ "order_id": "o", "amount": 7, "currency": "EUR" });
        client().post(format!("{}/payments", provider.url)).json(&request).send().await.unwrap();
        let payment = provider.payments().remove(0);
        assert_eq!((payment.order.as_str(), payment.amount), ("o", 7));
        let webhooks = ["succeeded", "refunded"].map(|what| provider.webhook(what, &payment));
        let statuses = provider.send_unreliably(&webhooks, Rng::with_seed(7)).await;
        let received = received.lock().unwrap();
        assert_eq!((statuses.len(), statuses.iter().all(|status| *status == 200)), (received.len(), true));
        for webhook in &webhooks {
            assert!(received.contains(&(webhook.id.clone(), webhook.body.clone())));
        }
        assert_ne!(provider.forge(&webhooks[0]).headers()[2], webhooks[0].headers()[2]);
    }
}
