//! What is told to the world.

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
    /// Counts up by one with every event of the entitlement. Of two, the larger one is true.
    pub version: i64,
    /// Whether the account has it now: ACTIVE or REVOKED.
    pub state: String,
    /// How many there are now, if it is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantity: Option<i64>,
    /// How many were granted or revoked by this change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_quantity: Option<i64>,
    /// When it ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<String>,
    /// When the purchase, or what revoked it, happened.
    pub occurred_at: String,
    /// What it is called at the shop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

/// Every kind of event that is told here.
pub fn events() -> Vec<EventKind> {
    // It is made of plain values.
    let schema = serde_json::to_value(EntitlementChanged::schema()).unwrap_or_default();
    let kind = |kind, summary| {
        let key = "entitlement/{user_id}/{account_id}/{resource}";
        EventKind { kind, summary, key, schema: schema.clone() }
    };
    vec![
        kind(GRANTED, "An account was given something, or more of it."),
        kind(
            REVOKED,
            "Something was taken from an account, or some of it; or was revoked before it was ever granted.",
        ),
    ]
}

/// What keeps the events of an entitlement in order.
pub(crate) fn key(Holding { user, account, resource }: &Holding) -> String {
    format!("entitlement/{user}/{account}/{resource}")
}

/// The event of a change that was applied.
pub(crate) fn of(
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
        data: Json::of(&data)?,
    })
}
