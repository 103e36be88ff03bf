//! Inboxes: pages, marks, expiry and retention.

use base::Timestamp;
use events::sell;
use notification::{Error, Mark, MarkTarget, NotificationId};

use super::*;

testkit::on_all_stores!(
    inbox_is_listed_in_pages,
    marks_change_lists_and_counts,
    mark_up_to_a_position_leaves_later_notifications_alone,
    player_cannot_mark_notifications_of_another_player,
    expired_notifications_are_hidden,
    read_notifications_are_removed_earlier_unless_marked_unread,
    old_notifications_are_removed_in_batches,
);

async fn open(database: &TestDatabase) -> (Process, Uuid) {
    (Process::open(database, Setup::default()).await, uuid(1))
}

async fn list(process: &Process, user: Uuid, filter: Filter) -> Vec<i64> {
    let page = process.inbox.list(user, filter, None, 100).await.unwrap();
    assert_eq!(page.next, None);
    page.notifications.iter().map(|one| one.position).collect()
}

async fn ids(process: &Process, user: Uuid) -> Vec<NotificationId> {
    process.all(user).await.iter().map(|one| NotificationId::from_uuid(one.notification_id)).collect()
}

async fn inbox_is_listed_in_pages(database: &TestDatabase) {
    let (process, ann) = open(database).await;
    let empty = process.inbox.list(ann, Filter::Inbox, None, 3).await.unwrap();
    assert_eq!((empty.notifications.len(), empty.next, empty.head), (0, None, 0));
    sell(&process, ann, &["1", "2", "3", "4", "5", "6", "7"]).await;
    sell(&process, uuid(2), &["8"]).await;
    let (mut before, mut seen) = (None, Vec::new());
    for expected in [Some(5), Some(2), None] {
        let page = process.inbox.list(ann, Filter::Inbox, before, 3).await.unwrap();
        assert_eq!((page.next, page.head), (expected, 7));
        assert_eq!(page.counts, Counts { unread: 7, unseen: 7 });
        seen.extend(page.notifications.iter().map(|one| one.position));
        before = page.next;
    }
    assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    let first = &process.all(ann).await[0];
    assert_eq!((first.template.as_str(), first.user_id), ("sold", ann));
    assert_eq!(first.data["thing"], "1");
    let id = NotificationId::from_uuid(first.notification_id);
    assert_eq!(process.inbox.get(ann, id).await.unwrap(), *first);
    assert!(matches!(process.inbox.get(uuid(2), id).await, Err(Error::NotFound(_))));
}

async fn marks_change_lists_and_counts(database: &TestDatabase) {
    let (process, ann) = open(database).await;
    sell(&process, ann, &["1", "2", "3"]).await;
    let ids = ids(&process, ann).await;
    let mark = async |at: usize, mark| {
        let counts = process.inbox.mark(ann, &MarkTarget::Ids(vec![ids[at]]), mark).await.unwrap();
        (counts.unread, counts.unseen)
    };
    let times = async |at: usize| {
        let one = process.inbox.get(ann, ids[at]).await.unwrap();
        (one.seen_at.is_some(), one.read_at.is_some(), one.archived_at.is_some())
    };
    let mut stream = follow(&process.live, ann).await;
    assert_eq!(mark(0, Mark::Seen).await, (3, 2));
    assert_eq!(times(0).await, (true, false, false));
    // The player's other devices receive the new counts.
    let counts = PlayerMessage::Counts(Counts { unread: 3, unseen: 2 });
    assert_eq!(stream.next().await, SubscriptionEvent::Message(counts));
    assert_eq!(mark(1, Mark::Read).await, (2, 1));
    assert_eq!(times(1).await, (true, true, false));
    assert_eq!(list(&process, ann, Filter::Unread).await, [3, 1]);
    assert_eq!(list(&process, ann, Filter::Inbox).await, [3, 2, 1]);
    assert_eq!(mark(2, Mark::Archived).await, (1, 0));
    assert_eq!(times(2).await, (true, false, true));
    assert_eq!(list(&process, ann, Filter::Unread).await, [1]);
    assert_eq!(list(&process, ann, Filter::Inbox).await, [2, 1]);
    assert_eq!(list(&process, ann, Filter::Archived).await, [3]);
    assert_eq!(mark(2, Mark::Unarchived).await, (2, 0));
    assert_eq!(mark(1, Mark::Unread).await, (3, 0));
    assert_eq!(times(1).await, (true, false, false));
    assert_eq!(list(&process, ann, Filter::Unread).await, [3, 2, 1]);
    assert!(list(&process, ann, Filter::Archived).await.is_empty());
    // A notification that has the mark stays as it is.
    process.inbox.mark(ann, &MarkTarget::Ids(vec![ids[0]]), Mark::Read).await.unwrap();
    let before = process.inbox.get(ann, ids[0]).await.unwrap();
    process.inbox.mark(ann, &MarkTarget::Ids(ids.clone()), Mark::Read).await.unwrap();
    assert_eq!(process.inbox.get(ann, ids[0]).await.unwrap(), before);
    assert_eq!(process.inbox.counts(ann).await.unwrap(), Counts::default());
    let many = vec![ids[0]; notification::MAX_MARKED + 1];
    let error = process.inbox.mark(ann, &MarkTarget::Ids(many), Mark::Read).await.unwrap_err();
    assert!(matches!(error, Error::TooMany { .. }));
    process.inbox.mark(ann, &MarkTarget::Ids(Vec::new()), Mark::Unread).await.unwrap();
    assert_eq!(process.inbox.counts(ann).await.unwrap(), Counts::default());
}

async fn mark_up_to_a_position_leaves_later_notifications_alone(database: &TestDatabase) {
    let (process, ann) = open(database).await;
    sell(&process, ann, &["1", "2", "3"]).await;
    let head = process.inbox.list(ann, Filter::Inbox, None, 10).await.unwrap().head;
    sell(&process, ann, &["4"]).await;
    sell(&process, uuid(2), &["1"]).await;
    let counts = process.inbox.mark(ann, &MarkTarget::UpTo(head), Mark::Read).await.unwrap();
    assert_eq!(counts, Counts { unread: 1, unseen: 1 });
    assert_eq!(list(&process, ann, Filter::Unread).await, [4]);
    assert_eq!(process.inbox.counts(uuid(2)).await.unwrap(), Counts { unread: 1, unseen: 1 });
}

async fn player_cannot_mark_notifications_of_another_player(database: &TestDatabase) {
    let (process, ann) = open(database).await;
    let ben = uuid(2);
    sell(&process, ann, &["1"]).await;
    sell(&process, ben, &["1"]).await;
    let of_ann = MarkTarget::Ids(ids(&process, ann).await);
    for mark in [Mark::Seen, Mark::Read, Mark::Archived] {
        process.inbox.mark(ben, &of_ann, mark).await.unwrap();
    }
    for user in [ann, ben] {
        let one = &process.all(user).await[0];
        assert_eq!((one.seen_at, one.read_at, one.archived_at), (None, None, None));
    }
}

async fn expired_notifications_are_hidden(database: &TestDatabase) {
    let clock = Clock::manual(Timestamp::from_millis(1_772_366_400_000));
    let mut setup = Setup { clock: clock.clone(), ..Setup::default() };
    setup.config.templates.get_mut("sold").unwrap().expires_after = Some(Duration::from_secs(60));
    let (process, ann) = (Process::open(database, setup).await, uuid(1));
    sell(&process, ann, &["1"]).await;
    clock.advance(Duration::from_secs(30));
    sell(&process, ann, &["2"]).await;
    let first = ids(&process, ann).await[0];
    clock.advance(Duration::from_millis(29_999));
    assert_eq!(list(&process, ann, Filter::Inbox).await, [2, 1]);
    clock.advance(Duration::from_millis(1));
    assert_eq!(list(&process, ann, Filter::Inbox).await, [2]);
    assert_eq!(process.inbox.counts(ann).await.unwrap(), Counts { unread: 1, unseen: 1 });
    assert!(matches!(process.inbox.get(ann, first).await, Err(Error::NotFound(_))));
    clock.advance(Duration::from_secs(30));
    // A reader moves past expired notifications.
    let tail = process.inbox.after(ann, 0, 10).await.unwrap();
    assert_eq!((tail.notifications.len(), tail.up_to), (0, 2));
    // By the database's clock both expired long ago.
    assert_eq!(process.notifications.remove_old().await.unwrap(), 2);
    assert_eq!(process.count("notification").await, 0);
}

/// Makes the notifications older by this time.
async fn pass(process: &Process, time: Duration) {
    let millis = time.as_millis();
    process
        .sql(&format!(
            "UPDATE notification SET remove_at = remove_at - {millis}, created_at = created_at - {millis}"
        ))
        .await;
}

async fn read_notifications_are_removed_earlier_unless_marked_unread(database: &TestDatabase) {
    const DAY: Duration = Duration::from_secs(86_400);
    let (process, ann) = open(database).await;
    sell(&process, ann, &["read", "read and not", "new"]).await;
    let ids = ids(&process, ann).await;
    process.inbox.mark(ann, &MarkTarget::Ids(ids[..2].to_vec()), Mark::Read).await.unwrap();
    process.inbox.mark(ann, &MarkTarget::Ids(vec![ids[1]]), Mark::Unread).await.unwrap();
    pass(&process, 7 * DAY - Duration::from_secs(60)).await;
    assert_eq!(process.notifications.remove_old().await.unwrap(), 0);
    pass(&process, Duration::from_secs(120)).await;
    assert_eq!(process.notifications.remove_old().await.unwrap(), 1);
    assert_eq!(process.titles(ann).await, ["You bought read and not", "You bought new"]);
    pass(&process, 23 * DAY - Duration::from_secs(120)).await;
    assert_eq!(process.notifications.remove_old().await.unwrap(), 0);
    // Reading it now does not extend its retention.
    process.inbox.mark(ann, &MarkTarget::UpTo(3), Mark::Read).await.unwrap();
    pass(&process, Duration::from_secs(120)).await;
    assert_eq!(process.notifications.remove_old().await.unwrap(), 2);
    assert_eq!(process.all(ann).await, []);
    // Positions are never reused.
    sell(&process, ann, &["more"]).await;
    assert_eq!(process.all(ann).await[0].position, 4);
}

async fn old_notifications_are_removed_in_batches(database: &TestDatabase) {
    let (process, ann) = open(database).await;
    let things: Vec<String> = (0..600).map(|number| number.to_string()).collect();
    sell(&process, ann, &things.iter().map(String::as_str).collect::<Vec<_>>()).await;
    process.sql("UPDATE notification SET remove_at = position WHERE position <= 550").await;
    assert_eq!(process.notifications.remove_old().await.unwrap(), 500);
    assert_eq!(process.all(ann).await[0].position, 501, "the oldest are removed first");
    assert_eq!(process.notifications.remove_old().await.unwrap(), 50);
    assert_eq!(process.notifications.remove_old().await.unwrap(), 0);
    assert_eq!(process.count("notification").await, 50);
}
