//! How matchmaking stands, for `playhouse status`.

use base::finding::Finding;
use service::{Lease, ServiceStatus, StatusError};

use crate::{Allocations, Definitions, MatchmakingAdmin};

/// Also names Directors, which are not part of the fleet: only their calls are known.
const NO_ENGINE_ADVICE: &str = "start one with `playhouse serve --roles matchmaking-engine`, and add the role to \
                                process.expected_roles; if Directors make your matches, check that they run and call \
                                FetchMatches";

const STARVING_ADVICE: &str = "`playhouse tickets list`, then `playhouse tickets why` on the oldest";

pub(crate) async fn status(
    admin: &MatchmakingAdmin,
    allocations: &Allocations,
    definitions: &Definitions,
) -> Result<ServiceStatus, StatusError> {
    let mut status = ServiceStatus::default();
    // Of this process: its configuration may lack what that of another one has.
    if let Some(rejected) = definitions.rejected() {
        let what = format!(
            "this process cannot use revision {} of the rules: {}",
            rejected.revision,
            rejected.mistakes.join("; ")
        );
        let advice =
            "correct them with `playhouse rules set`, or give this process the configuration that they need";
        status.findings.push(Finding::failure(what, advice));
    }
    let (oldest, count) = admin.list(1).await?;
    let age = oldest.first().and_then(|ticket| ticket.age_seconds);
    status.findings.push(Finding::good(match age {
        Some(age) => format!("tickets in matchmaking: {count}, the oldest waits for {age:.0} s"),
        None => format!("tickets in matchmaking: {count}"),
    }));
    // Also if `process.expected_roles` leaves the engine out: players wait for it.
    if count > 0 && !admin.has_engine().await {
        let what = format!("tickets wait ({count}), and no process has the role matchmaking-engine");
        status.findings.push(Finding::failure(what, NO_ENGINE_ADVICE));
    }
    for (profile, starving) in admin.starving().await? {
        let tickets = base::counted(starving as u64, "ticket");
        let what = format!("profile {profile} lets {tickets} wait for longer than max_wait");
        status.findings.push(Finding::warning(what, STARVING_ADVICE));
    }
    for failure in admin.assigner_failures(|_| true).await? {
        let advice = "check the assigner's service; engines call it again automatically";
        status.findings.push(Finding::failure(failure, advice));
    }
    if admin.is_held_back().await? {
        status.findings.push(Finding::failure(
            "no engine fetches tickets: too many matches are unrecorded",
            "restore the database",
        ));
    }
    let queue = allocations.queue();
    let overview = queue.overview().await?;
    if overview.failed > 0 {
        let what = format!("game servers that could not be given back: {}", overview.failed);
        let advice = "`playhouse allocations list --state failed`, then `retry --all` or `skip`";
        status.findings.push(Finding::warning(what, advice));
    }
    let lease = |(holder, items)| Lease { holder, queue: queue.name(), items };
    status.leases.extend(overview.leases.into_iter().map(lease));
    Ok(status)
}
