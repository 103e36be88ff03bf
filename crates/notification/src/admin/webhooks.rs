//! Webhook destinations in the admin API: their state, enabling, a test message, and recovery after an outage.

use axum::Json;
use axum::extract::{Path, Query};
use base::Code;
use http_server::Problem;
use jobs::Jobs;
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Open, Operator, OperatorRoute};

use super::operations::{ENABLE, RECOVER, TEST};
use super::{DEFAULT_RATE, start_job, time};
use crate::http::problem;
use crate::model::Channel;
use crate::{DeadLetterFilter, Notifications, dead_letters};

pub(super) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/webhooks", webhooks),
        OperatorRoute::post("/webhooks/{name}/enable", enable).operation(ENABLE),
        OperatorRoute::post("/webhooks/{name}/test", test).operation(TEST),
        OperatorRoute::post("/webhooks/{name}/recover", recover).operation(RECOVER),
    ]
}

async fn webhooks(Open(notifications): Open<Notifications>) -> Result<Json<Value>, Problem> {
    let destinations = notifications.deliveries().destinations().await.map_err(problem)?;
    let views = destinations.into_iter().map(|destination| {
        let (since, cause) = destination.disabled.map(|(since, cause)| (since.to_rfc3339(), cause)).unzip();
        let (until, waiting, last) =
            destination.backoff.map_or((None, 0, None), |found| (Some(found.until.to_rfc3339()), found.waiting, found.cause));
        json!({
            "name": destination.name, "disabled_since": since, "cause": cause.or(last), "resting_until": until, "waiting": waiting,
        })
    });
    Ok(Json(json!({ "webhooks": views.collect::<Vec<_>>() })))
}

async fn enable(
    Open(notifications): Open<Notifications>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    require(&notifications, &name)?;
    let webhooks = notifications.webhooks();
    let was_disabled = webhooks.enable(&name).await.map_err(problem)?;
    tracing::warn!(destination = name, "an operator enabled a webhook destination");
    Ok(Json(json!({ "name": name, "was_disabled": was_disabled })))
}

/// Sends a test message now. Answers 200 also if the destination refuses it: the response says so.
async fn test(
    Open(notifications): Open<Notifications>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    require(&notifications, &name)?;
    let result = notifications.webhooks().test(&name).await;
    let (millis, cause) = match result {
        Ok(duration) => (Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)), None),
        Err(cause) => (None, Some(cause)),
    };
    Ok(Json(json!({ "name": name, "delivered": cause.is_none(), "milliseconds": millis, "cause": cause })))
}

#[derive(Deserialize)]
struct RecoverQuery {
    /// Since when deliveries were given up.
    since: String,
    rate: Option<u32>,
    expected: Option<u64>,
}

/// Delivers again what was given up since a time.
async fn recover(
    Open(notifications): Open<Notifications>,
    jobs: Open<Jobs>,
    operator: Operator,
    Path(name): Path<String>,
    Query(query): Query<RecoverQuery>,
) -> Result<Json<Value>, Problem> {
    require(&notifications, &name)?;
    if let Some((since, cause)) = notifications.webhooks().disabled(&name).await.map_err(problem)? {
        let since = since.to_rfc3339();
        let detail = format!(
            "The destination has been disabled since {since} ({cause}): enable it first, then recover."
        );
        return Err(Problem::new(Code::FailedPrecondition).detail(detail));
    }
    let filter = DeadLetterFilter {
        destination: Some(Channel::Webhook(name).to_string()),
        since: Some(time("since", &query.since)?),
        ..DeadLetterFilter::default()
    };
    let rate = Some(query.rate.unwrap_or(DEFAULT_RATE).max(1));
    start_job(Open(notifications), jobs, &operator, (dead_letters::REPLAY, rate), (&filter, query.expected))
        .await
}

fn require(notifications: &Notifications, name: &str) -> Result<(), Problem> {
    if notifications.webhooks().has(name) {
        return Ok(());
    }
    let detail = format!("There is no [notification.webhooks.{name}] in the configuration.");
    Err(Problem::new(Code::NotFound).detail(detail))
}
