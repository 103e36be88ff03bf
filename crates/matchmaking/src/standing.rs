//! How matchmaking stands, for `playhouse status`.

use base::finding::Finding;
use service::{Lease, Standing, StandingError};

use crate::{Allocations, Operator};

pub(crate) async fn standing(
    operator: &Operator,
    allocations: &Allocations,
) -> Result<Standing, StandingError> {
    let mut standing = Standing::default();
    let (oldest, count) = operator.list(1).await?;
    let age = oldest.first().and_then(|ticket| ticket.age_seconds);
    standing.findings.push(Finding::good(match age {
        Some(age) => format!("tickets that take part: {count}, the oldest for {age:.0} s"),
        None => format!("tickets that take part: {count}"),
    }));
    for failure in operator.assigner_failures(|_| true).await? {
        let advice = "see to the assigner's service; it is asked again by itself";
        standing.findings.push(Finding::failure(failure, advice));
    }
    if operator.is_held_back().await? {
        standing.findings.push(Finding::failure(
            "no engine fetches tickets: too many matches are not recorded",
            "bring the database back",
        ));
    }
    let queue = allocations.queue();
    let overview = queue.overview().await?;
    if overview.failed > 0 {
        let what = format!("game servers that could not be given back: {}", overview.failed);
        let advice = "`playhouse allocations list --state failed`, then `retry --all` or `skip`";
        standing.findings.push(Finding::warning(what, advice));
    }
    let lease = |(holder, items)| Lease { holder, queue: queue.name(), items };
    standing.leases.extend(overview.leases.into_iter().map(lease));
    Ok(standing)
}
