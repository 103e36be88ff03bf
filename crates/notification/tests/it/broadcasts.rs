//! An interrupted broadcast continues after the last user who was notified.

use notification::{BROADCAST, DeadLetterFilter, Recipients};
use sending::{assert_all_have, broadcast, replace_users, request, texts};
use work_queue::RetentionCleaner;

use super::*;

testkit::on_all_stores!(
    progress_resets_the_attempts_of_a_broadcast,
    last_attempt_with_progress_resets_the_attempts,
    unreachable_store_costs_a_broadcast_no_attempt,
    failed_broadcast_is_a_dead_letter_and_resumes_after_the_last_notified_user,
    stopped_broadcast_stays_stopped_until_it_is_resumed,
    running_broadcast_can_be_stopped_and_resumed_repeatedly,
);

const USERS: usize = 2_300;

async fn open(database: &TestDatabase, max_attempts: u32) -> (Process, Vec<Uuid>) {
    let setup = Setup::with(|config| {
        config.delivery.max_attempts = max_attempts;
        config.delivery.retry = Backoff::new(Duration::from_millis(100), Duration::from_millis(150));
    });
    let process = Process::open(database, setup).await;
    let mut users = replace_users(&process, USERS).await;
    users.sort_unstable();
    (process, users)
}

async fn send(process: &Process, key: &str) -> Uuid {
    let all = request(Recipients::All, texts("To all"));
    process.notifications.send("shop", key, &all).await.unwrap().0.id
}

/// Makes the database refuse inserts into the inbox of one user, with this error number.
async fn refuse(process: &Process, database: &TestDatabase, name: &str, user: Uuid, number: u32) {
    let user = user.simple();
    let trigger = if database.is_server() {
        format!(
            "CREATE TRIGGER {name} BEFORE INSERT ON notification FOR EACH ROW IF NEW.user_id = X'{user}' THEN \
             SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one', MYSQL_ERRNO = {number}; END IF"
        )
    } else {
        format!(
            "CREATE TRIGGER {name} BEFORE INSERT ON notification WHEN NEW.user_id = X'{user}' \
             BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )
    };
    process.sql(&trigger).await;
}

/// A permanent error.
const PERMANENT: u32 = 1644;
/// A transient error: too many connections.
const TRANSIENT: u32 = 1040;

async fn progress(process: &Process, id: Uuid) -> notification::Progress {
    process.notifications.broadcasts().progress(id).await.unwrap().unwrap()
}

async fn assert_done(process: &Process, users: &[Uuid], id: Uuid) {
    testkit::eventually("it has notified all users", PATIENCE, async || {
        progress(process, id).await.state == State::Done
    })
    .await;
    assert_eq!(progress(process, id).await.notified, USERS as u64);
    assert_all_have(process, users, "To all").await;
}

async fn progress_resets_the_attempts_of_a_broadcast(database: &TestDatabase) {
    let (process, users) = open(database, 6).await;
    refuse(&process, database, "trap_0", users[600], PERMANENT).await;
    let id = send(&process, "k").await;
    let working = broadcast(&process);
    // Twelve attempts in all, and never six without progress.
    for (at, next) in [1_200, 1_700, 2_200].into_iter().enumerate() {
        let notified = (at as u64 + 1) * 500;
        testkit::eventually("several attempts fail", PATIENCE, async || {
            let progress = progress(&process, id).await;
            progress.notified == notified && progress.attempts >= 3
        })
        .await;
        refuse(&process, database, &format!("trap_{}", at + 1), users[next], PERMANENT).await;
        process.sql(&format!("DROP TRIGGER trap_{at}")).await;
    }
    testkit::eventually("several attempts fail", PATIENCE, async || {
        let progress = progress(&process, id).await;
        progress.notified == 2_000 && progress.attempts >= 3
    })
    .await;
    process.sql("DROP TRIGGER trap_3").await;
    assert_done(&process, &users, id).await;
    working.stop().await;
    assert_eq!(process.dead_letters().await, []);
}

/// All attempts but one are used up, so the broadcast would end if the count were not reset in the row and in the worker's item.
async fn last_attempt_with_progress_resets_the_attempts(database: &TestDatabase) {
    let (process, users) = open(database, 1_000).await;
    refuse(&process, database, "trap", users[600], PERMANENT).await;
    let id = send(&process, "k").await;
    process.sql(&format!("UPDATE {BROADCAST} SET attempts = 999")).await;
    let working = broadcast(&process);
    testkit::eventually("several attempts since its progress fail", PATIENCE, async || {
        let progress = progress(&process, id).await;
        let is_reset = progress.notified == 500 && (3..500).contains(&progress.attempts);
        is_reset.then_some(()).ok_or_else(|| format!("{progress:?}"))
    })
    .await;
    process.sql("DROP TRIGGER trap").await;
    assert_done(&process, &users, id).await;
    working.stop().await;
    assert_eq!(process.dead_letters().await, []);
}

async fn unreachable_store_costs_a_broadcast_no_attempt(database: &TestDatabase) {
    if !database.is_server() {
        // A file is always reachable.
        return;
    }
    let (process, users) = open(database, 3).await;
    refuse(&process, database, "trap", users[600], TRANSIENT).await;
    let id = send(&process, "k").await;
    let working = broadcast(&process);
    let not_attempted =
        format!("playhouse_work_finished_total{{queue=\"{BROADCAST}\",outcome=\"not_attempted\"}}");
    testkit::eventually("several attempts fail", PATIENCE, async || process.measured(&not_attempted) >= 5)
        .await;
    assert_eq!((progress(&process, id).await.notified, process.dead_letters().await.len()), (500, 0));
    process.sql("DROP TRIGGER trap").await;
    assert_done(&process, &users, id).await;
    working.stop().await;
}

async fn failed_broadcast_is_a_dead_letter_and_resumes_after_the_last_notified_user(database: &TestDatabase) {
    let (process, users) = open(database, 2).await;
    refuse(&process, database, "trap", users[1_100], PERMANENT).await;
    let id = send(&process, "k").await;
    let working = broadcast(&process);
    let has_failed = async || progress(&process, id).await.state == State::Failed;
    testkit::eventually("it has failed", PATIENCE, has_failed).await;
    let dead_letters = process.dead_letters().await;
    let [dead_letter] = &dead_letters[..] else { panic!("{dead_letters:?}") };
    assert_eq!(
        (dead_letter.id, dead_letter.kind.as_str(), dead_letter.destination.as_str()),
        (id, "broadcast", "all")
    );
    assert_eq!((dead_letter.user, dead_letter.notification), (None, None));
    assert!(dead_letter.cause.contains("statement failed"), "{}", dead_letter.cause);
    assert_eq!(process.count("notification").await, 1_000);
    // A replay continues, and fails again at the same user.
    let filter = DeadLetterFilter { kind: Some("broadcast".to_owned()), ..DeadLetterFilter::default() };
    assert_eq!(process.notifications.replay_some(&filter, 10, 100).await.unwrap().replayed, 1);
    testkit::eventually("it has failed again", PATIENCE, has_failed).await;
    process.sql("DROP TRIGGER trap").await;
    // The dead letter is enough, even if the queue has removed the item.
    process.sql(&format!("DELETE FROM {BROADCAST}")).await;
    process.notifications.resume_broadcast(id).await.unwrap();
    assert_done(&process, &users, id).await;
    working.stop().await;
    assert_eq!(process.dead_letters().await, []);
    let again = process.notifications.resume_broadcast(id).await.unwrap_err();
    assert!(again.to_string().contains("not stopped"), "{again}");
}

async fn stopped_broadcast_stays_stopped_until_it_is_resumed(database: &TestDatabase) {
    let (process, users) = open(database, 1_000).await;
    refuse(&process, database, "trap", users[1_100], PERMANENT).await;
    let id = send(&process, "k").await;
    let working = broadcast(&process);
    testkit::eventually("it makes progress", PATIENCE, async || {
        progress(&process, id).await.notified == 1_000
    })
    .await;
    let broadcasts = process.notifications.broadcasts();
    broadcasts.stop(id).await.unwrap();
    assert_eq!(progress(&process, id).await.state, State::Held);
    process.sql("DROP TRIGGER trap").await;
    working.stop().await;
    // Another process finds it stopped, however long ago that was, and works on other broadcasts.
    process.sql(&format!("UPDATE {BROADCAST} SET due_at = 1, created_at = 1")).await;
    assert_eq!(RetentionCleaner::new(process.queue(BROADCAST)).remove_old().await.unwrap(), 0);
    let later = process.another(database, process.setup.clone()).await;
    let working = broadcast(&later);
    let other = send(&process, "other").await;
    let is_done_too = async || progress(&process, other).await.state == State::Done;
    testkit::eventually("the other one is done", PATIENCE, is_done_too).await;
    let stopped = progress(&process, id).await;
    assert_eq!((stopped.state, stopped.notified), (State::Held, 1_000));
    assert_eq!(stopped.attempts, 0, "no worker has claimed it");
    assert_eq!(process.count("notification").await, 1_000 + USERS as i64);
    let listed = async |filter| {
        let found = broadcasts.list(filter, 10).await.unwrap();
        found.iter().map(|one| one.id).collect::<Vec<Uuid>>()
    };
    assert_eq!(listed(work_queue::Filter::All).await, [other, id]);
    assert_eq!(listed(work_queue::Filter::Held).await, [id]);
    assert_eq!(listed(work_queue::Filter::Done).await, [other]);
    process.sql("DELETE FROM notification").await;
    let twice = broadcasts.stop(id).await.unwrap_err();
    assert!(twice.to_string().contains("cannot be stopped"), "{twice}");
    process.notifications.resume_broadcast(id).await.unwrap();
    testkit::eventually("it is done", PATIENCE, async || progress(&process, id).await.state == State::Done)
        .await;
    assert_eq!(progress(&process, id).await.notified, USERS as u64);
    // Only those who were not notified before.
    assert_eq!(process.count("notification").await, USERS as i64 - 1_000);
    let unknown = broadcasts.stop(uuid(7)).await.unwrap_err();
    assert!(matches!(unknown, notification::Error::BroadcastNotFound(_)), "{unknown}");
    working.stop().await;
}

/// The worker claims it as soon as it is resumed, so some stops conflict with its transactions.
async fn running_broadcast_can_be_stopped_and_resumed_repeatedly(database: &TestDatabase) {
    let (process, users) = open(database, 1_000).await;
    refuse(&process, database, "trap", users[600], PERMANENT).await;
    let id = send(&process, "k").await;
    let working = broadcast(&process);
    testkit::eventually("it makes progress", PATIENCE, async || progress(&process, id).await.notified == 500)
        .await;
    for _ in 0..50 {
        process.notifications.broadcasts().stop(id).await.unwrap();
        process.notifications.broadcasts().resume(id).await.unwrap();
    }
    process.sql("DROP TRIGGER trap").await;
    assert_done(&process, &users, id).await;
    working.stop().await;
}
