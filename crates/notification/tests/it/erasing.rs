//! A user who is erased leaves nothing here, and is told nothing any more.

use events::{memory, sell, sold_event};
use notification::{LIVE, LOG, Taken, WEBHOOK};
use receiver::Receiver;

use super::*;

testkit::on_all_stores!(
    with_the_user_go_inbox_deliveries_and_letters,
    what_has_failed_goes_although_the_inbox_has_forgotten_it,
    whoever_is_erased_while_events_come_has_nothing_after,
);

async fn open(place: &SqlPlace) -> (House, Receiver) {
    let gone = Receiver::start(410).await;
    let setup = Setup::with(|config| {
        config.webhooks.insert("gone".to_owned(), gone.config());
        by(config, &["live", "log", "webhook:gone"]);
    });
    (House::open(place, setup).await, gone)
}

async fn with_the_user_go_inbox_deliveries_and_letters(place: &SqlPlace) {
    let (house, _gone) = open(place).await;
    let (ann, ben) = (house.user("ann").await, house.user("ben").await);
    for user in [ann, ben] {
        sell(&house, *user.as_uuid(), &["a sword", "a bow"]).await;
    }
    let working = house.deliver();
    testkit::eventually("all have failed", PATIENCE, async || house.letters().await.len() == 4).await;
    working.stop().await;
    // One more, which nobody has delivered yet.
    sell(&house, *ann.as_uuid(), &["a shield"]).await;
    house.accounts.erase(ann, "test").await.unwrap();
    assert_eq!(house.all(*ann.as_uuid()).await, []);
    let page = house.inbox.list(*ann.as_uuid(), Filter::Inbox, None, 10).await.unwrap();
    assert_eq!((page.notifications.len(), page.counts, page.head), (0, Counts::default(), 0));
    for table in ["notification", LIVE, LOG, WEBHOOK, "notification_dlq"] {
        assert_eq!(house.count(table).await, 2, "{table}: those of ben");
    }
    assert!(house.letters().await.iter().all(|letter| letter.user == Some(*ben.as_uuid())));
    // What comes later makes nothing, and those beside it are told.
    let bus = memory().await;
    bus.publish(&[sold_event(&[*ann.as_uuid(), *ben.as_uuid()], "a horse")]).await;
    let intake = house.intake(&bus);
    let consumer = intake.subscribe().await.unwrap();
    let taken = intake.tick(&consumer, PATIENCE).await.unwrap();
    assert_eq!(taken, Taken { events: 1, notifications: 1, ..Taken::default() });
    assert_eq!(house.titles(*ben.as_uuid()).await.len(), 3);
    assert_eq!((house.count("notification").await, house.count(LIVE).await), (3, 3));
    assert_eq!(house.inbox.head(*ann.as_uuid()).await.unwrap(), Head::default());
}

async fn what_has_failed_goes_although_the_inbox_has_forgotten_it(place: &SqlPlace) {
    let (house, _gone) = open(place).await;
    let ann = house.user("ann").await;
    sell(&house, *ann.as_uuid(), &["a sword"]).await;
    let working = house.deliver();
    testkit::eventually("it has failed", PATIENCE, async || house.letters().await.len() == 1).await;
    working.stop().await;
    house.sql("UPDATE notification SET remove_at = 1").await;
    assert_eq!(house.notifications.remove_old().await.unwrap(), 1);
    house.accounts.erase(ann, "test").await.unwrap();
    for table in [WEBHOOK, "notification_dlq"] {
        assert_eq!(house.count(table).await, 0, "{table}");
    }
}

async fn whoever_is_erased_while_events_come_has_nothing_after(place: &SqlPlace) {
    let house = House::open(place, Setup::with(|config| config.batch = 5)).await;
    let (ann, ben) = (house.user("ann").await, house.user("ben").await);
    let bus = memory().await;
    let users = [*ann.as_uuid(), *ben.as_uuid()];
    bus.publish(&(0..100).map(|_| sold_event(&users, "a sword")).collect::<Vec<_>>()).await;
    let taking = tokio::spawn({
        let intake = house.intake(&bus);
        async move {
            let consumer = intake.subscribe().await.unwrap();
            let mut taken = 0;
            while taken < 100 {
                taken += intake.tick(&consumer, PATIENCE).await.unwrap().events;
            }
        }
    });
    testkit::eventually("some came", PATIENCE, async || !house.all(users[0]).await.is_empty()).await;
    house.accounts.erase(ann, "test").await.unwrap();
    taking.await.unwrap();
    assert_eq!(house.all(users[0]).await, []);
    assert_eq!(house.all(users[1]).await.len(), 100);
    assert_eq!(house.count(LIVE).await, 100);
}
