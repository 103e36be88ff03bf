//! A broadcast that is interrupted goes on behind the last user who was told.

use notification::{BROADCAST, Letters, Recipients};
use sending::{all_have, broadcast, people, request, texts};
use work_queue::Keeper;

use super::*;

testkit::on_all_stores!(
    progress_resets_the_attempts_of_a_broadcast,
    a_last_attempt_that_makes_progress_is_followed_by_all_attempts,
    a_store_that_is_away_costs_a_broadcast_no_attempt,
    a_broadcast_that_failed_is_a_dead_letter_and_resumes_behind_the_last_who_was_told,
    a_stopped_broadcast_stays_stopped_until_it_is_resumed,
    a_broadcast_at_work_can_be_stopped_and_resumed_any_number_of_times,
);

const USERS: usize = 2_300;

async fn open(place: &SqlPlace, max_attempts: u32) -> (House, Vec<Uuid>) {
    let setup = Setup::with(|config| {
        config.delivery.max_attempts = max_attempts;
        config.delivery.retry = Backoff::new(Duration::from_millis(100), Duration::from_millis(150));
    });
    let house = House::open(place, setup).await;
    let mut users = people(&house, USERS).await;
    users.sort_unstable();
    (house, users)
}

async fn send(house: &House, key: &str) -> Uuid {
    let all = request(Recipients::All, texts("To all"));
    house.notifications.send("shop", key, &all).await.unwrap().0.id
}

/// Has the store refuse the inbox of one user, with this error of the server.
async fn refuse(house: &House, place: &SqlPlace, name: &str, user: Uuid, number: u32) {
    let user = user.simple();
    let trigger = if place.is_server() {
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
    house.sql(&trigger).await;
}

/// An error that stays what it is.
const FOR_GOOD: u32 = 1644;
/// Too many connections.
const AWAY: u32 = 1040;

async fn progress(house: &House, id: Uuid) -> notification::Progress {
    house.notifications.broadcasts().progress(id).await.unwrap().unwrap()
}

async fn is_done(house: &House, users: &[Uuid], id: Uuid) {
    testkit::eventually("it has reached all players", PATIENCE, async || {
        progress(house, id).await.state == State::Done
    })
    .await;
    assert_eq!(progress(house, id).await.told, USERS as u64);
    all_have(house, users, "To all").await;
}

async fn progress_resets_the_attempts_of_a_broadcast(place: &SqlPlace) {
    let (house, users) = open(place, 6).await;
    refuse(&house, place, "trap_0", users[600], FOR_GOOD).await;
    let id = send(&house, "k").await;
    let working = broadcast(&house);
    // Twelve attempts in all, and never six without progress.
    for (at, next) in [1_200, 1_700, 2_200].into_iter().enumerate() {
        let told = (at as u64 + 1) * 500;
        testkit::eventually("it fails in vain", PATIENCE, async || {
            let progress = progress(&house, id).await;
            progress.told == told && progress.attempts >= 3
        })
        .await;
        refuse(&house, place, &format!("trap_{}", at + 1), users[next], FOR_GOOD).await;
        house.sql(&format!("DROP TRIGGER trap_{at}")).await;
    }
    testkit::eventually("it fails in vain", PATIENCE, async || {
        let progress = progress(&house, id).await;
        progress.told == 2_000 && progress.attempts >= 3
    })
    .await;
    house.sql("DROP TRIGGER trap_3").await;
    is_done(&house, &users, id).await;
    working.stop().await;
    assert_eq!(house.letters().await, []);
}

/// With all but one attempt used up, so that a count that is not reset, in the row or in the worker's item, ends the broadcast.
async fn a_last_attempt_that_makes_progress_is_followed_by_all_attempts(place: &SqlPlace) {
    let (house, users) = open(place, 1_000).await;
    refuse(&house, place, "trap", users[600], FOR_GOOD).await;
    let id = send(&house, "k").await;
    house.sql(&format!("UPDATE {BROADCAST} SET attempts = 999")).await;
    let working = broadcast(&house);
    testkit::eventually("it fails in vain, counted from its progress", PATIENCE, async || {
        let progress = progress(&house, id).await;
        let is_counted_anew = progress.told == 500 && (3..500).contains(&progress.attempts);
        is_counted_anew.then_some(()).ok_or_else(|| format!("{progress:?}"))
    })
    .await;
    house.sql("DROP TRIGGER trap").await;
    is_done(&house, &users, id).await;
    working.stop().await;
    assert_eq!(house.letters().await, []);
}

async fn a_store_that_is_away_costs_a_broadcast_no_attempt(place: &SqlPlace) {
    if !place.is_server() {
        // A file is not away.
        return;
    }
    let (house, users) = open(place, 3).await;
    refuse(&house, place, "away", users[600], AWAY).await;
    let id = send(&house, "k").await;
    let working = broadcast(&house);
    let not_tried = format!("work_finished_total{{queue=\"{BROADCAST}\",outcome=\"not_tried\"}}");
    testkit::eventually("it was tried in vain", PATIENCE, async || house.measured(&not_tried) >= 5).await;
    assert_eq!((progress(&house, id).await.told, house.letters().await.len()), (500, 0));
    house.sql("DROP TRIGGER away").await;
    is_done(&house, &users, id).await;
    working.stop().await;
}

async fn a_broadcast_that_failed_is_a_dead_letter_and_resumes_behind_the_last_who_was_told(place: &SqlPlace) {
    let (house, users) = open(place, 2).await;
    refuse(&house, place, "trap", users[1_100], FOR_GOOD).await;
    let id = send(&house, "k").await;
    let working = broadcast(&house);
    let has_failed = async || progress(&house, id).await.state == State::Failed;
    testkit::eventually("it has failed", PATIENCE, has_failed).await;
    let letters = house.letters().await;
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!((letter.id, letter.kind.as_str(), letter.destination.as_str()), (id, "broadcast", "all"));
    assert_eq!((letter.user, letter.notification), (None, None));
    assert!(letter.cause.contains("statement failed"), "{}", letter.cause);
    assert_eq!(house.count("notification").await, 1_000);
    // Replayed it goes on, and dies again where it died.
    let which = Letters { kind: Some("broadcast".to_owned()), ..Letters::default() };
    assert_eq!(house.notifications.replay_some(&which, 10, 100).await.unwrap().replayed, 1);
    testkit::eventually("it has failed again", PATIENCE, has_failed).await;
    house.sql("DROP TRIGGER trap").await;
    // The letter has everything, also when the queue has forgotten it.
    house.sql(&format!("DELETE FROM {BROADCAST}")).await;
    house.notifications.resume_broadcast(id).await.unwrap();
    is_done(&house, &users, id).await;
    working.stop().await;
    assert_eq!(house.letters().await, []);
    let again = house.notifications.resume_broadcast(id).await.unwrap_err();
    assert!(again.to_string().contains("not stopped"), "{again}");
}

async fn a_stopped_broadcast_stays_stopped_until_it_is_resumed(place: &SqlPlace) {
    let (house, users) = open(place, 1_000).await;
    refuse(&house, place, "trap", users[1_100], FOR_GOOD).await;
    let id = send(&house, "k").await;
    let working = broadcast(&house);
    testkit::eventually("it is on its way", PATIENCE, async || progress(&house, id).await.told == 1_000)
        .await;
    let broadcasts = house.notifications.broadcasts();
    broadcasts.stop(id).await.unwrap();
    assert_eq!(progress(&house, id).await.state, State::Held);
    house.sql("DROP TRIGGER trap").await;
    working.stop().await;
    // Another process finds it stopped, however long that is ago, and does what else there is.
    house.sql(&format!("UPDATE {BROADCAST} SET due_at = 1, created_at = 1")).await;
    assert_eq!(Keeper::new(house.queue(BROADCAST)).remove_old().await.unwrap(), 0);
    let later = house.another(place, house.setup.clone()).await;
    let working = broadcast(&later);
    let other = send(&house, "other").await;
    let is_done_too = async || progress(&house, other).await.state == State::Done;
    testkit::eventually("the other one is done", PATIENCE, is_done_too).await;
    let stopped = progress(&house, id).await;
    assert_eq!((stopped.state, stopped.told), (State::Held, 1_000));
    assert_eq!(stopped.attempts, 0, "no worker has claimed it");
    assert_eq!(house.count("notification").await, 1_000 + USERS as i64);
    let listed = async |filter| {
        let found = broadcasts.list(filter, 10).await.unwrap();
        found.iter().map(|one| one.id).collect::<Vec<Uuid>>()
    };
    assert_eq!(listed(work_queue::Filter::All).await, [other, id]);
    assert_eq!(listed(work_queue::Filter::Held).await, [id]);
    assert_eq!(listed(work_queue::Filter::Done).await, [other]);
    house.sql("DELETE FROM notification").await;
    let twice = broadcasts.stop(id).await.unwrap_err();
    assert!(twice.to_string().contains("cannot be stopped"), "{twice}");
    house.notifications.resume_broadcast(id).await.unwrap();
    testkit::eventually("it is done", PATIENCE, async || progress(&house, id).await.state == State::Done)
        .await;
    assert_eq!(progress(&house, id).await.told, USERS as u64);
    // Those who were not told before, and nobody else.
    assert_eq!(house.count("notification").await, USERS as i64 - 1_000);
    let unknown = broadcasts.stop(uuid(7)).await.unwrap_err();
    assert!(matches!(unknown, notification::Error::NoBroadcast(_)), "{unknown}");
    working.stop().await;
}

/// The worker claims it at once whenever it is resumed, so that some stops meet its transactions.
async fn a_broadcast_at_work_can_be_stopped_and_resumed_any_number_of_times(place: &SqlPlace) {
    let (house, users) = open(place, 1_000).await;
    refuse(&house, place, "trap", users[600], FOR_GOOD).await;
    let id = send(&house, "k").await;
    let working = broadcast(&house);
    testkit::eventually("it is on its way", PATIENCE, async || progress(&house, id).await.told == 500).await;
    for _ in 0..50 {
        house.notifications.broadcasts().stop(id).await.unwrap();
        house.notifications.broadcasts().resume(id).await.unwrap();
    }
    house.sql("DROP TRIGGER trap").await;
    is_done(&house, &users, id).await;
    working.stop().await;
}
