//! One player of the sale.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use testkit::{Payment, PaymentProvider, PaymentWebhook};
use tokio::sync::Semaphore;

use super::api::{Api, Request};
use super::verdict::ITEM;

/// How long a notification may take after the sale has ended.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(120);

/// How the sale ended for a player.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The player owns a unit, by this order.
    Bought(String),
    /// The player was admitted, but did not arrive in time.
    NoShow,
    /// The player was admitted when nothing was left to buy.
    SoldOut,
    /// The player still waited when the sale ended.
    NotAdmitted,
}

impl Ending {
    /// Returns the order by which the player owns a unit.
    pub(crate) fn order(&self) -> Option<&String> {
        match self {
            Self::Bought(order) => Some(order),
            Self::NoShow | Self::SoldOut | Self::NotAdmitted => None,
        }
    }
}

/// The state that all players share.
pub(crate) struct Shared {
    pub(crate) api: Api,
    pub(crate) drop: String,
    pub(crate) provider: Arc<PaymentProvider>,
    pub(crate) joining: Semaphore,
    /// The longest pause between two polls of a player.
    pub(crate) max_poll_interval: Duration,
}

/// A player with an access token.
pub(crate) struct Player {
    pub(crate) name: String,
    pub(crate) token: String,
    pub(crate) shared: Arc<Shared>,
    /// Whether the player never arrives after the admission.
    pub(crate) is_no_show: bool,
}

impl Player {
    /// Joins, waits and buys. Returns how it ended.
    pub(crate) async fn play(&self) -> Ending {
        let turn = self.shared.joining.acquire().await.unwrap();
        let (status, joined) = self.post(&self.of_drop("/join"), None).await;
        drop(turn);
        assert!(status.is_success(), "{}: {status} {joined}", self.name);
        let mut pause = Duration::from_millis(500);
        let admission = loop {
            let (status, place) = self.get(&self.of_drop("/place")).await;
            assert_eq!(status, StatusCode::OK, "{}: {place}", self.name);
            match place["state"].as_str().unwrap() {
                "waiting" => {}
                "entered" if self.is_no_show => return Ending::NoShow,
                "entered" => break place["admission"]["token"].as_str().unwrap().to_owned(),
                "expired" => return Ending::NoShow,
                "left" => return Ending::NotAdmitted,
                other => panic!("{}: joined, and is {other}: {place}", self.name),
            }
            // Polls like a page without a stream: with a growing interval.
            tokio::time::sleep(pause + Duration::from_millis(fastrand::u64(..1_000))).await;
            pause = (pause * 2).min(self.shared.max_poll_interval);
        };
        self.buy(&admission).await
    }

    async fn buy(&self, admission: &str) -> Ending {
        let order = loop {
            let Some(reservation) = self.reserve(admission).await else { return Ending::SoldOut };
            let (status, response) =
                self.post(&self.of_drop(&format!("/reservations/{reservation}/pay")), None).await;
            match cause(&response) {
                _ if status.is_success() => break response,
                // An outage may last longer than the reservation.
                Some("reservation-ended") => {}
                _ => panic!("{}: {status} {response}", self.name),
            }
        };
        let id = order["order_id"].as_str().unwrap().to_owned();
        self.pay(&order).await;
        // The order is decided once a webhook was answered with success.
        let (status, order) = self.get(&format!("/v1/orders/{id}")).await;
        assert_eq!(status, StatusCode::OK, "{}: {order}", self.name);
        match order["state"].as_str().unwrap() {
            "PAID" => Ending::Bought(id),
            "REFUND_DUE" => Ending::SoldOut,
            other => panic!("{}: paid, and the order is {other}: {order}", self.name),
        }
    }

    /// Reserves one unit. Returns none if the player is not admitted any more.
    async fn reserve(&self, admission: &str) -> Option<String> {
        let body = json!({ "quantity": 1, "admission": admission });
        // All retries of this reservation use the same key.
        let key = format!("{:016x}", fastrand::u64(..));
        loop {
            let headers = vec![self.authorization(), ("idempotency-key", key.clone())];
            let (method, path, text) = (Method::POST, self.of_drop("/reservations"), body.to_string());
            let request = Request { method, path, headers, body: Some(&text) };
            let (status, response) = self.shared.api.send(&request).await;
            match cause(&response) {
                _ if status.is_success() => {
                    return Some(response["reservation_id"].as_str().unwrap().to_owned());
                }
                // The units of players who do not pay become available again.
                Some("sold-out") => tokio::time::sleep(Duration::from_secs(1)).await,
                Some("admission-ended" | "not-admitted" | "not-open") => return None,
                _ => panic!("{}: {status} {response}", self.name),
            }
        }
    }

    /// Pays: delivers the provider's webhook, sometimes twice, and sometimes after a forged one.
    async fn pay(&self, order: &Value) {
        let payment = Payment {
            id: format!("pay_{}", self.name),
            order: order["order_id"].as_str().unwrap().to_owned(),
            amount: order["amount"].as_i64().unwrap(),
            currency: order["currency"].as_str().unwrap().to_owned(),
        };
        let webhook = self.shared.provider.webhook("succeeded", &payment);
        if fastrand::u8(..4) == 0 {
            let (status, _) = self.deliver(&self.shared.provider.forge(&webhook)).await;
            assert!(status.is_client_error(), "a forged webhook is answered with {status}");
        }
        for _ in 0..fastrand::usize(1..=2) {
            let (status, problem) = self.deliver(&webhook).await;
            assert!(status.is_success(), "{}: {status} {problem}", self.name);
        }
    }

    /// Waits until the inbox has the notification of this ending. Fails if a notification is there twice.
    pub(crate) async fn wait_until_notified(&self, ending: &Ending) {
        let expected = match ending {
            Ending::Bought(_) => "order-paid",
            Ending::NoShow | Ending::SoldOut => "drop-admitted",
            Ending::NotAdmitted => "drop-wait-ended",
        };
        testkit::eventually(
            &format!("{} has {expected} in the inbox", self.name),
            NOTIFY_TIMEOUT,
            async || {
                let (status, inbox) = self.get("/v1/notifications").await;
                assert_eq!(status, StatusCode::OK, "{}: {inbox}", self.name);
                let notifications = inbox["notifications"].as_array().unwrap();
                // A player whose join is retried after the admission has ended is admitted again, and notified of both admissions.
                let mut seen = HashSet::new();
                let is_repeated = |one: &&Value| !seen.insert(format!("{}{}", one["template"], one["data"]));
                if let Some(repeated) = notifications.iter().find(is_repeated) {
                    panic!("{} is notified twice: {repeated}", self.name);
                }
                let is_there = notifications.iter().any(|one| one["template"] == expected);
                if is_there { Ok(()) } else { Err(inbox.to_string()) }
            },
        )
        .await;
    }

    /// Returns how many units the player owns.
    pub(crate) async fn owned(&self) -> u64 {
        let (status, owned) = self.get("/v1/entitlements").await;
        assert_eq!(status, StatusCode::OK, "{}: {owned}", self.name);
        let items = owned["entitlements"].as_array().unwrap().iter().filter(|one| one["resource"] == ITEM);
        items.map(|one| one["quantity"].as_u64().unwrap()).sum()
    }

    async fn deliver(&self, webhook: &PaymentWebhook) -> (StatusCode, Value) {
        let headers = webhook.headers().into();
        let path = "/v1/payments/webhook".to_owned();
        self.shared
            .api
            .send(&Request { method: Method::POST, path, headers, body: Some(&webhook.body) })
            .await
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.request(Method::GET, path, None).await
    }

    async fn post(&self, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        self.request(Method::POST, path, body).await
    }

    async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        let (path, text) = (path.to_owned(), body.map(Value::to_string));
        let request = Request { method, path, headers: vec![self.authorization()], body: text.as_deref() };
        self.shared.api.send(&request).await
    }

    fn authorization(&self) -> (&'static str, String) {
        ("authorization", format!("Bearer {}", self.token))
    }

    fn of_drop(&self, rest: &str) -> String {
        format!("/v1/drops/{}{rest}", self.shared.drop)
    }
}

/// Returns the last part of a problem's type: why the drop refused the request.
fn cause(response: &Value) -> Option<&str> {
    response["type"].as_str()?.rsplit_once("drops:").map(|(_, cause)| cause)
}
