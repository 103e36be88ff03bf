//! The events of users. They carry ids and states, and nothing personal: an event cannot be erased.

use base::Timestamp;
use base::id::Uuid;
use bus::{Event, EventId, EventKind, Json};
use runtime::telemetry::TraceContext;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{AccountId, Error, UserId, UserState};

const SOURCE: &str = "/playhouse/account";
/// What subjects lack of kinds: the bus puts its own prefix in front.
const PREFIX: &str = "playhouse.";

/// `playhouse.user.registered.v1`
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct UserRegistered {
    pub user_id: Uuid,
    /// The account that every user has from the start.
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
pub(crate) trait Data: Serialize + ToSchema {
    const KIND: &'static str;
    const SUMMARY: &'static str;
}

impl Data for UserRegistered {
    const KIND: &'static str = "playhouse.user.registered.v1";
    const SUMMARY: &'static str = "Somebody signed in for the first time and is a user now.";
}

impl Data for UserBanned {
    const KIND: &'static str = "playhouse.user.banned.v1";
    const SUMMARY: &'static str = "A user was banned, or is banned for another reason than before.";
}

impl Data for UserUnbanned {
    const KIND: &'static str = "playhouse.user.unbanned.v1";
    const SUMMARY: &'static str = "A user who was banned may sign in again.";
}

impl Data for UserErased {
    const KIND: &'static str = "playhouse.user.erased.v1";
    const SUMMARY: &'static str =
        "A user was erased for good: whoever keeps something of theirs has to remove it.";
}

/// Every kind of event that is told here.
pub fn events() -> Vec<EventKind> {
    vec![kind::<UserRegistered>(), kind::<UserBanned>(), kind::<UserUnbanned>(), kind::<UserErased>()]
}

fn kind<D: Data>() -> EventKind {
    // It is made of plain values.
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

/// An event about a user, in the trace that we are in.
pub(crate) fn about<D: Data>(user: UserId, time: Timestamp, data: &D) -> Result<Event, Error> {
    Ok(Event {
        id: EventId::generate(),
        subject: D::KIND.strip_prefix(PREFIX).unwrap_or(D::KIND).to_owned(),
        kind: D::KIND.to_owned(),
        source: SOURCE.to_owned(),
        time,
        key: Some(format!("user/{user}")),
        traceparent: TraceContext::current().traceparent().map(str::to_owned),
        data: Json::of(data)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_about_its_user_and_says_when() {
        let user = UserId::generate();
        let event = about(user, Timestamp::from_millis(7), &banned(user)).unwrap();
        assert_eq!(event.kind, "playhouse.user.banned.v1");
        assert_eq!(event.subject, "user.banned.v1");
        assert_eq!(event.source, "/playhouse/account");
        assert_eq!(event.key, Some(format!("user/{user}")));
        assert_eq!(event.time, Timestamp::from_millis(7));
        let data: serde_json::Value = serde_json::from_slice(event.data.as_bytes()).unwrap();
        assert_eq!(data, serde_json::json!({ "user_id": user.to_string(), "state": "BANNED" }));
    }

    #[test]
    fn every_kind_is_listed_with_a_schema_of_its_own() {
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
