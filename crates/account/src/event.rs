//! The events about users. They carry ids and states but no personal data, since a published event cannot be erased.

use base::Timestamp;
use base::id::Uuid;
use bus::{Event, EventId, EventKind, Json};
use runtime::telemetry::TraceContext;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{AccountId, Error, UserId, UserState};

pub(crate) const SOURCE: &str = "/playhouse/account";
/// The beginning of the key of a user's events.
const KEY_PREFIX: &str = "user/";
/// The part of a kind that its subject leaves out. The bus adds its own prefix.
const PREFIX: &str = "playhouse.";

/// `playhouse.user.registered.v1`
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct UserRegistered {
    pub user_id: Uuid,
    /// The default account, created with the user.
    pub account_id: Uuid,
    #[schema(inline)]
    pub state: UserState,
}

/// `playhouse.user.banned.v1`
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct UserBanned {
    pub user_id: Uuid,
    #[schema(inline)]
    pub state: UserState,
}

/// `playhouse.user.unbanned.v1`
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct UserUnbanned {
    pub user_id: Uuid,
    #[schema(inline)]
    pub state: UserState,
}

/// `playhouse.user.erased.v1`
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct UserErased {
    pub user_id: Uuid,
    #[schema(inline)]
    pub state: UserState,
}

/// The data of one kind of event.
pub(crate) trait EventData: Serialize + ToSchema {
    const KIND: &'static str;
    const SUMMARY: &'static str;
}

impl EventData for UserRegistered {
    const KIND: &'static str = "playhouse.user.registered.v1";
    const SUMMARY: &'static str = "A user was created by a first sign-in.";
}

impl EventData for UserBanned {
    const KIND: &'static str = "playhouse.user.banned.v1";
    const SUMMARY: &'static str = "A user was banned, or the reason of the ban changed.";
}

impl EventData for UserUnbanned {
    const KIND: &'static str = "playhouse.user.unbanned.v1";
    const SUMMARY: &'static str = "A banned user may sign in again.";
}

impl EventData for UserErased {
    const KIND: &'static str = "playhouse.user.erased.v1";
    const SUMMARY: &'static str = "A user was erased permanently: remove all data about this user.";
}

/// Returns the kinds of events that this service publishes.
pub fn events() -> Vec<EventKind> {
    vec![kind::<UserRegistered>(), kind::<UserBanned>(), kind::<UserUnbanned>(), kind::<UserErased>()]
}

fn kind<D: EventData>() -> EventKind {
    // A schema consists of plain values, so this cannot fail.
    let schema = serde_json::to_value(D::schema()).unwrap_or_default();
    EventKind { kind: D::KIND, summary: D::SUMMARY, key: "user/{user_id}", schema }
}

pub(crate) fn registered(user: UserId, account: AccountId) -> UserRegistered {
    UserRegistered { user_id: *user.as_uuid(), account_id: *account.as_uuid(), state: UserState::Active }
}

pub(crate) fn banned(user: UserId) -> UserBanned {
    UserBanned { user_id: *user.as_uuid(), state: UserState::Banned }
}

pub(crate) fn unbanned(user: UserId) -> UserUnbanned {
    UserUnbanned { user_id: *user.as_uuid(), state: UserState::Active }
}

pub(crate) fn erased(user: UserId) -> UserErased {
    UserErased { user_id: *user.as_uuid(), state: UserState::Erased }
}

/// Returns the key that keeps the events of a user in order.
pub(crate) fn key_of_user(user: UserId) -> String {
    format!("{KEY_PREFIX}{user}")
}

/// Returns the user of a key.
pub(crate) fn user_of_key(key: &str) -> Option<UserId> {
    key.strip_prefix(KEY_PREFIX)?.parse().ok()
}

/// Creates an event about a user, in the current trace.
pub(crate) fn user_event<D: EventData>(user: UserId, time: Timestamp, data: &D) -> Result<Event, Error> {
    Ok(Event {
        id: EventId::generate(),
        subject: D::KIND.strip_prefix(PREFIX).unwrap_or(D::KIND).to_owned(),
        kind: D::KIND.to_owned(),
        source: SOURCE.to_owned(),
        time,
        key: Some(key_of_user(user)),
        traceparent: TraceContext::current().traceparent().map(str::to_owned),
        data: Json::from_value(data)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_has_the_key_and_time_of_its_user() {
        let user = UserId::generate();
        let event = user_event(user, Timestamp::from_millis(7), &banned(user)).unwrap();
        assert_eq!(event.kind, "playhouse.user.banned.v1");
        assert_eq!(event.subject, "user.banned.v1");
        assert_eq!(event.source, "/playhouse/account");
        assert_eq!(event.key, Some(format!("user/{user}")));
        assert_eq!(event.time, Timestamp::from_millis(7));
        let data: serde_json::Value = serde_json::from_slice(event.data.as_bytes()).unwrap();
        assert_eq!(data, serde_json::json!({ "user_id": user.to_string(), "state": "BANNED" }));
    }

    #[test]
    fn every_kind_is_listed_with_its_schema() {
        let kinds: Vec<_> = events().into_iter().map(|event| event.kind).collect();
        assert_eq!(
            kinds,
            ["registered", "banned", "unbanned", "erased"].map(|what| format!("playhouse.user.{what}.v1"))
        );
        for event in events() {
            let schema = &event.schema;
            assert_eq!(schema["properties"]["user_id"]["format"], "uuid", "{schema}");
            assert!(schema["properties"]["state"].is_object(), "{schema}");
            assert!(event.summary.ends_with('.'), "{}", event.kind);
        }
    }
}
