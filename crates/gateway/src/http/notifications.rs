//! The player's inbox.

use ::http::HeaderMap;
use ::http::header::ACCEPT_LANGUAGE;
use ::http::request::Parts;
use axum::Json;
use axum::extract::{FromRequestParts, State};
use base::id::Uuid;
use base::{Code, Timestamp};
use http_server::{JsonBody, Problem, Query};
use notification::{Counts, Filter, Mark, MarkTarget, Notification, NotificationId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sessions::Caller;
use utoipa::{IntoParams, ToSchema};

use super::{DEFAULT_LIMIT, Segment, failed};
use crate::Gateway;

/// The most notifications of a page.
const MAX_PAGE: u32 = 200;
/// The most languages of a request that are considered.
const MAX_LANGUAGES: usize = 10;

/// The languages that a client accepts, the preferred one first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Languages(Vec<String>);

impl Languages {
    /// Parses `Accept-Language`.
    fn of(headers: &HeaderMap) -> Self {
        let text = headers.get(ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let language = |part: &str| {
            let (language, weight) = part.split_once(';').unwrap_or((part, ""));
            let weight =
                weight.trim().strip_prefix("q=").map_or(Some(1.0), |weight| weight.parse::<f32>().ok())?;
            let language = language.trim().to_ascii_lowercase();
            (weight > 0.0 && !language.is_empty()).then_some((weight, language))
        };
        let mut languages: Vec<(f32, String)> =
            text.split(',').take(MAX_LANGUAGES).filter_map(language).collect();
        languages.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        Self(languages.into_iter().map(|(_, language)| language).collect())
    }
}

impl FromRequestParts<Gateway> for Languages {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Self, Self::Rejection> {
        let mut languages = Self::of(&parts.headers);
        languages.0.push(gateway.inbox.language().to_owned());
        Ok(languages)
    }
}

/// A notification in the player's inbox.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct NotificationAnswer {
    notification_id: Uuid,
    /// Its position in the inbox, which is also the `id` of its event in a stream.
    position: i64,
    /// The template that it was rendered from; empty if a service sent the texts itself.
    template: String,
    /// The language of the texts.
    language: String,
    title: String,
    body: String,
    /// The data that the texts were rendered from.
    #[schema(value_type = Object)]
    data: Value,
    /// RFC 3339.
    #[schema(format = DateTime)]
    created_at: String,
    /// When it expires; RFC 3339.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// When the player saw it.
    #[schema(format = DateTime)]
    seen_at: Option<String>,
    /// When the player read it.
    #[schema(format = DateTime)]
    read_at: Option<String>,
    /// When the player archived it.
    #[schema(format = DateTime)]
    archived_at: Option<String>,
}

impl NotificationAnswer {
    pub(super) fn of(notification: &Notification, Languages(languages): &Languages) -> Self {
        let time = |millis: i64| Timestamp::from_millis(millis).to_rfc3339();
        let (language, text) = notification.text(languages).unzip();
        let text = text.cloned().unwrap_or_default();
        Self {
            notification_id: notification.notification_id,
            position: notification.position,
            template: notification.template.clone(),
            language: language.unwrap_or_default().to_owned(),
            title: text.title,
            body: text.body,
            data: notification.data.clone(),
            created_at: time(notification.created_at),
            expires_at: notification.expires_at.map(time),
            seen_at: notification.seen_at.map(time),
            read_at: notification.read_at.map(time),
            archived_at: notification.archived_at.map(time),
        }
    }
}

/// A page of the inbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NotificationList {
    /// Sorted by position, the newest first.
    notifications: Vec<NotificationAnswer>,
    /// The start of the next page, if there is one: send it as `before`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
    /// The number of unread notifications that are not archived.
    unread: i64,
    /// The number of these that were not seen either.
    unseen: i64,
    /// A stream that is opened with this id continues exactly after this list.
    last_event_id: String,
}

/// The numbers of unread and unseen notifications.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CountsAnswer {
    unread: i64,
    /// The number of these that were not seen either.
    unseen: i64,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// The inbox (the default), only its unread notifications, or the archived ones.
    #[serde(default)]
    #[param(inline, required = false)]
    show: Show,
    /// Returns notifications before this position.
    #[param(minimum = 0)]
    before: Option<i64>,
    /// The most notifications to return: 1 to 200, 100 by default.
    limit: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Show {
    #[default]
    Inbox,
    Unread,
    Archived,
}

/// Marks some notifications.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({"mark": "read", "up_to": 17}))]
pub(crate) struct MarkRequest {
    mark: MarkWord,
    /// The notifications to mark, by `notification_id`; up to 1,000.
    #[serde(default)]
    ids: Option<Vec<String>>,
    /// Or all up to this position. Later notifications, which were not on the screen yet, are not marked.
    #[serde(default)]
    up_to: Option<i64>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MarkWord {
    Seen,
    Read,
    Unread,
    Archived,
    Unarchived,
}

/// List the inbox
#[utoipa::path(
    get, path = "/v1/notifications", operation_id = "notifications", tag = "player", params(ListQuery),
    responses(
        (status = 200, description = "A page of the inbox", body = NotificationList),
        (status = 400, description = "The query is not valid"),
    )
)]
pub(super) async fn list(
    State(gateway): State<Gateway>,
    languages: Languages,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Json<NotificationList>, Problem> {
    let filter = match query.show {
        Show::Inbox => Filter::Inbox,
        Show::Unread => Filter::Unread,
        Show::Archived => Filter::Archived,
    };
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_PAGE);
    NotificationList::read(&gateway, &caller, &languages, filter, query.before, limit).await.map(Json)
}

/// Count unread notifications
#[utoipa::path(
    get, path = "/v1/notifications/counts", operation_id = "notification_counts", tag = "player",
    responses((status = 200, description = "The counts", body = CountsAnswer))
)]
pub(super) async fn counts(
    State(gateway): State<Gateway>,
    caller: Caller,
) -> Result<Json<CountsAnswer>, Problem> {
    let counts = gateway.inbox.counts(*caller.user().as_uuid()).await;
    counts.map(|counts| Json(counts.into())).map_err(|error| failed("notifications", &error))
}

/// Get a notification
#[utoipa::path(
    get, path = "/v1/notifications/{notification_id}", operation_id = "notification", tag = "player",
    params(("notification_id" = Uuid, Path)),
    responses(
        (status = 200, description = "The notification", body = NotificationAnswer),
        (status = 400, description = "The id is not valid"),
        (status = 404, description = "The caller has no such notification"),
    )
)]
pub(super) async fn show(
    State(gateway): State<Gateway>,
    languages: Languages,
    caller: Caller,
    Segment(id): Segment,
) -> Result<Json<NotificationAnswer>, Problem> {
    let found = gateway.inbox.get(*caller.user().as_uuid(), notification_id(&id)?).await;
    let found = found.map_err(|error| failed("notifications", &error))?;
    Ok(Json(NotificationAnswer::of(&found, &languages)))
}

/// Mark notifications as seen, read, unread, archived or unarchived
///
/// A read notification is also seen. Unknown notifications, and those with the mark already, are ignored. The player's other devices
/// receive an `inbox` event.
#[utoipa::path(
    post, path = "/v1/notifications/mark", operation_id = "mark_notifications", tag = "player",
    request_body = MarkRequest,
    responses(
        (status = 200, description = "The new counts", body = CountsAnswer),
        (status = 400, description = "The notifications or the mark are missing or not valid"),
    )
)]
pub(super) async fn mark(
    State(gateway): State<Gateway>,
    caller: Caller,
    JsonBody(request): JsonBody<MarkRequest>,
) -> Result<Json<CountsAnswer>, Problem> {
    let target = match (request.ids, request.up_to) {
        (Some(ids), None) => {
            MarkTarget::Ids(ids.iter().map(|id| notification_id(id)).collect::<Result<_, _>>()?)
        }
        (None, Some(position)) => MarkTarget::UpTo(position),
        _ => return Err(invalid("Send either `ids` or `up_to`.")),
    };
    let counts = gateway.inbox.mark(*caller.user().as_uuid(), &target, request.mark.into()).await;
    counts.map(|counts| Json(counts.into())).map_err(|error| failed("notifications", &error))
}

impl NotificationList {
    pub(super) async fn read(
        gateway: &Gateway,
        caller: &Caller,
        languages: &Languages,
        filter: Filter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Self, Problem> {
        let page = gateway.inbox.list(*caller.user().as_uuid(), filter, before, limit).await;
        let page = page.map_err(|error| failed("notifications", &error))?;
        let Counts { unread, unseen } = page.counts;
        Ok(Self {
            notifications: page
                .notifications
                .iter()
                .map(|found| NotificationAnswer::of(found, languages))
                .collect(),
            next: page.next,
            unread,
            unseen,
            last_event_id: page.head.to_string(),
        })
    }
}

impl From<Counts> for CountsAnswer {
    fn from(Counts { unread, unseen }: Counts) -> Self {
        Self { unread, unseen }
    }
}

impl From<MarkWord> for Mark {
    fn from(word: MarkWord) -> Self {
        match word {
            MarkWord::Seen => Self::Seen,
            MarkWord::Read => Self::Read,
            MarkWord::Unread => Self::Unread,
            MarkWord::Archived => Self::Archived,
            MarkWord::Unarchived => Self::Unarchived,
        }
    }
}

fn notification_id(text: &str) -> Result<NotificationId, Problem> {
    text.parse().map_err(|_| invalid("The id of a notification must be a UUID."))
}

fn invalid(detail: &str) -> Problem {
    Problem::new(Code::InvalidArgument).detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferred_language_comes_first() {
        let languages = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_LANGUAGE, text.parse().unwrap());
            Languages::of(&headers).0
        };
        assert_eq!(languages("de-CH, fr;q=0.9, en;q=0.8, *;q=0.5"), ["de-ch", "fr", "en", "*"]);
        assert_eq!(languages("en;q=0.1, ja"), ["ja", "en"]);
        assert_eq!(languages("en;q=0, ja;q=x, ,"), [] as [&str; 0]);
        assert_eq!(Languages::of(&HeaderMap::new()), Languages::default());
    }
}
