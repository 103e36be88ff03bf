//! Entitlements as callers see them.

use base::Timestamp;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use utoipa::ToSchema;

use crate::model::{Action, Entitlement, Holding};
use crate::store::{Decided, Entry};

/// An entitlement.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(title = "Entitlement")]
pub struct EntitlementView {
    pub user_id: String,
    pub account_id: String,
    pub resource: String,
    /// ACTIVE or REVOKED.
    pub state: String,
    /// Whether the account has it now: it is ACTIVE and has not ended.
    pub in_force: bool,
    /// Counts the changes that were applied.
    pub version: i64,
    /// How many, if it is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantity: Option<i64>,
    /// When it ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<String>,
    /// The own time of the newest change.
    pub as_of: String,
}

/// What became of a change.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Applied {
    /// `applied`, or `superseded`: something newer was known already, and nothing changed.
    pub effect: String,
    /// The event that tells of it, if anything changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    pub entitlement: EntitlementView,
}

/// An entry of a history: a change, and the entitlement after it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct HistoryEntry {
    /// Counts the changes that were sent.
    pub entry: i64,
    /// grant or revoke.
    pub action: String,
    /// `applied` or `superseded`.
    pub effect: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_quantity: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<String>,
    pub occurred_at: String,
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
    pub event_id: Option<String>,
}

/// The answer to a request, as it is recorded and sent: again and again the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
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

impl Applied {
    pub(crate) fn new(decided: &Decided, now: Timestamp) -> Self {
        Self {
            effect: decided.effect.word().to_owned(),
            event_id: decided.event.map(|id| id.to_string()),
            entitlement: EntitlementView::new(&decided.change.holding, &decided.after, now),
        }
    }
}

impl HistoryEntry {
    pub(crate) fn new(entry: Entry) -> Self {
        let valid_until = match entry.action {
            Action::Grant { valid_until, .. } => valid_until,
            Action::Revoke { .. } => None,
        };
        Self {
            entry: entry.entry,
            action: entry.action.word().to_owned(),
            effect: entry.effect.word().to_owned(),
            change_quantity: entry.action.quantity(),
            valid_until: valid_until.map(Timestamp::to_rfc3339),
            occurred_at: entry.occurred_at.to_rfc3339(),
            recorded_at: entry.recorded_at.to_rfc3339(),
            caller: entry.caller,
            reference: entry.reference,
            version: entry.version,
            state: entry.state.word().to_owned(),
            quantity: entry.quantity.map(|quantity| quantity.max(0)),
            event_id: entry.event.map(|id| id.to_string()),
        }
    }
}

impl Answer {
    pub(crate) fn new(results: Vec<Applied>) -> Result<Self, serde_json::Error> {
        Ok(Self { text: serde_json::to_string(&results)?, is_replayed: false })
    }

    /// The answer that was recorded, if it is one.
    pub(crate) fn replayed(text: String) -> Result<Self, serde_json::Error> {
        let _: Vec<IgnoredAny> = serde_json::from_str(&text)?;
        Ok(Self { text, is_replayed: true })
    }

    /// A JSON list with what became of each change.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it had been given before.
    pub const fn is_replayed(&self) -> bool {
        self.is_replayed
    }

    /// What became of each change.
    pub fn results(&self) -> Result<Vec<Value>, serde_json::Error> {
        serde_json::from_str(&self.text)
    }
}
