//! The webhook endpoint for the payment provider.

use ::service::Open;
use axum::Json;
use http::HeaderMap;
use http_server::{Problem, RawBody};
use serde::Serialize;
use utoipa::ToSchema;

use super::PlayerApi;
use crate::error::Error;
use crate::orders::PaymentOutcome;
use crate::problem::problem;

/// The result of a webhook.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct WebhookAnswer {
    outcome: WebhookOutcome,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum WebhookOutcome {
    /// The order has a new state.
    Changed,
    /// The order was already in this or a later state.
    Unchanged,
    /// This webhook was received before.
    Repeated,
    /// It concerns a second payment for an order, which must be or has been refunded.
    Surplus,
    /// Its type is not about orders.
    Ignored,
}

impl PlayerApi {
    /// Verifies a webhook and records it in one transaction with all its effects.
    pub(super) async fn receive(&self, headers: &HeaderMap, body: &[u8]) -> Result<WebhookAnswer, Error> {
        let webhooks = self.provider.webhooks().ok_or(Error::NoWebhookKeys)?;
        let Some(webhook) = webhooks.read(headers, body, self.clock.now())? else {
            return Ok(WebhookAnswer { outcome: WebhookOutcome::Ignored });
        };
        let outcome = match self.orders.record(&webhook).await? {
            PaymentOutcome::Changed(_) => WebhookOutcome::Changed,
            PaymentOutcome::Unchanged(_) => WebhookOutcome::Unchanged,
            PaymentOutcome::Repeated(_) => WebhookOutcome::Repeated,
            PaymentOutcome::Surplus(_) => WebhookOutcome::Surplus,
        };
        Ok(WebhookAnswer { outcome })
    }
}

/// Receive a webhook of the payment provider
///
/// Signed according to Standard Webhooks: `webhook-id`, `webhook-timestamp` and `webhook-signature`. The types are `payment.succeeded`,
/// `payment.failed` and `payment.refunded`, with `order_id`, `payment_id`, `amount` and `currency` as their data. Other types are ignored.
/// Webhooks may be repeated and may arrive in any order. The provider must send a webhook again until the response is 200.
#[utoipa::path(
    post, path = "/v1/payments/webhook", operation_id = "payment_webhook", tag = "drops", security(()),
    request_body(content = serde_json::Value, description = "The body that the provider signed", content_type = "application/json"),
    responses(
        (status = 200, description = "The webhook is recorded", body = WebhookAnswer),
        (status = 400, description = "The body cannot be parsed (`drops:unreadable-webhook`)"),
        (status = 401, description = "The signature is invalid or too old (`drops:bad-signature`)"),
        (status = 404, description = "There is no such order (`drops:no-such-order`)"),
        (status = 422, description = "Wrong amount or currency (`drops:wrong-amount`), another payment than the order's \
            (`drops:other-payment`), or an id that was used for another webhook (`drops:webhook-reused`)"),
    )
)]
pub(super) async fn receive(
    Open(api): Open<PlayerApi>,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Result<Json<WebhookAnswer>, Problem> {
    api.receive(&headers, &body).await.map(Json).map_err(problem)
}
