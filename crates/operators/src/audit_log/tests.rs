//! The audit log on every kind of store.

use ::config::{Setting, Value as Configured};
use db::DbUrl;
use testkit::TestDatabase;

use super::*;
use crate::MIGRATIONS;

testkit::on_all_stores!(
    commit_of_a_change_marks_its_entry,
    outcome_is_set_once,
    old_entries_are_removed_with_their_marks,
    changes_of_a_request_are_found_by_its_id,
    entries_are_found_by_the_name_or_the_subject_of_their_actor,
);

const PATIENCE: Duration = Duration::from_secs(10);

async fn open(place: &TestDatabase, retention: Duration) -> AuditLog {
    let url = DbUrl::parse(&Configured::Text(place.url())).unwrap();
    let config = db::Config { url, max_connections: 4, acquire_timeout: PATIENCE, migrate: false };
    let db = Db::open(&config).await.unwrap();
    db.migrate(&[db::MIGRATIONS, MIGRATIONS]).await.unwrap();
    AuditLog::new(db, retention)
}

fn attempt(target: &str) -> Attempt {
    let actor = Actor { kind: "operator", name: "ada".to_owned(), proof: "configured-token", subject: None };
    Attempt {
        listener: "admin",
        actor,
        action: "POST /x".to_owned(),
        target: target.to_owned(),
        address: Some([127, 0, 0, 1].into()),
        request_id: None,
        note: Some("naïve 🎩".repeat(200)),
    }
}

async fn outcomes(log: &AuditLog) -> Vec<(String, AuditOutcome)> {
    let entries = log.list(&AuditFilter::default(), Page::After(0), 1_000).await.unwrap();
    entries.into_iter().map(|entry| (entry.target, entry.outcome)).collect()
}

async fn commit_of_a_change_marks_its_entry(place: &TestDatabase) {
    let log = open(place, PATIENCE).await;
    let change = async |entry: PendingEntry, times: usize, commit: bool| {
        let change = async {
            for _ in 0..times {
                let tx = log.db.begin().await.unwrap();
                if commit {
                    tx.commit().await.unwrap();
                } else {
                    tx.rollback().await.unwrap();
                }
            }
        };
        entry.marking(change).await;
    };
    change(log.begin(&attempt("rolled back")).await.unwrap(), 1, false).await;
    change(log.begin(&attempt("committed")).await.unwrap(), 1, true).await;
    change(log.begin(&attempt("committed twice")).await.unwrap(), 2, true).await;
    let finished = log.begin(&attempt("finished")).await.unwrap();
    change(finished, 1, true).await;
    log.finish(&finished, 204, false).await.unwrap();
    // A transaction outside the change marks nothing.
    log.db.begin().await.unwrap().commit().await.unwrap();
    let expected = [
        ("rolled back", AuditOutcome::Unknown),
        ("committed", AuditOutcome::Committed),
        ("committed twice", AuditOutcome::Committed),
        ("finished", AuditOutcome::Done),
    ];
    assert_eq!(outcomes(&log).await, expected.map(|(target, outcome)| (target.to_owned(), outcome)));
    for (target, outcome) in expected {
        let filter =
            AuditFilter { outcome: Some(outcome), target: Some(target.to_owned()), ..AuditFilter::default() };
        let found = log.list(&filter, Page::Before(None), 10).await.unwrap();
        assert!(found.iter().any(|entry| entry.target == target), "{target}");
    }
}

async fn outcome_is_set_once(place: &TestDatabase) {
    let log = open(place, PATIENCE).await;
    let entry = log.begin(&attempt("one")).await.unwrap();
    log.finish(&entry, 200, false).await.unwrap();
    log.finish(&entry, 500, false).await.unwrap();
    log.record_refusal(&attempt("two"), 403).await.unwrap();
    let entries = log.list(&AuditFilter::default(), Page::After(0), 10).await.unwrap();
    let found: Vec<_> = entries.iter().map(|entry| (entry.outcome, entry.status)).collect();
    assert_eq!(found, [(AuditOutcome::Done, Some(200)), (AuditOutcome::Refused, Some(403))]);
    assert_eq!(
        entries[0].note.as_ref().unwrap().chars().count(),
        MAX_NOTE,
        "truncated to the width of the column"
    );
}

async fn old_entries_are_removed_with_their_marks(place: &TestDatabase) {
    let log = open(place, Duration::from_secs(3600)).await;
    for at in 0..700 {
        let entry = log.begin(&attempt(&format!("old {at}"))).await.unwrap();
        if at < 3 {
            entry.marking(async { log.db.begin().await.unwrap().commit().await.unwrap() }).await;
        }
    }
    assert_eq!(log.tick().await.unwrap(), 0, "nothing is old yet");
    let mut tx = log.db.begin().await.unwrap();
    db::on!(tx, connection => {
        sqlx::query("UPDATE audit_log SET at = at - 7200000").execute(connection).await.unwrap();
    });
    tx.commit().await.unwrap();
    let entry = log.begin(&attempt("new")).await.unwrap();
    entry.marking(async { log.db.begin().await.unwrap().commit().await.unwrap() }).await;
    assert_eq!(
        (log.tick().await.unwrap(), log.tick().await.unwrap(), log.tick().await.unwrap()),
        (500, 200, 0)
    );
    assert_eq!(outcomes(&log).await, [("new".to_owned(), AuditOutcome::Committed)]);
    let mut connection = log.db.connection().await.unwrap();
    let (marks,): (i64,) = db::on!(connection, raw => {
        sqlx::query_as("SELECT COUNT(*) FROM audit_commits").fetch_one(raw).await.unwrap()
    });
    assert_eq!(marks, 1);
}

#[test]
fn response_determines_the_outcome() {
    for (status, outcome) in
        [(200, "done"), (204, "done"), (403, "refused"), (409, "refused"), (500, "failed"), (503, "failed")]
    {
        assert_eq!(AuditOutcome::from_response(status, false).word(), outcome, "{status}");
        let of_dry_run = if outcome == "done" { "dry-run" } else { outcome };
        assert_eq!(AuditOutcome::from_response(status, true).word(), of_dry_run, "{status}");
    }
    assert!(AuditOutcome::ALL.iter().all(|outcome| AuditOutcome::parse(outcome.word()) == Some(*outcome)));
}

#[test]
fn long_texts_are_truncated_and_control_characters_replaced() {
    assert_eq!(truncate("a\nb\u{1b}[31mc", 100), "a b [31mc");
    assert_eq!(truncate(&"ä".repeat(600), MAX_NOTE).chars().count(), MAX_NOTE);
}

async fn changes_of_a_request_are_found_by_its_id(place: &TestDatabase) {
    let log = open(place, PATIENCE).await;
    let action = "POST /orders/{order_id}/settle".to_owned();
    let of_request = |id: &str, target: &str| Attempt {
        request_id: Some(id.to_owned()),
        action: action.clone(),
        ..attempt(target)
    };
    let entry = log.begin(&of_request("r-1", "/orders/o-7/settle")).await.unwrap();
    log.finish(&entry, 200, false).await.unwrap();
    log.record_refusal(&of_request("r-2", "/orders/o-8/settle"), 403).await.unwrap();
    let steps = async |id: &str| {
        let subject = screens::Subject::Id(id.to_owned());
        crate::steps::steps(&log, &subject, 10).await.unwrap()
    };
    let found = steps("r-1").await;
    let [step] = &found[..] else { panic!("{found:?}") };
    assert_eq!(step.what, "operator ada: POST /orders/{order_id}/settle: done (200)");
    assert_eq!(step.follow, ["o-7"]);
    assert!(steps("r-2").await[0].what.ends_with("refused (403)"));
    assert_eq!(steps("r-3").await, []);
}

async fn entries_are_found_by_the_name_or_the_subject_of_their_actor(place: &TestDatabase) {
    let log = open(place, PATIENCE).await;
    // An operator of the issuer, one whose name is the subject of the first, and one whose name and subject are the same.
    let actors = [("ada", Some("a-1")), ("a-1", None), ("a-1", Some("a-1")), ("eve", Some("e-1"))];
    for (number, (name, subject)) in actors.iter().cycle().take(12).enumerate() {
        let actor =
            Actor { name: (*name).to_owned(), subject: subject.map(ToOwned::to_owned), ..attempt("").actor };
        log.begin(&Attempt { actor, ..attempt(&format!("/{number}")) }).await.unwrap();
    }
    let list = async |actor: &str, target: Option<&str>, page: Page, limit: u32| {
        let filter = AuditFilter {
            actor: Some(actor.to_owned()),
            target: target.map(ToOwned::to_owned),
            ..AuditFilter::default()
        };
        let entries = log.list(&filter, page, limit).await.unwrap();
        entries.into_iter().map(|entry| (entry.target, entry.number)).collect::<Vec<_>>()
    };
    let targets = |entries: &[(String, i64)]| {
        entries.iter().map(|(target, _)| target[1..].parse().unwrap()).collect::<Vec<u32>>()
    };
    assert_eq!(targets(&list("eve", None, Page::After(0), 10).await), [3, 7, 11]);
    let newest = list("a-1", None, Page::Before(None), 4).await;
    assert_eq!(targets(&newest), [10, 9, 8, 6]);
    let rest = list("a-1", None, Page::Before(Some(newest[3].1)), 100).await;
    assert_eq!(targets(&rest), [5, 4, 2, 1, 0]);
    assert_eq!(targets(&list("a-1", Some("/1"), Page::After(0), 100).await), [1, 10]);
    assert_eq!(list("nobody", None, Page::After(0), 100).await, []);
}
