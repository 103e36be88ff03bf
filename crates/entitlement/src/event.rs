//! The events of entitlements.

use base::Timestamp;
use bus::{Event, EventId, EventKind, Json};
use serde::Serialize;
use utoipa::{PartialSchema, ToSchema};

use crate::model::{Action, Change, Entitlement, Holding};

const GRANTED: &str = "playhouse.entitlement.granted.v1";
const REVOKED: &str = "playhouse.entitlement.revoked.v1";

/// The data of both events: the change, and the entitlement after it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EntitlementChanged {
    pub user_id: String,
    pub account_id: String,
    pub resource: String,
    /// Increases by one with every event of the entitlement. The event with the largest version has the current state.
    pub version: i64,
    /// The state after the change: ACTIVE or REVOKED.
    pub state: String,
    /// The quantity after the change, if counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantity: Option<i64>,
    /// The quantity that this change granted or revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_quantity: Option<i64>,
    /// When the entitlement ends automatically.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<String>,
    /// When the change happened at the shop.
    pub occurred_at: String,
    /// The shop's reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

/// Returns all event kinds of this crate.
pub fn events() -> Vec<EventKind> {
    let schema = serde_json::to_value(EntitlementChanged::schema()).unwrap_or_default();
    let kind = |kind, summary| {
        let key = "entitlement/{user_id}/{account_id}/{resource}";
        EventKind { kind, summary, key, schema: schema.clone() }
    };
    vec![
        kind(GRANTED, "A resource, or more of it, was granted to an account."),
        kind(
            REVOKED,
            "A resource, or some of it, was revoked from an account, possibly before its grant arrived.",
        ),
    ]
}

/// Returns the key that keeps the events of an entitlement in order.
pub(crate) fn key(Holding { user, account, resource }: &Holding) -> String {
    format!("entitlement/{user}/{account}/{resource}")
}

/// Returns the entitlement that an event is about. None if it is not an event of this crate.
pub(crate) fn holding(event: &Event) -> Option<Holding> {
    if ![GRANTED, REVOKED].contains(&event.kind.as_str()) {
        return None;
    }
    let data: serde_json::Value = serde_json::from_slice(event.data.as_bytes()).ok()?;
    let text = |name: &str| data[name].as_str();
    Some(Holding {
        user: text("user_id")?.parse().ok()?,
        account: text("account_id")?.parse().ok()?,
        resource: text("resource")?.to_owned(),
    })
}

/// Builds the event of an applied change.
pub(crate) fn new(
    id: EventId,
    change: &Change,
    after: &Entitlement,
    traceparent: Option<&str>,
    now: Timestamp,
) -> Result<Event, serde_json::Error> {
    let Holding { user, account, resource } = &change.holding;
    let key = key(&change.holding);
    let kind = match change.action {
        Action::Grant { .. } => GRANTED,
        Action::Revoke { .. } => REVOKED,
    };
    let data = EntitlementChanged {
        user_id: user.to_string(),
        account_id: account.to_string(),
        resource: resource.clone(),
        version: after.version,
        state: after.state.word().to_owned(),
        quantity: after.balance(),
        change_quantity: change.action.quantity(),
        valid_until: after.valid_until.map(Timestamp::to_rfc3339),
        occurred_at: change.occurred_at.to_rfc3339(),
        reference: change.reference.clone(),
    };
    Ok(Event {
        id,
        subject: kind.trim_start_matches("playhouse.").to_owned(),
        kind: kind.to_owned(),
        source: "/playhouse/entitlement".to_owned(),
        time: now,
        key: Some(key),
        traceparent: traceparent.map(str::to_owned),
        data: Json::from_value(&data)?,
    })
}
