//! Entitlements and results, as callers see them.

use base::Timestamp;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use utoipa::ToSchema;

use crate::model::{Action, Entitlement, Holding};
use crate::store::{DecidedChange, HistoryRecord};

/// An entitlement.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(title = "Entitlement")]
pub struct EntitlementView {
    #[schema(format = Uuid)]
    pub user_id: String,
    #[schema(format = Uuid)]
    pub account_id: String,
    pub resource: String,
    /// ACTIVE or REVOKED.
    pub state: String,
    /// Whether the account owns it now: it is ACTIVE and has not ended.
    pub in_force: bool,
    /// Counts the applied changes.
    pub version: i64,
    /// The quantity, if counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantity: Option<i64>,
    /// When it ends automatically.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub valid_until: Option<String>,
    /// The `occurred_at` of the newest change.
    #[schema(format = DateTime)]
    pub as_of: String,
}

/// The result of a change.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChangeResult {
    /// `applied`, or `superseded`: a newer change was already known, and nothing changed.
    pub effect: String,
    /// The id of the event that publishes the change, if it was applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = Uuid)]
    pub event_id: Option<String>,
    pub entitlement: EntitlementView,
}

/// An entry of a history: a change and the entitlement after it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = EntitlementHistoryEntry)]
pub struct HistoryEntry {
    /// Counts the received changes.
    pub entry: i64,
    /// grant or revoke.
    pub action: String,
    /// `applied` or `superseded`.
    pub effect: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_quantity: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub valid_until: Option<String>,
    #[schema(format = DateTime)]
    pub occurred_at: String,
    #[schema(format = DateTime)]
    pub recorded_at: String,
    /// The service that sent it.
    pub caller: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    pub version: i64,
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantity: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = Uuid)]
    pub event_id: Option<String>,
}

/// The response to a request, as it is recorded and sent. Repetitions of the request get the same text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyResponse {
    text: String,
    is_replayed: bool,
}

impl EntitlementView {
    pub(crate) fn new(holding: &Holding, entitlement: &Entitlement, now: Timestamp) -> Self {
        Self {
            user_id: holding.user.to_string(),
            account_id: holding.account.to_string(),
            resource: holding.resource.clone(),
            state: entitlement.state.word().to_owned(),
            in_force: entitlement.is_in_force(now),
            version: entitlement.version,
            quantity: entitlement.balance(),
            valid_until: entitlement.valid_until.map(Timestamp::to_rfc3339),
            as_of: entitlement.as_of.to_rfc3339(),
        }
    }
}

impl ChangeResult {
    pub(crate) fn new(decided: &DecidedChange, now: Timestamp) -> Self {
        Self {
            effect: decided.effect.word().to_owned(),
            event_id: decided.event.map(|id| id.to_string()),
            entitlement: EntitlementView::new(&decided.change.holding, &decided.after, now),
        }
    }
}

impl HistoryEntry {
    pub(crate) fn new(record: HistoryRecord) -> Self {
        let valid_until = match record.action {
            Action::Grant { valid_until, .. } => valid_until,
            Action::Revoke { .. } => None,
        };
        Self {
            entry: record.entry,
            action: record.action.word().to_owned(),
            effect: record.effect.word().to_owned(),
            change_quantity: record.action.quantity(),
            valid_until: valid_until.map(Timestamp::to_rfc3339),
            occurred_at: record.occurred_at.to_rfc3339(),
            recorded_at: record.recorded_at.to_rfc3339(),
            caller: record.caller,
            reference: record.reference,
            version: record.version,
            state: record.state.word().to_owned(),
            quantity: record.quantity.map(|quantity| quantity.max(0)),
            event_id: record.event.map(|id| id.to_string()),
        }
    }
}

impl ApplyResponse {
    pub(crate) fn new(results: Vec<ChangeResult>) -> Result<Self, serde_json::Error> {
        Ok(Self { text: serde_json::to_string(&results)?, is_replayed: false })
    }

    /// Reads a recorded response. Fails if the text is not a JSON list.
    pub(crate) fn replayed(text: String) -> Result<Self, serde_json::Error> {
        let _: Vec<IgnoredAny> = serde_json::from_str(&text)?;
        Ok(Self { text, is_replayed: true })
    }

    /// Returns the JSON list of the results, one per change.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the request was applied before and this is its recorded response.
    pub const fn is_replayed(&self) -> bool {
        self.is_replayed
    }

    /// Parses the results, one per change.
    pub fn results(&self) -> Result<Vec<Value>, serde_json::Error> {
        serde_json::from_str(&self.text)
    }
}
