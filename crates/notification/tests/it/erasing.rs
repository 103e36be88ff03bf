//! Erasure removes everything of a user, and the user is not notified any more.

use events::{memory, sell, sold_event};
use notification::{IntakeReport, LIVE, LOG, WEBHOOK};
use receiver::Receiver;

use super::*;

testkit::on_all_stores!(
    erasure_removes_inbox_deliveries_and_dead_letters,
    erasure_removes_dead_letters_without_a_notification,
    user_erased_during_intake_has_no_notifications,
);

async fn open(database: &TestDatabase) -> (Process, Receiver) {
    let gone = Receiver::start(410).await;
    let setup = Setup::with(|config| {
        config.webhooks.insert("gone".to_owned(), gone.config());
        set_channels(config, &["live", "log", "webhook:gone"]);
    });
    (Process::open(database, setup).await, gone)
}

async fn erasure_removes_inbox_deliveries_and_dead_letters(database: &TestDatabase) {
    let (process, _gone) = open(database).await;
    let (ann, ben) = (process.user("ann").await, process.user("ben").await);
    for user in [ann, ben] {
        sell(&process, *user.as_uuid(), &["a sword", "a bow"]).await;
    }
    let working = process.deliver();
    testkit::eventually("all have failed", PATIENCE, async || process.dead_letters().await.len() == 4).await;
    working.stop().await;
    // One more, whose deliveries still wait.
    sell(&process, *ann.as_uuid(), &["a shield"]).await;
    process.accounts.erase(ann, "test").await.unwrap();
    assert_eq!(process.all(*ann.as_uuid()).await, []);
    let page = process.inbox.list(*ann.as_uuid(), Filter::Inbox, None, 10).await.unwrap();
    assert_eq!((page.notifications.len(), page.counts, page.head), (0, Counts::default(), 0));
    for table in ["notification", LIVE, LOG, WEBHOOK, "notification_dlq"] {
        assert_eq!(process.count(table).await, 2, "{table}: those of ben");
    }
    assert!(process.dead_letters().await.iter().all(|dead_letter| dead_letter.user == Some(*ben.as_uuid())));
    // Later events do not notify the erased user, and still notify other recipients.
    let bus = memory().await;
    bus.publish(&[sold_event(&[*ann.as_uuid(), *ben.as_uuid()], "a horse")]).await;
    let intake = process.intake(&bus);
    let consumer = intake.subscribe().await.unwrap();
    let report = intake.tick(&consumer, PATIENCE).await.unwrap();
    assert_eq!(report, IntakeReport { events: 1, notifications: 1, ..IntakeReport::default() });
    assert_eq!(process.titles(*ben.as_uuid()).await.len(), 3);
    assert_eq!((process.count("notification").await, process.count(LIVE).await), (3, 3));
    assert_eq!(process.inbox.head(*ann.as_uuid()).await.unwrap(), Head::default());
}

async fn erasure_removes_dead_letters_without_a_notification(database: &TestDatabase) {
    let (process, _gone) = open(database).await;
    let ann = process.user("ann").await;
    sell(&process, *ann.as_uuid(), &["a sword"]).await;
    let working = process.deliver();
    testkit::eventually("it has failed", PATIENCE, async || process.dead_letters().await.len() == 1).await;
    working.stop().await;
    process.sql("UPDATE notification SET remove_at = 1").await;
    assert_eq!(process.notifications.remove_old().await.unwrap(), 1);
    process.accounts.erase(ann, "test").await.unwrap();
    for table in [WEBHOOK, "notification_dlq"] {
        assert_eq!(process.count(table).await, 0, "{table}");
    }
}

async fn user_erased_during_intake_has_no_notifications(database: &TestDatabase) {
    let process = Process::open(database, Setup::with(|config| config.batch = 5)).await;
    let (ann, ben) = (process.user("ann").await, process.user("ben").await);
    let bus = memory().await;
    let users = [*ann.as_uuid(), *ben.as_uuid()];
    bus.publish(&(0..100).map(|_| sold_event(&users, "a sword")).collect::<Vec<_>>()).await;
    let taking = tokio::spawn({
        let intake = process.intake(&bus);
        async move {
            let consumer = intake.subscribe().await.unwrap();
            let mut taken = 0;
            while taken < 100 {
                taken += intake.tick(&consumer, PATIENCE).await.unwrap().events;
            }
        }
    });
    testkit::eventually("some are taken in", PATIENCE, async || !process.all(users[0]).await.is_empty())
        .await;
    process.accounts.erase(ann, "test").await.unwrap();
    taking.await.unwrap();
    assert_eq!(process.all(users[0]).await, []);
    assert_eq!(process.all(users[1]).await.len(), 100);
    assert_eq!(process.count(LIVE).await, 100);
}
