//! The webhook of the payment provider.

use ::service::Open;
use axum::Json;
use http::HeaderMap;
use http_server::{Problem, RawBody};
use serde::Serialize;
use utoipa::ToSchema;

use super::PlayerApi;
use crate::error::Error;
use crate::orders::Outcome;
use crate::problem::problem;

/// What became of a webhook.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct WebhookAnswer {
    outcome: WebhookOutcome,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum WebhookOutcome {
    /// The order has a new state.
    Changed,
    /// The same or something later was known already.
    Unchanged,
    /// This webhook was received before.
    Repeated,
    /// It is about a second payment of an order, which must be refunded or has been.
    Surplus,
    /// It is of a type that is not about orders.
    Ignored,
}

impl PlayerApi {
    /// Verifies a webhook and records what it says, in one transaction with all that comes of it.
    pub(super) async fn receive(&self, headers: &HeaderMap, body: &[u8]) -> Result<WebhookAnswer, Error> {
        let payments = self.provider.payments().ok_or(Error::NoPayments)?;
        let Some(webhook) = payments.read(headers, body, self.clock.now())? else {
            return Ok(WebhookAnswer { outcome: WebhookOutcome::Ignored });
        };
        let outcome = match self.orders.record(&webhook).await? {
            Outcome::Changed(_) => WebhookOutcome::Changed,
            Outcome::Unchanged(_) => WebhookOutcome::Unchanged,
            Outcome::Repeated(_) => WebhookOutcome::Repeated,
            Outcome::Surplus(_) => WebhookOutcome::Surplus,
        };
        Ok(WebhookAnswer { outcome })
    }
}

/// A message of the payment provider
///
/// Signed as Standard Webhooks has it: `webhook-id`, `webhook-timestamp` and `webhook-signature`. The types are `payment.succeeded`,
/// `payment.failed` and `payment.refunded`, with `order_id`, `payment_id`, `amount` and `currency` as their data. Other types are ignored.
/// It may be repeated and may arrive in any order; what is not answered with 200 is to be sent again.
#[utoipa::path(
    post, path = "/v1/payments/webhook", operation_id = "payment_webhook", tag = "drops", security(()),
    request_body(content = serde_json::Value, description = "As the provider signed it", content_type = "application/json"),
    responses(
        (status = 200, description = "It is recorded", body = WebhookAnswer),
        (status = 400, description = "It cannot be read (`drops:unreadable-webhook`)"),
        (status = 401, description = "The signature is not the provider's, or too old (`drops:bad-signature`)"),
        (status = 404, description = "There is no such order (`drops:no-such-order`)"),
        (status = 422, description = "Wrong amount or currency (`drops:wrong-amount`), another payment than the order's \
            (`drops:other-payment`), or an id that was used for another message (`drops:webhook-reused`)"),
    )
)]
pub(super) async fn receive(
    Open(api): Open<PlayerApi>,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Result<Json<WebhookAnswer>, Problem> {
    api.receive(&headers, &body).await.map(Json).map_err(problem)
}
