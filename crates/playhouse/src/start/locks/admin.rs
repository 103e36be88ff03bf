//! The routes of the locks in the admin API.

use std::time::Duration;

use axum::Json;
use axum::extract::Path;
use base::Code;
use base::error::{Coded, chain};
use hierlock::{Error, HotRow, InProcessWait, OwnedTarget, RowHolders};
use http_server::{Problem, Query};
use screens::Operation;
use serde::Deserialize;
use serde_json::{Value, json};
use service::{Open, OperatorRoute};

use super::waits::{CurrentWaits, GRANTS, LocksAdmin, QueuedWait, SessionWait, Waits, reason_text};

/// How many rows are listed by default.
const HOT_LISTED: usize = 20;
const WAITS_LISTED: usize = 100;

const END: Operation = Operation::new(
    "End session",
    "The database server ends this session and rolls its transaction back, which releases its locks. The process that uses the session gets \
     an error. Refused if nobody waits for the session any more.",
    "playhouse locks end {session}",
)
.dangerous();

/// Returns `/locks/hot`, the rows with the longest waits of this process, `/locks/waits`, who waits and who blocks now, and
/// `/locks/sessions/{session}/end`, which ends a session in the way.
pub(super) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/locks/hot", hot),
        OperatorRoute::get("/locks/waits", waits),
        OperatorRoute::post("/locks/sessions/{session}/end", end).operation(END),
    ]
}

#[derive(Deserialize)]
struct Limit {
    limit: Option<usize>,
}

async fn hot(Open(admin): Open<LocksAdmin>, Query(query): Query<Limit>) -> Json<Value> {
    let rows = admin.locks.hot_rows(query.limit.unwrap_or(HOT_LISTED));
    let seconds = |time: Duration| time.as_secs_f64();
    let rows = rows.into_iter().map(|HotRow { row, waits, total, longest }| {
        json!({
            "level": row.level.as_str(), "bucket": row.bucket, "waits": waits,
            "total_seconds": seconds(total), "longest_seconds": seconds(longest),
        })
    });
    Json(json!({ "rows": rows.collect::<Vec<_>>() }))
}

async fn waits(Open(admin): Open<LocksAdmin>, Query(query): Query<Limit>) -> Result<Json<Value>, Problem> {
    let limit = query.limit.unwrap_or(WAITS_LISTED);
    let current = admin.current().await.map_err(to_problem)?;
    let mut body = describe(&current, limit);
    body["process_id"] = json!(admin.process.to_string());
    Ok(Json(body))
}

async fn end(Open(admin): Open<LocksAdmin>, Path(session): Path<String>) -> Result<Json<Value>, Problem> {
    let session: u64 = session.parse().map_err(|_| {
        Problem::new(Code::InvalidArgument)
            .detail("Give the number of a session, as `playhouse locks waits` shows it.")
    })?;
    match admin.locks.end_blocking_session(session).await {
        Ok(true) => {
            tracing::warn!(session, "an operator ended a session that others waited for");
            Ok(Json(json!({ "session": session })))
        }
        Ok(false) => {
            let detail = format!("Nobody waits for session {session}: it has ended, or released its locks.");
            Err(Problem::new(Code::FailedPrecondition).detail(detail))
        }
        Err(error @ (Error::MissingPrivilege(_) | Error::Statement(_))) => {
            let detail = format!(
                "The server refuses to end session {session}: {}. It may belong to another database user.",
                chain(&error)
            );
            Err(Problem::new(Code::FailedPrecondition).detail(detail))
        }
        Err(error) => Err(to_problem(error)),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn to_problem(error: Error) -> Problem {
    tracing::error!(outage = "locks", cause = chain(&error), "cannot read the lock waits");
    Problem::new(error.code()).detail("The database does not answer: run `playhouse doctor`.")
}

fn describe(current: &CurrentWaits, limit: usize) -> Value {
    let queue = current.queue.as_deref().unwrap_or_default();
    let queue: Vec<Value> = queue.iter().take(limit).map(describe_queued).collect();
    match &current.waits {
        Waits::Server(waits) => {
            let waits: Vec<Value> = waits.iter().take(limit).map(describe_session).collect();
            json!({ "locks": "server", "waits": waits, "queue": queue })
        }
        Waits::MissingPrivilege(cause) => json!({
            "locks": "server", "waits": null, "queue": queue,
            "missing_privilege": { "cause": cause, "grants": GRANTS },
        }),
        Waits::InProcess(waits) => {
            let waits: Vec<Value> = waits.iter().take(limit).map(describe_in_process).collect();
            json!({ "locks": "process", "waits": waits, "queue": queue })
        }
    }
}

fn describe_session(wait: &SessionWait) -> Value {
    json!({
        "level": wait.row.level.as_str(), "bucket": wait.row.bucket, "session": wait.session,
        "blocked_by": wait.blocked_by, "since": wait.since.map(base::Timestamp::to_rfc3339),
    })
}

fn describe_in_process(wait: &InProcessWait) -> Value {
    let (exclusive, shared) = match wait.holders {
        RowHolders::Exclusive => (1, 0),
        RowHolders::Shared(count) => (0, count),
    };
    let mut described = json!({
        "level": wait.row.level.as_str(), "bucket": wait.row.bucket, "since": wait.since.to_rfc3339(),
        "exclusive_holders": exclusive, "shared_holders": shared, "ahead": wait.ahead,
    });
    if let Some(target) = &wait.target {
        add_target(&mut described, target);
    }
    described
}

fn describe_queued(wait: &QueuedWait) -> Value {
    let mut described = json!({ "since": wait.since.to_rfc3339(), "reason": reason_text(wait.reason) });
    add_target(&mut described, &wait.target);
    described
}

fn add_target(described: &mut Value, target: &OwnedTarget) {
    let target = target.as_target();
    described["target"] = json!(target.to_string());
    described["user_id"] = json!(target.user_id());
}

#[cfg(test)]
mod tests {
    use base::Timestamp;
    use db::QueueReason;
    use hierlock::{Level, Row, Target};

    use super::*;

    #[test]
    fn waits_name_what_is_known_of_them() {
        let row = Row { level: Level::User, bucket: 7 };
        let since = Timestamp::from_millis(1_000);
        let session = SessionWait { session: 4, row, since: Some(since), blocked_by: vec![9, 5] };
        let target = OwnedTarget::from(Target::account("u", "a").unwrap());
        let queued = QueuedWait { target: target.clone(), since, reason: QueueReason::SameUser };
        let current =
            CurrentWaits { waits: Waits::Server(vec![session.clone(), session]), queue: Some(vec![queued]) };
        assert_eq!(
            describe(&current, 1),
            json!({
                "locks": "server",
                "waits": [{
                    "level": "user", "bucket": 7, "session": 4, "blocked_by": [9, 5], "since": "1970-01-01T00:00:01.000Z",
                }],
                "queue": [{
                    "target": "u/a", "user_id": "u", "since": "1970-01-01T00:00:01.000Z",
                    "reason": "other transactions of the same player use the player's share of connections",
                }],
            })
        );
        let wait =
            InProcessWait { row, target: Some(target), since, holders: RowHolders::Shared(2), ahead: 1 };
        let current = CurrentWaits { waits: Waits::InProcess(vec![wait]), queue: None };
        let described = describe(&current, 10);
        assert_eq!((&described["locks"], &described["queue"]), (&json!("process"), &json!([])));
        assert_eq!(described["waits"][0]["target"], "u/a");
        assert_eq!(described["waits"][0]["shared_holders"], 2);
        let current = CurrentWaits { waits: Waits::MissingPrivilege("denied".to_owned()), queue: None };
        let described = describe(&current, 10);
        assert_eq!(
            (&described["waits"], &described["missing_privilege"]["cause"]),
            (&json!(null), &json!("denied"))
        );
    }
}
