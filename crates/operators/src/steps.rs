//! What the audit log knows of a request.

use percent_encoding::percent_decode_str;
use screens::{Step, Subject, Tone};

use crate::audit_log::{AuditEntry, AuditLog, AuditOutcome};
use crate::console::with_query;

/// The parameter of routes about a user. A user's steps lead to everything, so they are not followed.
const USER: &str = "user_id";

/// Returns the changes of the request with this id. Users have their own records of bans and erasures.
pub(crate) async fn steps(log: &AuditLog, subject: &Subject, limit: u32) -> Result<Vec<Step>, db::Error> {
    match subject {
        Subject::User(_) => Ok(Vec::new()),
        Subject::Id(request) => Ok(log.of_request(request, limit).await?.iter().map(step).collect()),
    }
}

fn step(entry: &AuditEntry) -> Step {
    let (outcome, tone) = match entry.outcome {
        AuditOutcome::Done => ("done", Tone::Good),
        AuditOutcome::DryRun => ("dry run: nothing was changed", Tone::Neutral),
        AuditOutcome::Refused => ("refused", Tone::Warning),
        AuditOutcome::Failed => ("failed", Tone::Bad),
        AuditOutcome::Committed => ("committed, but not answered", Tone::Warning),
        AuditOutcome::Unknown => ("the outcome is unknown", Tone::Warning),
    };
    let status = entry.status.map(|status| format!(" ({status})")).unwrap_or_default();
    let what = format!("{} {}: {}: {outcome}{status}", entry.actor_kind, entry.actor, entry.action);
    let step = Step::new(entry.at, "sql", "operators", what).tone(tone);
    let step = step.link("Audit log", with_query("target", &entry.target));
    parameters(&entry.action, &entry.target).into_iter().fold(step, Step::follow)
}

/// Returns the ids in the path of a request, at the places where its route has parameters.
fn parameters(action: &str, target: &str) -> Vec<String> {
    let Some((_, route)) = action.split_once(' ') else { return Vec::new() };
    let path = target.split('?').next().unwrap_or_default();
    let parameter = |(place, value): (&str, &str)| {
        let name = place.strip_prefix('{')?.strip_suffix('}')?;
        (name != USER).then(|| percent_decode_str(value).decode_utf8_lossy().into_owned())
    };
    route.split('/').zip(path.split('/')).filter_map(parameter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_in_a_path_are_followed_except_those_of_users() {
        let found = parameters("POST /outbox/{event}/retry", "/outbox/0198c0de%2D0000/retry?dry_run=true");
        assert_eq!(found, ["0198c0de-0000"]);
        assert!(parameters("POST /users/{user_id}/ban", "/users/7/ban").is_empty());
        assert!(parameters("POST /outbox/retry", "/outbox/retry?key=a").is_empty());
        assert!(parameters("sign in at the console", "/console/sign-in/callback").is_empty());
    }
}
