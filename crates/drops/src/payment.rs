//! Verifies and parses the webhooks of the payment provider.
//!
//! The body follows the Standard Webhooks recommendation:
//! `{"type": "payment.succeeded", "timestamp": "…", "data": {"order_id": "…", "payment_id": "…", "amount": 1999, "currency": "EUR"}}`.
//! The types are `payment.succeeded`, `payment.failed` and `payment.refunded`. The amount is in the smallest unit of the currency.

use std::time::Duration;

use base::Timestamp;
use http::HeaderMap;
use serde::Deserialize;
use webhook::Verifier;

use crate::error::Error;
use crate::orders::{Webhook, WebhookKind};

/// Verifies and parses webhooks. Cheap to clone; clones share the keys.
#[derive(Clone, Debug)]
pub struct PaymentWebhooks {
    verifier: Verifier,
    tolerance: Duration,
}

/// The body of a webhook. Other fields are ignored.
#[derive(Deserialize)]
struct Body {
    #[serde(rename = "type")]
    kind: String,
    data: serde_json::Value,
}

#[derive(Deserialize)]
struct Data {
    order_id: String,
    payment_id: String,
    amount: i64,
    currency: String,
}

impl PaymentWebhooks {
    /// Accepts all keys of the verifier, so that the provider can rotate its key. Rejects webhooks whose timestamp differs from our clock by
    /// more than `tolerance`.
    pub const fn new(verifier: Verifier, tolerance: Duration) -> Self {
        Self { verifier, tolerance }
    }

    /// Verifies and parses a webhook. Returns none for a type that is not about orders: acknowledge and ignore it.
    pub fn read(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<Option<Webhook>, Error> {
        let verified = self.verifier.verify(headers, body, now, self.tolerance)?;
        let unreadable = |error: serde_json::Error| Error::UnreadableWebhook(error.to_string());
        let Body { kind, data } = serde_json::from_slice(body).map_err(unreadable)?;
        let Some(kind) = WebhookKind::parse(&kind) else { return Ok(None) };
        let Data { order_id, payment_id, amount, currency } =
            serde_json::from_value(data).map_err(unreadable)?;
        let order = order_id.parse();
        let order = order.map_err(|_| Error::UnreadableWebhook("data.order_id is not an id".to_owned()))?;
        Ok(Some(Webhook { id: verified.id, kind, order, payment: payment_id, amount, currency }))
    }
}

#[cfg(test)]
mod tests {
    use base::error::Coded;
    use base::id::Uuid;
    use webhook::Secrets;

    use super::*;
    use crate::OrderId;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const NOW: Timestamp = Timestamp::from_millis(1_772_366_400_000);

    fn read(body: &str) -> Result<Option<Webhook>, Error> {
        let payments = PaymentWebhooks::new(Verifier::new([SECRET]).unwrap(), Duration::from_secs(300));
        let secrets = Secrets::new([SECRET]).unwrap();
        let headers = webhook::headers(&"msg_1".parse().unwrap(), NOW, body.as_bytes(), Some(&secrets));
        payments.read(&headers, body.as_bytes(), NOW)
    }

    #[test]
    fn webhook_is_parsed() {
        let order = OrderId::from_uuid(Uuid::from_u128(1));
        let body = |kind: &str| {
            format!(
                r#"{{"type":"{kind}","timestamp":"2026-03-01T12:00:00Z","data":{{"order_id":"{order}","payment_id":"pay_1",
                "amount":1999,"currency":"EUR","method":"card"}}}}"#
            )
        };
        for kind in [WebhookKind::Succeeded, WebhookKind::Failed, WebhookKind::Refunded] {
            let expected = Webhook {
                id: "msg_1".to_owned(),
                kind,
                order,
                payment: "pay_1".to_owned(),
                amount: 1_999,
                currency: "EUR".to_owned(),
            };
            assert_eq!(read(&body(kind.as_str())).unwrap(), Some(expected));
        }
        assert_eq!(read(&body("payment.created")).unwrap(), None);
        assert_eq!(read(r#"{"type":"customer.created","data":7}"#).unwrap(), None);
    }

    #[test]
    fn unreadable_webhooks_are_refused() {
        let data = |data: &str| format!(r#"{{"type":"payment.succeeded","data":{data}}}"#);
        let bodies = [
            String::new(),
            "[]".to_owned(),
            r#"{"type":"payment.succeeded"}"#.to_owned(),
            data("null"),
            data(r#"{"order_id":"7","payment_id":"p","amount":1,"currency":"EUR"}"#),
            data(&format!(
                r#"{{"order_id":"{}","payment_id":"p","amount":1.5,"currency":"EUR"}}"#,
                Uuid::nil()
            )),
            data(&format!(
                r#"{{"order_id":"{}","payment_id":"p","amount":"1","currency":"EUR"}}"#,
                Uuid::nil()
            )),
        ];
        for body in bodies {
            let refused = read(&body).unwrap_err();
            assert!(matches!(refused, Error::UnreadableWebhook(_)), "{body}: {refused:?}");
            assert_eq!(refused.code(), base::Code::InvalidArgument);
        }
    }

    #[test]
    fn forged_webhook_is_refused_without_parsing() {
        let payments = PaymentWebhooks::new(Verifier::new([SECRET]).unwrap(), Duration::from_secs(300));
        let forged = Secrets::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSx"]).unwrap();
        let headers = webhook::headers(&"msg_1".parse().unwrap(), NOW, b"{", Some(&forged));
        let refused = payments.read(&headers, b"{", NOW).unwrap_err();
        assert!(matches!(refused, Error::Unsigned(webhook::VerifyError::Signature)), "{refused:?}");
        assert_eq!(refused.code(), base::Code::Unauthenticated);
    }

    #[test]
    fn parsing_survives_any_body() {
        let samples = [
            r#"{"type":"payment.succeeded","timestamp":"2026-03-01T12:00:00Z","data":{"order_id":"01a1e4c0-0000-7000-8000-000000000001","payment_id":"p","amount":1999,"currency":"EUR"}}"#,
            r#"{"type":"customer.created","data":null}"#,
        ];
        testkit::fuzz("payment-webhooks", &samples, |input| {
            std::str::from_utf8(input).is_ok_and(|body| read(body).is_ok())
        });
    }
}
