//! The player's inbox.

use ::http::HeaderMap;
use ::http::header::ACCEPT_LANGUAGE;
use ::http::request::Parts;
use axum::Json;
use axum::extract::{FromRequestParts, State};
use base::id::Uuid;
use base::{Code, Timestamp};
use http_server::{Body, Problem, Query};
use notification::{Counts, Filter, Mark, Marked, Notification, NotificationId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sessions::Caller;
use utoipa::{IntoParams, ToSchema};

use super::{DEFAULT_LIMIT, Segment, failed};
use crate::Gateway;

/// How many are listed at the most.
const MOST: u32 = 200;
/// How many languages of a request are considered.
const LANGUAGES: usize = 10;

/// The languages that a client wants, the dearest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Languages(Vec<String>);

impl Languages {
    /// As `Accept-Language` has them.
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
            text.split(',').take(LANGUAGES).filter_map(language).collect();
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

/// Something that the player was told.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct NotificationAnswer {
    notification_id: Uuid,
    /// Where it stands in the inbox; of a stream, the `id` of its event.
    position: i64,
    /// Which template it was made by; empty if a service said it in so many words.
    template: String,
    /// The language of the texts.
    language: String,
    title: String,
    body: String,
    /// What the texts were made of.
    #[schema(value_type = Object)]
    data: Value,
    /// RFC 3339.
    #[schema(format = DateTime)]
    created_at: String,
    /// When it is no longer of interest.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// Since when the player has seen it, read it, put it out of the way.
    #[schema(format = DateTime)]
    seen_at: Option<String>,
    #[schema(format = DateTime)]
    read_at: Option<String>,
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
    /// The newest first.
    notifications: Vec<NotificationAnswer>,
    /// Where the next page begins, if there is one: give it as `before`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
    /// How many were not read, of all that are there and not archived.
    unread: i64,
    /// How many of those were not even seen.
    unseen: i64,
    /// A stream that is opened with this misses nothing that is not listed here.
    last_event_id: String,
}

/// How many the player has not dealt with.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CountsAnswer {
    unread: i64,
    /// How many of those were not even seen.
    unseen: i64,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Which ones: those of the inbox if nothing is said, only the unread ones of it, or the archived ones.
    #[serde(default)]
    #[param(inline, required = false)]
    show: Show,
    /// From before this position.
    #[param(minimum = 0)]
    before: Option<i64>,
    /// How many at the most: 1 to 200, else 100.
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

/// What the player did with some of them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
#[schema(example = json!({"mark": "read", "up_to": 17}))]
pub(crate) struct MarkRequest {
    mark: MarkWord,
    /// These, by their `notification_id`; up to 1,000.
    #[serde(default)]
    ids: Option<Vec<String>>,
    /// Or all up to this position: what came after it, and was not on the screen, is not marked.
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

/// The inbox
#[utoipa::path(
    get, path = "/v1/notifications", operation_id = "notifications", tag = "player", params(ListQuery),
    responses(
        (status = 200, description = "A page of it", body = NotificationList),
        (status = 400, description = "The query cannot be read"),
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
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MOST);
    NotificationList::read(&gateway, &caller, &languages, filter, query.before, limit).await.map(Json)
}

/// How many are unread
#[utoipa::path(
    get, path = "/v1/notifications/counts", operation_id = "notification_counts", tag = "player",
    responses((status = 200, description = "Unread and unseen", body = CountsAnswer))
)]
pub(super) async fn counts(
    State(gateway): State<Gateway>,
    caller: Caller,
) -> Result<Json<CountsAnswer>, Problem> {
    let counts = gateway.inbox.counts(*caller.user().as_uuid()).await;
    counts.map(|counts| Json(counts.into())).map_err(|error| failed("notifications", &error))
}

/// One of the inbox
#[utoipa::path(
    get, path = "/v1/notifications/{notification_id}", operation_id = "notification", tag = "player",
    params(("notification_id" = Uuid, Path)),
    responses(
        (status = 200, description = "The notification", body = NotificationAnswer),
        (status = 400, description = "That is not the id of a notification"),
        (status = 404, description = "The caller has no such notification, or not any more"),
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

/// Mark as seen, read, unread, archived
///
/// Read is also seen. Those that are marked so already, or are not there, stay as they are. Other devices of the player hear of it.
#[utoipa::path(
    post, path = "/v1/notifications/mark", operation_id = "mark_notifications", tag = "player",
    request_body = MarkRequest,
    responses(
        (status = 200, description = "What is unread and unseen now", body = CountsAnswer),
        (status = 400, description = "It is not said which, or how"),
    )
)]
pub(super) async fn mark(
    State(gateway): State<Gateway>,
    caller: Caller,
    Body(request): Body<MarkRequest>,
) -> Result<Json<CountsAnswer>, Problem> {
    let marked = match (request.ids, request.up_to) {
        (Some(ids), None) => {
            Marked::These(ids.iter().map(|id| notification_id(id)).collect::<Result<_, _>>()?)
        }
        (None, Some(position)) => Marked::UpTo(position),
        _ => return Err(invalid("Say which: `ids`, or `up_to` a position.")),
    };
    let counts = gateway.inbox.mark(*caller.user().as_uuid(), &marked, request.mark.into()).await;
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
    text.parse().map_err(|_| invalid("That is not the id of a notification: a UUID is expected."))
}

fn invalid(detail: &str) -> Problem {
    Problem::new(Code::InvalidArgument).detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dearest_language_comes_first() {
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
