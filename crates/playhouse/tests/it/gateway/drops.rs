//! Drops as used by players, over HTTP to a real process.

mod buying;
mod line;
mod outages;
mod stock;
mod webhooks;

use std::collections::BTreeSet;
use std::sync::Mutex;

use testkit::{Payment, PaymentWebhook, eventually};

use super::*;
use crate::shop::OPERATOR_TOKEN;

/// The secret that signs the webhooks of these tests.
const SECRET: &str = "whsec_ZXhhbXBsZSBvZiBhIHNlY3JldCB0aGF0IHNpZ25z";

/// A process with the payment provider's secret, and a drop.
struct Sale {
    gateway: Gateway,
    drop: String,
    /// The OpenAPI document. Every response is checked against it.
    document: Value,
    /// The operations that have succeeded.
    succeeded: Mutex<BTreeSet<String>>,
}

impl Sale {
    /// Starts a process with an open drop of `stock` units. `terms` overrides the default terms.
    async fn open(stock: i64, terms: Value) -> Self {
        let sale = Self::draft(stock, terms).await;
        sale.operate("open", &json!({})).await;
        sale
    }

    /// Starts a process with a drop that players cannot join yet.
    async fn draft(stock: i64, terms: Value) -> Self {
        let payments = format!(
            "[drops]\nstock_sync = \"1s\"\nreconcile_every = \"100ms\"\n[drops.payments]\nsecrets = [\"{SECRET}\"]\n\
             checkout_url = \"https://pay.example.com/checkout?shop=1\"\n"
        );
        let gateway = Gateway::start(&payments).await;
        let drop = create(&gateway, "Golden hat", stock, terms).await;
        let document = send(gateway.get("/openapi.json")).await.json();
        Self { gateway, drop, document, succeeded: Mutex::default() }
    }

    /// Sends a request and checks the response against the document.
    async fn send(&self, request: RequestBuilder) -> TestResponse {
        let request = request.build().unwrap();
        let (method, path) = (request.method().to_string(), request.url().path().to_owned());
        let response = send(RequestBuilder::from_parts(self.gateway.client.clone(), request)).await;
        let parts: Vec<&str> = path.split('/').collect();
        let fits = |template: &&String| {
            let template: Vec<&str> = template.split('/').collect();
            let fits = |(part, name): (&&str, &&str)| part == name || name.starts_with('{');
            parts.len() == template.len() && parts.iter().zip(&template).all(fits)
        };
        // A path without parameters takes precedence.
        let paths = self.document["paths"].as_object().unwrap();
        let template = paths.keys().filter(fits).min_by_key(|template| template.matches('{').count());
        let template = template.unwrap_or_else(|| panic!("{path} is not described"));
        let what = format!("{method} {template}");
        openapi::check_response(&self.document, &paths[template][method.to_lowercase()], &what, &response);
        if (200..300).contains(&response.status) {
            self.succeeded.lock().unwrap().insert(what);
        }
        response
    }

    /// Calls a route of the drop as an operator.
    async fn operate(&self, what: &str, body: &Value) {
        let url = format!("http://{}/drops/{}/{what}", self.gateway.at["admin"], self.drop);
        let response = send(self.gateway.client.post(url).bearer_auth(OPERATOR_TOKEN).json(body)).await;
        assert_eq!(response.status, 200, "{what}: {response:?}");
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/drops/{}{rest}", self.drop)
    }

    async fn player(&self, name: &str) -> Player<'_> {
        Player { sale: self, token: self.gateway.token(name).await }
    }

    /// Returns the public counts.
    async fn stock(&self, player: &Player<'_>) -> Value {
        let stock = player.get(&self.path("/stock")).await;
        assert_eq!(stock.status, 200, "{stock:?}");
        stock.json()
    }

    /// Returns the value of a metric.
    async fn metric(&self, name: &str) -> f64 {
        let (_, metrics) = get(format!("http://{}/metrics", self.gateway.at["admin"])).await;
        let metrics = metrics.as_str().unwrap().to_owned();
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("there is no metric {name}")).parse().unwrap()
    }

    /// Sends a webhook of the payment provider.
    async fn webhook(&self, webhook: &PaymentWebhook) -> TestResponse {
        let request =
            self.gateway.client.post(self.gateway.url("/v1/payments/webhook")).body(webhook.body.clone());
        let headers = webhook.headers().into_iter();
        self.send(headers.fold(request, |request, (name, value)| request.header(name, value))).await
    }
}

/// Creates a drop as an operator. Returns its id.
async fn create(gateway: &Gateway, name: &str, stock: i64, terms: Value) -> String {
    let mut all = json!({
        "price": { "amount": 499, "currency": "EUR" }, "per_player": 2, "reservation_ms": 60_000,
        "admission": {
            "batch": 10, "period_ms": 100, "capacity": 100, "lifetime_ms": 60_000, "arrive_within_ms": 60_000,
        },
    });
    for (name, value) in terms.as_object().unwrap() {
        all[name] = value.clone();
    }
    let body = json!({ "name": name, "resource": "golden-hat", "stock": stock, "terms": all });
    let request = gateway.client.post(format!("http://{}/drops", gateway.at["admin"]));
    let request = request.bearer_auth(OPERATOR_TOKEN).json(&body);
    let response = send(request.header("idempotency-key", name.replace(' ', "-"))).await;
    assert_eq!(response.status, 201, "{response:?}");
    response.json()["drop_id"].as_str().unwrap().to_owned()
}

/// A player with an access token.
struct Player<'a> {
    sale: &'a Sale,
    token: String,
}

impl Player<'_> {
    async fn get(&self, path: &str) -> TestResponse {
        self.sale.send(self.sale.gateway.get(path).bearer_auth(&self.token)).await
    }

    async fn post(&self, path: &str) -> TestResponse {
        self.sale
            .send(self.sale.gateway.client.post(self.sale.gateway.url(path)).bearer_auth(&self.token))
            .await
    }

    async fn delete(&self, path: &str) -> TestResponse {
        self.sale
            .send(self.sale.gateway.client.delete(self.sale.gateway.url(path)).bearer_auth(&self.token))
            .await
    }

    async fn place(&self) -> Value {
        let place = self.get(&self.sale.path("/place")).await;
        assert_eq!(place.status, 200, "{place:?}");
        place.json()
    }

    /// Waits until this many players are ahead. The line of a new drop is unknown until it is filled.
    async fn wait_for_players_ahead(&self, ahead: u64) -> Value {
        eventually(&format!("{ahead} players are ahead"), PATIENCE, async || {
            let place = self.place().await;
            if place["ahead"] == ahead { Ok(place) } else { Err(place.to_string()) }
        })
        .await
    }

    async fn join(&self) -> Value {
        let joined = self.post(&self.sale.path("/join")).await;
        assert_eq!(joined.status, 200, "{joined:?}");
        joined.json()
    }

    /// Joins and waits for the admission. Returns its token.
    async fn admission(&self) -> String {
        self.join().await;
        eventually("admitted", PATIENCE, async || {
            let place = self.place().await;
            match place["admission"]["token"].as_str() {
                Some(token) => Ok(token.to_owned()),
                None => Err(place.to_string()),
            }
        })
        .await
    }

    async fn reserve_as(&self, key: &str, body: &Value) -> TestResponse {
        let request = self.sale.gateway.post(&self.sale.path("/reservations"), body);
        self.sale.send(request.bearer_auth(&self.token).header("idempotency-key", key)).await
    }

    async fn reserve(&self, key: &str, quantity: i64, admission: &str) -> TestResponse {
        self.reserve_as(key, &json!({ "quantity": quantity, "admission": admission })).await
    }

    /// Reserves units and starts the payment. Returns the order.
    async fn order(&self, key: &str, quantity: i64, admission: &str) -> Value {
        let reserved = self.reserve(key, quantity, admission).await;
        assert_eq!(reserved.status, 201, "{reserved:?}");
        let id = reserved.json()["reservation_id"].as_str().unwrap().to_owned();
        let order = self.post(&self.sale.path(&format!("/reservations/{id}/pay"))).await;
        assert_eq!(order.status, 200, "{order:?}");
        order.json()
    }

    async fn order_state(&self, order: &Value) -> String {
        let found = self.get(&format!("/v1/orders/{}", order["order_id"].as_str().unwrap())).await;
        found.json()["state"].as_str().unwrap_or_else(|| panic!("{found:?}")).to_owned()
    }
}

/// Returns a webhook of the payment provider about an order.
fn webhook_about(what: &str, order: &Value) -> PaymentWebhook {
    let payment = Payment {
        id: format!("pay_{}", order["order_id"].as_str().unwrap()),
        order: order["order_id"].as_str().unwrap().to_owned(),
        amount: order["amount"].as_i64().unwrap(),
        currency: order["currency"].as_str().unwrap().to_owned(),
    };
    webhook_of(what, &payment)
}

fn webhook_of(what: &str, payment: &Payment) -> PaymentWebhook {
    let body = json!({
        "type": format!("payment.{what}"),
        "data": {
            "order_id": payment.order, "payment_id": payment.id, "amount": payment.amount, "currency": payment.currency,
        },
    });
    PaymentWebhook {
        id: format!("msg_{}_{what}", payment.id),
        body: body.to_string(),
        sent_at: testkit::issuer::now(),
        secret: SECRET.to_owned(),
    }
}

/// Asserts that a request was refused for this cause.
#[track_caller]
fn assert_refused(response: &TestResponse, status: u16, cause: &str) {
    let problem = assert_problem(response, status);
    assert_eq!(problem["type"], format!("urn:playhouse:problem:{cause}"), "{problem}");
}
