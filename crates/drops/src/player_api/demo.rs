//! The demo payment provider of `playhouse dev`: a page with two buttons that send a signed webhook. There is also a demo drop.
//!
//! Both exist under `dev` only. Everywhere else the page is not found, and its signing secret does not exist.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use ::service::{Open, OpenError, Provided};
use aws_lc_rs::rand;
use axum::extract::State;
use axum::response::{Html, IntoResponse, Redirect, Response};
use base::html::escape;
use base::{Clock, Code};
use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use http::HeaderValue;
use http::header::CONTENT_SECURITY_POLICY;
use http_server::{Problem, Query, RawBody};
use serde::Deserialize;
use serde_json::json;
use url::form_urlencoded;
use webhook::Secrets;

use super::PlayerApi;
use crate::error::Error;
use crate::model::{AdmissionTerms, Audience, DropState, LineOrder, Price, Terms, WhenSoldOut, WithoutRedis};
use crate::orders::WebhookKind;
use crate::problem::problem;
use crate::{Drops, ListDrops, NewDrop, money};

/// The path of the demo checkout.
pub(crate) const PATH: &str = "/demo/checkout";
/// The pages that it can lead back to.
const PAGES: [&str; 2] = ["/", "/play"];
/// Allows only our stylesheet and the form that posts back to this page.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
);

/// How long after the start the demo drop opens: enough time to sign in and join.
const OPENS_IN: Duration = Duration::from_secs(20);
const STOCK: i64 = 25;
/// How many numbered names are tried for a new demo drop.
const MAX_NAMES: u32 = 1_000;

/// The demo provider's secret. Cheap to clone; clones share it.
#[derive(Clone)]
pub(crate) struct DemoProvider(String);

impl DemoProvider {
    /// Creates a provider with a random secret, which lives as long as the process.
    pub(crate) fn new() -> Option<Self> {
        let mut secret = [0; 32];
        rand::fill(&mut secret).ok()?;
        Some(Self(format!("whsec_{}", BASE64.encode(secret))))
    }

    /// Returns the secret that its webhooks are verified with.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DemoProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DemoProvider").finish_non_exhaustive()
    }
}

/// The query of a checkout URL.
#[derive(Debug, Deserialize)]
pub(super) struct Checkout {
    order_id: String,
    amount: i64,
    currency: String,
    /// The page of the game to come back to. `/` without it.
    #[serde(default)]
    return_to: String,
}

/// Shows the amount to pay.
pub(super) async fn show(
    State(provided): State<Provided>,
    Query(checkout): Query<Checkout>,
) -> Result<Response, Problem> {
    demo(&provided)?;
    let Checkout { order_id, amount, currency, return_to } = &checkout;
    let (order, code, back) = (escape(order_id), escape(currency), escape(return_to));
    let price = escape(&money(*amount, currency));
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>Demo checkout</title>\n<link rel=\"stylesheet\" \
         href=\"/assets/playhouse.css\">\n<main>\n<h1>Demo checkout</h1>\n<p>This page stands for a payment provider. No money \
         moves.</p>\n<dl><dt>To pay</dt><dd><strong id=\"price\">{price}</strong></dd><dt>Order</dt><dd>{order}</dd></dl>\n\
         <form method=\"post\" action=\"{PATH}\">\n<input type=\"hidden\" name=\"order_id\" value=\"{order}\">\n\
         <input type=\"hidden\" name=\"amount\" value=\"{amount}\">\n<input type=\"hidden\" name=\"currency\" value=\"{code}\">\n\
         <input type=\"hidden\" name=\"return_to\" value=\"{back}\">\n\
         <button class=\"button\" name=\"result\" value=\"pay\">Pay</button> \
         <button class=\"button quiet\" name=\"result\" value=\"decline\">Decline</button>\n</form>\n</main>\n</html>\n"
    );
    let mut response = Html(html).into_response();
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, POLICY);
    Ok(response)
}

/// Sends the webhook of the pressed button, signed like a provider's, and redirects to the game.
pub(super) async fn pay(
    State(provided): State<Provided>,
    Open(api): Open<PlayerApi>,
    RawBody(body): RawBody,
) -> Result<Redirect, Problem> {
    let provider = demo(&provided)?;
    let unreadable = || Problem::new(Code::InvalidArgument).detail("The form cannot be read.");
    let form: HashMap<String, String> = form_urlencoded::parse(&body).into_owned().collect();
    let field = |name: &str| form.get(name).cloned().ok_or_else(unreadable);
    let (kind, result) = match field("result")?.as_str() {
        "pay" => (WebhookKind::Succeeded, "paid"),
        _ => (WebhookKind::Failed, "declined"),
    };
    let (order, now) = (field("order_id")?, api.clock.now());
    let amount: i64 = field("amount")?.parse().map_err(|_| unreadable())?;
    let message = json!({
        "type": kind.as_str(),
        "timestamp": now.to_rfc3339(),
        "data": {
            "order_id": order, "payment_id": format!("demo-{order}"), "amount": amount, "currency": field("currency")?,
        },
    })
    .to_string();
    // The same id for the same button, so that a repeated click has no effect.
    let id = format!("demo-{order}-{result}").parse().map_err(|_| unreadable())?;
    let secrets = Secrets::new([provider.secret()]).map_err(|_| Problem::new(Code::Internal))?;
    let headers = webhook::headers(&id, now, message.as_bytes(), Some(&secrets));
    api.receive(&headers, message.as_bytes()).await.map_err(problem)?;
    // Only pages of ours, so that the link of a stranger cannot lead away from here.
    let back = form.get("return_to").map(String::as_str);
    Ok(Redirect::to(back.filter(|page| PAGES.contains(page)).unwrap_or("/")))
}

/// Finds the demo provider. Without one, the page is not found.
fn demo(provided: &Provided) -> Result<DemoProvider, Problem> {
    provided.find().ok_or_else(|| Problem::new(Code::NotFound).detail("There is nothing at this address."))
}

/// Schedules the demo drop, unless there is a drop that players can join.
pub(crate) async fn open_demo_drop(drops: Drops, clock: Clock) -> Result<(), OpenError> {
    let scheduled = schedule_demo_drop(&drops, &clock).await;
    scheduled.map_err(|source| OpenError::unusable("drops", source))
}

async fn schedule_demo_drop(drops: &Drops, clock: &Clock) -> Result<(), Error> {
    for state in [DropState::Scheduled, DropState::Open, DropState::Paused] {
        if !drops.list(ListDrops { state: Some(state), after: None, limit: 1 }).await?.is_empty() {
            return Ok(());
        }
    }
    for number in 1..MAX_NAMES {
        let name = if number == 1 { "Golden hat".to_owned() } else { format!("Golden hat {number}") };
        let new = NewDrop {
            name,
            resource: "golden-hat".to_owned(),
            terms: demo_terms(),
            stock: STOCK,
            actor: "playhouse dev".to_owned(),
        };
        match drops.create(&new).await {
            Err(Error::NameTaken(_)) => {}
            created => {
                drops.schedule(created?.id, clock.now().after(OPENS_IN), None).await?;
                return Ok(());
            }
        }
    }
    Ok(())
}

fn demo_terms() -> Terms {
    Terms {
        price: Price { amount: 499, currency: "EUR".to_owned() },
        per_player: 2,
        who: Audience::Anyone,
        lanes: Vec::new(),
        admission: AdmissionTerms {
            batch: 2,
            period: Duration::from_secs(3),
            capacity: 20,
            lifetime: Duration::from_secs(600),
            arrive_within: Duration::from_secs(120),
        },
        order: LineOrder::FirstCome,
        without_redis: WithoutRedis::Continue,
        when_sold_out: WhenSoldOut::Close,
        reservation: Duration::from_secs(300),
        message: Some("Bring a friend: open a second browser and sign in as another player.".to_owned()),
    }
}
