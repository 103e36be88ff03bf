//! What happened to entitlements, and the figures of this service.

use account::{AccountId, UserId};
use bus::EventId;
use screens::{Combine, Figure, Measure, Step, Subject, Tone, Unit};
use service::StatusError;

use crate::console::{EntitlementConsole, describe, screen_of};
use crate::model::{Action, Effect};
use crate::store::{FoundRecord, HistoryCursor, HistoryFilter};
use crate::{Entitlements, Error, event};

/// Returns the changes of a user, of an account, of purchases with this reference, or of an event.
pub(crate) async fn steps(
    open: &EntitlementConsole,
    subject: &Subject,
    limit: u32,
) -> Result<Vec<Step>, StatusError> {
    let EntitlementConsole { entitlements, accounts, outbox } = open;
    let text = match subject {
        Subject::User(user) => {
            let filter = HistoryFilter::User(UserId::from_uuid(*user));
            return Ok(read(entitlements, &filter, limit).await?.into_iter().map(step).collect());
        }
        Subject::Id(text) => text,
    };
    let mut found = read(entitlements, &HistoryFilter::Reference(text.clone()), limit).await?;
    if let Ok(account) = text.parse::<AccountId>()
        && let Some(owner) = accounts.account(account).await?
    {
        let filter = HistoryFilter::Account(owner.user, account);
        found.extend(read(entitlements, &filter, limit).await?);
    }
    if let Ok(id) = text.parse::<EventId>()
        && let Some(holding) = outbox.find_event(*id.as_uuid()).await?.as_ref().and_then(event::holding)
    {
        // There is no index by event. The event names the entitlement, and its change is one of the newest.
        let changes = read(entitlements, &HistoryFilter::Resource(holding), limit).await?;
        found.extend(changes.into_iter().filter(|change| change.record.event == Some(id)));
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
        step = step.of_event(*event.as_uuid()).follow(event);
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
