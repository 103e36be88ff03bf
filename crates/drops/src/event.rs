//! The events of drops.

use base::Timestamp;
use bus::{Event, EventId, EventKind, Json};
use serde::Serialize;
use utoipa::{PartialSchema, ToSchema};

use crate::model::{DropRecord, EndReason, LineEntry};

/// The `source` of all events of this crate.
pub(crate) const SOURCE: &str = "/playhouse/drops";
const SCHEDULED: &str = "playhouse.drop.scheduled.v1";
const OPENED: &str = "playhouse.drop.opened.v1";
const PAUSED: &str = "playhouse.drop.paused.v1";
const RESUMED: &str = "playhouse.drop.resumed.v1";
const CLOSED: &str = "playhouse.drop.closed.v1";
const CANCELLED: &str = "playhouse.drop.cancelled.v1";
const CHANGED: &str = "playhouse.drop.changed.v1";
const ADMITTED: &str = "playhouse.drop.admitted.v1";
const WAIT_ENDED: &str = "playhouse.drop.wait_ended.v1";
const ADMISSION_EXPIRED: &str = "playhouse.drop.admission_expired.v1";

/// The data of an event about a drop: the drop after the change.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DropChanged {
    pub drop_id: String,
    pub name: String,
    /// DRAFT, SCHEDULED, OPEN, PAUSED, CLOSED or CANCELLED.
    pub state: String,
    /// Why the drop ended, once it has: CLOSED, SOLD_OUT or CANCELLED.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_reason: Option<String>,
    /// What a buyer's account is granted.
    pub resource: String,
    /// Incremented with every event of the drop. The larger of two versions is newer.
    pub version: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closes_at: Option<String>,
    /// Whether the emergency switch is on: no player is admitted.
    pub everyone_waits: bool,
    /// The SHA-256 of the shuffle's seed, in hex.
    pub seed_hash: String,
    /// The shuffle's seed in hex, once the drop is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// Shown to players who wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The data of an event about a player's admission.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AdmissionChanged {
    pub drop_id: String,
    pub drop_name: String,
    pub user_id: String,
    pub account_id: String,
    pub admission_id: String,
    /// When the admission expires unless the player arrives, or when it expired.
    pub expires_at: String,
    /// Whether the player has used the admission.
    pub arrived: bool,
}

/// The data of an event about a player who still waited when a drop ended.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WaitEnded {
    pub drop_id: String,
    pub drop_name: String,
    pub user_id: String,
    pub account_id: String,
    /// Why the drop ended: CLOSED, SOLD_OUT or CANCELLED.
    pub reason: String,
    /// The reason as a text for the player.
    pub reason_text: String,
}

/// The type of an event about a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropEventType {
    Scheduled,
    ServiceParts,
    Paused,
    Resumed,
    Closed,
    Cancelled,
    Changed,
}

impl DropEventType {
    const fn kind(self) -> &'static str {
        match self {
            Self::Scheduled => SCHEDULED,
            Self::ServiceParts => OPENED,
            Self::Paused => PAUSED,
            Self::Resumed => RESUMED,
            Self::Closed => CLOSED,
            Self::Cancelled => CANCELLED,
            Self::Changed => CHANGED,
        }
    }
}

/// The type of an event about an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionEventType {
    Admitted,
    Expired,
}

/// Returns every kind of event that drops publish about their state and their line.
pub fn events() -> Vec<EventKind> {
    // The schemas consist of plain values, so serializing them cannot fail.
    let of_drop = serde_json::to_value(DropChanged::schema()).unwrap_or_default();
    let of_admission = serde_json::to_value(AdmissionChanged::schema()).unwrap_or_default();
    let of_wait = serde_json::to_value(WaitEnded::schema()).unwrap_or_default();
    let drop = |kind, summary| EventKind { kind, summary, key: "drop/{drop_id}", schema: of_drop.clone() };
    let admission = |kind, summary, key| EventKind { kind, summary, key, schema: of_admission.clone() };
    vec![
        drop(SCHEDULED, "A drop has a time at which it opens. Players can join."),
        drop(OPENED, "A drop was opened: players are admitted from now on."),
        drop(PAUSED, "Admissions were paused. Players keep their places."),
        drop(RESUMED, "Admissions were resumed."),
        drop(CLOSED, "A drop was closed."),
        drop(CANCELLED, "A drop was cancelled."),
        drop(CHANGED, "The terms of a drop were changed, or its emergency switch."),
        admission(
            ADMITTED,
            "A player was admitted to a drop and can buy until the admission expires.",
            "{admission_id}",
        ),
        EventKind {
            kind: WAIT_ENDED,
            summary: "A drop ended while a player still waited. There is one event per player.",
            key: "wait-ended/{drop_id}/{user_id}",
            schema: of_wait,
        },
        admission(ADMISSION_EXPIRED, "An admission expired.", "expired/{admission_id}"),
    ]
}

/// Builds the event of a change of a drop. The caller holds the drop's head, so the events of a drop are in order.
pub(crate) fn drop_event(
    event_type: DropEventType,
    drop: &DropRecord,
    now: Timestamp,
) -> Result<Event, serde_json::Error> {
    let data = DropChanged {
        drop_id: drop.id.to_string(),
        name: drop.name.clone(),
        state: drop.state.as_str().to_owned(),
        end_reason: drop.end_reason.map(|reason| reason.as_str().to_owned()),
        resource: drop.resource.clone(),
        version: drop.version,
        opens_at: drop.opens_at.map(Timestamp::to_rfc3339),
        closes_at: drop.closes_at.map(Timestamp::to_rfc3339),
        everyone_waits: drop.everyone_waits,
        seed_hash: drop.seed_hash(),
        seed: drop.published_seed().map(|seed| seed.to_hexadecimal()),
        message: drop.terms.message.clone(),
    };
    let key = Some(format!("drop/{}", drop.id));
    Ok(event(EventId::generate(), event_type.kind(), key, Json::from_value(&data)?, now))
}

/// Builds the event of a change of an admission. It is the only event of its key, so many of them can share an outbox row.
pub(crate) fn admission_event(
    event_type: AdmissionEventType,
    drop: &DropRecord,
    entry: &LineEntry,
    now: Timestamp,
) -> Result<Event, serde_json::Error> {
    let data = AdmissionChanged {
        drop_id: drop.id.to_string(),
        drop_name: drop.name.clone(),
        user_id: entry.user.to_string(),
        account_id: entry.account.to_string(),
        admission_id: entry.admission.to_string(),
        expires_at: entry.expires_at.unwrap_or(now).to_rfc3339(),
        arrived: entry.arrived_at.is_some(),
    };
    let (id, kind, key) = match event_type {
        // The event id is the admission id, so that the bus dedupes a repeated event.
        AdmissionEventType::Admitted => {
            (EventId::from_uuid(*entry.admission.as_uuid()), ADMITTED, entry.admission.to_string())
        }
        AdmissionEventType::Expired => {
            (EventId::generate(), ADMISSION_EXPIRED, format!("expired/{}", entry.admission))
        }
    };
    Ok(event(id, kind, Some(key), Json::from_value(&data)?, now))
}

/// Builds the event of a player who still waited when the drop ended. It is the only event of its key.
pub(crate) fn wait_ended_event(
    drop: &DropRecord,
    entry: &LineEntry,
    now: Timestamp,
) -> Result<Event, serde_json::Error> {
    let reason = drop.end_reason.unwrap_or(EndReason::Closed);
    let text = match reason {
        EndReason::Closed => "the sale is closed",
        EndReason::SoldOut => "everything is sold",
        EndReason::Cancelled => "the sale was cancelled",
    };
    let data = WaitEnded {
        drop_id: drop.id.to_string(),
        drop_name: drop.name.clone(),
        user_id: entry.user.to_string(),
        account_id: entry.account.to_string(),
        reason: reason.as_str().to_owned(),
        reason_text: text.to_owned(),
    };
    let key = Some(format!("wait-ended/{}/{}", drop.id, entry.user));
    Ok(event(EventId::generate(), WAIT_ENDED, key, Json::from_value(&data)?, now))
}

fn event(id: EventId, kind: &str, key: Option<String>, data: Json, now: Timestamp) -> Event {
    Event {
        id,
        subject: kind.trim_start_matches("playhouse.").to_owned(),
        kind: kind.to_owned(),
        source: SOURCE.to_owned(),
        time: now,
        key,
        traceparent: None,
        data,
    }
}
