//! Broadcasts in the admin API: preview, send, list, stop and resume.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, Query};
use axum::http::HeaderMap;
use base::id::Uuid;
use http_server::{JsonBody, Problem, idempotency_key};
use jobs::{COUNT_CAP, check_expected};
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Open, Operator, OperatorRoute};
use work_queue::Filter;

use super::operations::{RESUME, SEND, STOP};
use super::{DEFAULT_LIMIT, MAX_LIMIT, id, invalid, time};
use crate::deliver::state_word;
use crate::http::problem;
use crate::model::{Channel, Message, Text, Texts};
use crate::{Content, Notifications, Progress, Recipients, Request};

/// The language of a draft that names none.
const DEFAULT_LANGUAGE: &str = "en";

pub(super) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/broadcasts", list),
        OperatorRoute::post("/broadcasts", send).operation(SEND),
        OperatorRoute::get("/broadcasts/preview", preview),
        OperatorRoute::get("/broadcasts/{broadcast}", show),
        OperatorRoute::post("/broadcasts/{broadcast}/stop", stop).operation(STOP),
        OperatorRoute::post("/broadcasts/{broadcast}/resume", resume).operation(RESUME),
    ]
}

/// A broadcast that an operator writes: a template, the text in one language, or texts by language.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Draft {
    pub(crate) template: Option<String>,
    pub(crate) language: Option<String>,
    pub(crate) title: Option<String>,
    pub(crate) body: Option<String>,
    pub(crate) texts: Option<Texts>,
    /// Separated by commas: `live,webhook:crm`. Default: `live`.
    pub(crate) channels: Option<String>,
    pub(crate) data: Option<Value>,
    pub(crate) expires_at: Option<String>,
    /// How many recipients the operator saw.
    expected: Option<u64>,
    /// A repetition with the same key sends nothing.
    key: Option<String>,
}

impl Draft {
    /// Reads a draft from the query of a URL, where `texts` and `data` are JSON.
    pub(crate) fn from_query(query: &BTreeMap<String, String>) -> Result<Self, Problem> {
        let text =
            |name: &str| query.get(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let not_json =
            |name: &str, error: serde_json::Error| invalid(format!("{name} is not valid JSON: {error}"));
        let texts = text("texts").map(|text| serde_json::from_str(&text)).transpose();
        let data = text("data").map(|text| serde_json::from_str(&text)).transpose();
        Ok(Self {
            template: text("template"),
            language: text("language"),
            title: text("title"),
            body: text("body"),
            texts: texts.map_err(|error| not_json("texts", error))?,
            channels: text("channels"),
            data: data.map_err(|error| not_json("data", error))?,
            expires_at: text("expires_at"),
            expected: None,
            key: None,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.template.is_none() && self.title.is_none() && self.texts.is_none()
    }

    fn request(&self) -> Result<Request, Problem> {
        let content = match (&self.template, &self.texts, &self.title) {
            (Some(name), None, None) => Content::Template(name.clone()),
            (None, Some(texts), None) => Content::Texts(texts.clone(), self.channels()?),
            (None, None, Some(title)) => {
                let language = self.language.as_deref().unwrap_or(DEFAULT_LANGUAGE);
                let text = Text { title: title.clone(), body: self.body.clone().unwrap_or_default() };
                Content::Texts([(language.to_owned(), text)].into(), self.channels()?)
            }
            _ => return Err(invalid("Give exactly one of template, title and texts.".to_owned())),
        };
        let expires_at = self.expires_at.as_deref().filter(|text| !text.is_empty());
        Ok(Request {
            to: Recipients::All,
            content,
            data: self.data.clone().unwrap_or_else(|| json!({})),
            expires_at: expires_at.map(|text| time("expires_at", text)).transpose()?,
        })
    }

    fn channels(&self) -> Result<Vec<Channel>, Problem> {
        let channels = self.channels.as_deref().unwrap_or("live").split(',').map(str::trim);
        let channel = |text: &str| text.parse::<Channel>().map_err(|error| invalid(error.to_string()));
        channels.filter(|text| !text.is_empty()).map(channel).collect()
    }

    /// Renders the message, and counts its recipients up to the cap plus one. Sends nothing.
    pub(crate) async fn preview(&self, notifications: &Notifications) -> Result<(Message, u64), Problem> {
        let message = notifications.message(&self.request()?).map_err(problem)?;
        Ok((message, notifications.count_recipients(COUNT_CAP).await.map_err(problem)?))
    }
}

async fn preview(
    Open(notifications): Open<Notifications>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Result<Json<Value>, Problem> {
    let (message, recipients) = Draft::from_query(&query)?.preview(&notifications).await?;
    Ok(Json(json!({
        "texts": message.texts, "channels": message.channels, "data": message.data, "recipients": recipients.min(COUNT_CAP),
        "has_more": recipients > COUNT_CAP,
    })))
}

async fn send(
    Open(notifications): Open<Notifications>,
    operator: Operator,
    headers: HeaderMap,
    JsonBody(draft): JsonBody<Draft>,
) -> Result<Json<Value>, Problem> {
    let request = draft.request()?;
    if draft.expected.is_some() {
        let recipients = notifications.count_recipients(COUNT_CAP).await.map_err(problem)?;
        check_expected(draft.expected, recipients)?;
    }
    let key = match &draft.key {
        Some(key) => key.clone(),
        None => idempotency_key(&headers).map_or_else(|_| Uuid::now_v7().to_string(), ToOwned::to_owned),
    };
    let caller = format!("operator {}", operator.name);
    let (receipt, _) = notifications.send(&caller, &key, &request).await.map_err(problem)?;
    tracing::warn!(broadcast = %receipt.id, operator = operator.name, "an operator sent a broadcast");
    show_broadcast(&notifications, receipt.id).await
}

#[derive(Deserialize)]
struct BroadcastsQuery {
    state: Option<String>,
    limit: Option<u32>,
}

async fn list(
    Open(notifications): Open<Notifications>,
    Query(query): Query<BroadcastsQuery>,
) -> Result<Json<Value>, Problem> {
    let filter = match query.state.as_deref() {
        None | Some("all") => Filter::All,
        Some("open") => Filter::Open,
        Some("sent") => Filter::Done,
        Some("failed") => Filter::Failed,
        Some("stopped") => Filter::Held,
        Some(_) => return Err(invalid("state must be one of all, open, sent, failed, stopped.".to_owned())),
    };
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let broadcasts = notifications.broadcasts().list(filter, limit).await.map_err(problem)?;
    Ok(Json(json!({ "broadcasts": broadcasts.iter().map(progress).collect::<Vec<_>>() })))
}

async fn show(
    Open(notifications): Open<Notifications>,
    Path(broadcast): Path<String>,
) -> Result<Json<Value>, Problem> {
    show_broadcast(&notifications, id("broadcast", &broadcast)?).await
}

async fn stop(
    Open(notifications): Open<Notifications>,
    Path(broadcast): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = id("broadcast", &broadcast)?;
    notifications.broadcasts().stop(id).await.map_err(problem)?;
    tracing::warn!(broadcast = %id, "an operator stopped a broadcast");
    show_broadcast(&notifications, id).await
}

async fn resume(
    Open(notifications): Open<Notifications>,
    Path(broadcast): Path<String>,
) -> Result<Json<Value>, Problem> {
    let id = id("broadcast", &broadcast)?;
    notifications.resume_broadcast(id).await.map_err(problem)?;
    tracing::warn!(broadcast = %id, "an operator resumed a broadcast");
    show_broadcast(&notifications, id).await
}

async fn show_broadcast(notifications: &Notifications, id: Uuid) -> Result<Json<Value>, Problem> {
    let found = notifications.broadcasts().progress(id).await.map_err(problem)?;
    let found = found.ok_or_else(|| problem(crate::Error::BroadcastNotFound(id)))?;
    Ok(Json(progress(&found)))
}

fn progress(progress: &Progress) -> Value {
    json!({
        "id": progress.id, "state": state_word(progress.state), "notified": progress.notified, "title": progress.title,
        "attempts": progress.attempts, "cause": progress.cause, "created": progress.created.to_rfc3339(),
        "due": progress.due.to_rfc3339(),
    })
}
