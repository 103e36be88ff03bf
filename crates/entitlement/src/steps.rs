//! What happened to entitlements, and the figures of this service.

use account::{AccountId, Accounts, UserId};
use screens::{Combine, Figure, Measure, Step, Subject, Tone, Unit};
use service::StatusError;

use crate::console::{describe, screen_of};
use crate::model::{Action, Effect};
use crate::store::{FoundRecord, HistoryCursor, HistoryFilter};
use crate::{Entitlements, Error};

/// Returns the changes of a user, of an account, or of purchases with this reference.
pub(crate) async fn steps(
    entitlements: &Entitlements,
    accounts: &Accounts,
    subject: &Subject,
    limit: u32,
) -> Result<Vec<Step>, StatusError> {
    let filters = match subject {
        Subject::User(user) => vec![HistoryFilter::User(UserId::from_uuid(*user))],
        Subject::Id(text) => {
            let mut filters = vec![HistoryFilter::Reference(text.clone())];
            if let Ok(account) = text.parse::<AccountId>()
                && let Some(found) = accounts.account(account).await?
            {
                filters.push(HistoryFilter::Account(found.user, account));
            }
            filters
        }
    };
    let mut found = Vec::new();
    for filter in filters {
        found.extend(read(entitlements, &filter, limit).await?);
    }
    Ok(found.into_iter().map(step).collect())
}

async fn read(
    entitlements: &Entitlements,
    filter: &HistoryFilter,
    limit: u32,
) -> Result<Vec<FoundRecord>, Error> {
    entitlements.search(filter, &HistoryCursor::first(), limit.max(1)).await
}

fn step(FoundRecord { holding, record }: FoundRecord) -> Step {
    let done = match record.action {
        Action::Grant { .. } => "Granted",
        Action::Revoke { .. } => "Revoked",
    };
    let quantity = record.action.quantity().map(|quantity| format!("{quantity} of ")).unwrap_or_default();
    let (what, tone) = match record.effect {
        Effect::Applied => {
            let what = format!(
                "{done} {quantity}{} (version {}) for {}",
                holding.resource, record.version, record.caller
            );
            (what, if done == "Granted" { Tone::Good } else { Tone::Warning })
        }
        Effect::Superseded => {
            let what = format!(
                "Ignored a {} of {}: a newer change was known",
                describe(&record.action),
                holding.resource
            );
            (what, Tone::Neutral)
        }
    };
    let mut step = Step::new(record.recorded_at, "sql", "entitlement", what).tone(tone);
    step = step.link("Entitlement", screen_of(&holding));
    if let Some(event) = record.event {
        step = step.follow(event);
    }
    match record.reference {
        Some(reference) => step.follow(reference),
        None => step,
    }
}

pub(crate) fn figures() -> Vec<Figure> {
    let figure = |name, title, unit, metric, measure, combine| Figure {
        name,
        title,
        unit,
        metric,
        labels: &[],
        measure,
        combine,
        href: "/console/entitlements",
    };
    vec![
        figure(
            "entitlement_requests",
            "Grants and revokes",
            Unit::PerSecond,
            "playhouse_entitlement_requests",
            Measure::Rate,
            Combine::Sum,
        ),
        figure(
            "entitlement_p99",
            "Grants and revokes, p99",
            Unit::Seconds,
            "playhouse_entitlement_request_duration_seconds",
            Measure::Quantile(0.99),
            Combine::Max,
        ),
    ]
}
