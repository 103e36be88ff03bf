//! The instance that is simulated against: where it is, how players sign in, and how they pay.

use std::sync::Arc;

use base::Timestamp;
use reqwest::Method;
use serde_json::json;
use webhook::{MessageId, Secrets};

use crate::api::{Api, Call, GaveUp, Response};

/// Addresses are URLs without a slash at the end.
#[derive(Clone, Debug)]
pub struct Target {
    pub gateways: Vec<String>,
    pub admins: Vec<String>,
    pub operator_token: String,
    pub sign_in: SignIn,
    pub payments: Payments,
}

/// How players get their access tokens.
#[derive(Clone)]
pub enum SignIn {
    /// From the builtin issuer, by the admin API.
    Builtin,
    /// From an issuer of the simulator that the processes trust.
    Own(oidc::builtin::Builtin),
    /// One token per player, given by the user.
    Tokens(Arc<[String]>),
}

/// How an order is paid.
#[derive(Clone)]
pub enum Payments {
    /// By the demo checkout of `playhouse dev`.
    DemoCheckout,
    /// By signed webhooks: the simulator is the payment provider.
    Webhooks(Secrets),
    /// Not at all: players reserve and let the reservation expire.
    None,
}

impl std::fmt::Debug for SignIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Builtin => "Builtin",
            Self::Own(_) => "Own",
            Self::Tokens(_) => "Tokens",
        })
    }
}

impl std::fmt::Debug for Payments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::DemoCheckout => "DemoCheckout",
            Self::Webhooks(_) => "Webhooks",
            Self::None => "None",
        })
    }
}

impl SignIn {
    /// Says for the report how players sign in. None of them walks through a sign-in page.
    pub(crate) const fn describe(&self) -> &'static str {
        match self {
            Self::Builtin => "access tokens from the admin API",
            Self::Own(_) => "access tokens of the simulator's own issuer",
            Self::Tokens(_) => "access tokens of a file",
        }
    }
}

impl Target {
    /// Returns whether a player can get another token.
    pub(crate) const fn can_renew(&self) -> bool {
        !matches!(self.sign_in, SignIn::Tokens(_))
    }

    /// Returns an access token for a player.
    pub(crate) async fn token(&self, api: &Api, name: &str, number: usize) -> Result<String, GaveUp> {
        match &self.sign_in {
            SignIn::Builtin => {
                let call = Call::new("sign in", Method::POST, format!("/issuer/tokens?user={name}"));
                let created = api.operator(&call).await?;
                let token = created.body["token"].as_str().map(ToOwned::to_owned);
                token.ok_or_else(|| GaveUp(format!("the builtin issuer answered {}", created.describe())))
            }
            SignIn::Own(issuer) => issuer.token(name, None).map_err(|error| GaveUp(error.to_string())),
            SignIn::Tokens(tokens) => {
                let token = tokens.get(number).cloned();
                token.ok_or_else(|| GaveUp(format!("there are only {} access tokens", tokens.len())))
            }
        }
    }

    /// Pays an order as the provider does: the webhook arrives, sometimes twice.
    pub(crate) async fn pay(
        &self,
        api: &Api,
        order: &serde_json::Value,
        twice: bool,
        now: Timestamp,
    ) -> Result<Response, GaveUp> {
        let (id, amount) = (order["order_id"].as_str().unwrap_or_default(), &order["amount"]);
        let currency = order["currency"].as_str().unwrap_or_default();
        let mut call = Call::new("payment", Method::POST, "/v1/payments/webhook");
        match &self.payments {
            Payments::DemoCheckout => {
                call.path = "/demo/checkout".to_owned();
                call.form = Some(format!("order_id={id}&amount={amount}&currency={currency}&result=pay"));
            }
            Payments::Webhooks(secrets) => {
                let data = json!({
                    "order_id": id, "payment_id": format!("pay_{id}"), "amount": amount, "currency": currency,
                });
                let body = json!({
                    "type": "payment.succeeded", "timestamp": now.to_rfc3339(), "data": data,
                })
                .to_string();
                let message: MessageId =
                    format!("msg_{id}").parse().map_err(|_| GaveUp(format!("{id} is no id of an order")))?;
                call.headers = webhook::headers(&message, now, body.as_bytes(), Some(secrets));
                call.body = Some(body);
            }
            Payments::None => return Err(GaveUp("this instance has no way to pay".to_owned())),
        }
        let answer = api.anyone(&call).await?;
        // Providers repeat webhooks. The second one must change nothing.
        if twice && matches!(self.payments, Payments::Webhooks(_)) {
            return api.anyone(&call).await;
        }
        Ok(answer)
    }
}
