//! What a player finds, and does with it.

use base::Timestamp;
use events::sell;
use notification::{Error, Mark, Marked, NotificationId};

use super::*;

testkit::on_all_stores!(
    an_inbox_is_listed_by_pages,
    what_is_marked_is_found_by_its_mark,
    all_up_to_a_position_are_marked_and_later_ones_are_not,
    nobody_marks_what_is_somebody_elses,
    what_has_expired_is_hidden,
    what_was_read_goes_earlier_unless_it_is_marked_as_unread,
    what_is_old_goes_a_little_at_a_time,
);

async fn open(place: &SqlPlace) -> (House, Uuid) {
    (House::open(place, Setup::default()).await, uuid(1))
}

async fn list(house: &House, user: Uuid, filter: Filter) -> Vec<i64> {
    let page = house.inbox.list(user, filter, None, 100).await.unwrap();
    assert_eq!(page.next, None);
    page.notifications.iter().map(|one| one.position).collect()
}

async fn ids(house: &House, user: Uuid) -> Vec<NotificationId> {
    house.all(user).await.iter().map(|one| NotificationId::from_uuid(one.notification_id)).collect()
}

async fn an_inbox_is_listed_by_pages(place: &SqlPlace) {
    let (house, ann) = open(place).await;
    let empty = house.inbox.list(ann, Filter::Inbox, None, 3).await.unwrap();
    assert_eq!((empty.notifications.len(), empty.next, empty.head), (0, None, 0));
    sell(&house, ann, &["1", "2", "3", "4", "5", "6", "7"]).await;
    sell(&house, uuid(2), &["8"]).await;
    let (mut before, mut seen) = (None, Vec::new());
    for expected in [Some(5), Some(2), None] {
        let page = house.inbox.list(ann, Filter::Inbox, before, 3).await.unwrap();
        assert_eq!((page.next, page.head), (expected, 7));
        assert_eq!(page.counts, Counts { unread: 7, unseen: 7 });
        seen.extend(page.notifications.iter().map(|one| one.position));
        before = page.next;
    }
    assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    let first = &house.all(ann).await[0];
    assert_eq!((first.template.as_str(), first.user_id), ("sold", ann));
    assert_eq!(first.data["thing"], "1");
    let id = NotificationId::from_uuid(first.notification_id);
    assert_eq!(house.inbox.get(ann, id).await.unwrap(), *first);
    assert!(matches!(house.inbox.get(uuid(2), id).await, Err(Error::NotFound(_))));
}

async fn what_is_marked_is_found_by_its_mark(place: &SqlPlace) {
    let (house, ann) = open(place).await;
    sell(&house, ann, &["1", "2", "3"]).await;
    let ids = ids(&house, ann).await;
    let mark = async |at: usize, mark| {
        let counts = house.inbox.mark(ann, &Marked::These(vec![ids[at]]), mark).await.unwrap();
        (counts.unread, counts.unseen)
    };
    let times = async |at: usize| {
        let one = house.inbox.get(ann, ids[at]).await.unwrap();
        (one.seen_at.is_some(), one.read_at.is_some(), one.archived_at.is_some())
    };
    let mut stream = follow(&house.live, ann).await;
    assert_eq!(mark(0, Mark::Seen).await, (3, 2));
    assert_eq!(times(0).await, (true, false, false));
    // The player's other devices receive the new counts.
    let counts = PlayerMessage::Counts(Counts { unread: 3, unseen: 2 });
    assert_eq!(stream.next().await, Received::Message(counts));
    assert_eq!(mark(1, Mark::Read).await, (2, 1));
    assert_eq!(times(1).await, (true, true, false));
    assert_eq!(list(&house, ann, Filter::Unread).await, [3, 1]);
    assert_eq!(list(&house, ann, Filter::Inbox).await, [3, 2, 1]);
    assert_eq!(mark(2, Mark::Archived).await, (1, 0));
    assert_eq!(times(2).await, (true, false, true));
    assert_eq!(list(&house, ann, Filter::Unread).await, [1]);
    assert_eq!(list(&house, ann, Filter::Inbox).await, [2, 1]);
    assert_eq!(list(&house, ann, Filter::Archived).await, [3]);
    assert_eq!(mark(2, Mark::Unarchived).await, (2, 0));
    assert_eq!(mark(1, Mark::Unread).await, (3, 0));
    assert_eq!(times(1).await, (true, false, false));
    assert_eq!(list(&house, ann, Filter::Unread).await, [3, 2, 1]);
    assert!(list(&house, ann, Filter::Archived).await.is_empty());
    // What is marked so already stays as it is.
    house.inbox.mark(ann, &Marked::These(vec![ids[0]]), Mark::Read).await.unwrap();
    let before = house.inbox.get(ann, ids[0]).await.unwrap();
    house.inbox.mark(ann, &Marked::These(ids.clone()), Mark::Read).await.unwrap();
    assert_eq!(house.inbox.get(ann, ids[0]).await.unwrap(), before);
    assert_eq!(house.inbox.counts(ann).await.unwrap(), Counts::default());
    let many = vec![ids[0]; notification::MOST_MARKED + 1];
    let error = house.inbox.mark(ann, &Marked::These(many), Mark::Read).await.unwrap_err();
    assert!(matches!(error, Error::TooMany { .. }));
    house.inbox.mark(ann, &Marked::These(Vec::new()), Mark::Unread).await.unwrap();
    assert_eq!(house.inbox.counts(ann).await.unwrap(), Counts::default());
}

async fn all_up_to_a_position_are_marked_and_later_ones_are_not(place: &SqlPlace) {
    let (house, ann) = open(place).await;
    sell(&house, ann, &["1", "2", "3"]).await;
    let head = house.inbox.list(ann, Filter::Inbox, None, 10).await.unwrap().head;
    sell(&house, ann, &["4"]).await;
    sell(&house, uuid(2), &["1"]).await;
    let counts = house.inbox.mark(ann, &Marked::UpTo(head), Mark::Read).await.unwrap();
    assert_eq!(counts, Counts { unread: 1, unseen: 1 });
    assert_eq!(list(&house, ann, Filter::Unread).await, [4]);
    assert_eq!(house.inbox.counts(uuid(2)).await.unwrap(), Counts { unread: 1, unseen: 1 });
}

async fn nobody_marks_what_is_somebody_elses(place: &SqlPlace) {
    let (house, ann) = open(place).await;
    let ben = uuid(2);
    sell(&house, ann, &["1"]).await;
    sell(&house, ben, &["1"]).await;
    let of_ann = Marked::These(ids(&house, ann).await);
    for mark in [Mark::Seen, Mark::Read, Mark::Archived] {
        house.inbox.mark(ben, &of_ann, mark).await.unwrap();
    }
    for user in [ann, ben] {
        let one = &house.all(user).await[0];
        assert_eq!((one.seen_at, one.read_at, one.archived_at), (None, None, None));
    }
}

async fn what_has_expired_is_hidden(place: &SqlPlace) {
    let clock = Clock::manual(Timestamp::from_millis(1_772_366_400_000));
    let mut setup = Setup { clock: clock.clone(), ..Setup::default() };
    setup.config.templates.get_mut("sold").unwrap().expires_after = Some(Duration::from_secs(60));
    let (house, ann) = (House::open(place, setup).await, uuid(1));
    sell(&house, ann, &["1"]).await;
    clock.advance(Duration::from_secs(30));
    sell(&house, ann, &["2"]).await;
    let first = ids(&house, ann).await[0];
    clock.advance(Duration::from_millis(29_999));
    assert_eq!(list(&house, ann, Filter::Inbox).await, [2, 1]);
    clock.advance(Duration::from_millis(1));
    assert_eq!(list(&house, ann, Filter::Inbox).await, [2]);
    assert_eq!(house.inbox.counts(ann).await.unwrap(), Counts { unread: 1, unseen: 1 });
    assert!(matches!(house.inbox.get(ann, first).await, Err(Error::NotFound(_))));
    clock.advance(Duration::from_secs(30));
    // Whoever reads on does not wait for what cannot be seen any more.
    let rest = house.inbox.after(ann, 0, 10).await.unwrap();
    assert_eq!((rest.notifications.len(), rest.up_to), (0, 2));
    // Both have expired long ago by the store's clock.
    assert_eq!(house.notifications.remove_old().await.unwrap(), 2);
    assert_eq!(house.count("notification").await, 0);
}

/// Lets time pass for what is in the inboxes.
async fn pass(house: &House, time: Duration) {
    let millis = time.as_millis();
    house
        .sql(&format!(
            "UPDATE notification SET remove_at = remove_at - {millis}, created_at = created_at - {millis}"
        ))
        .await;
}

async fn what_was_read_goes_earlier_unless_it_is_marked_as_unread(place: &SqlPlace) {
    const DAY: Duration = Duration::from_secs(86_400);
    let (house, ann) = open(place).await;
    sell(&house, ann, &["read", "read and not", "new"]).await;
    let ids = ids(&house, ann).await;
    house.inbox.mark(ann, &Marked::These(ids[..2].to_vec()), Mark::Read).await.unwrap();
    house.inbox.mark(ann, &Marked::These(vec![ids[1]]), Mark::Unread).await.unwrap();
    pass(&house, 7 * DAY - Duration::from_secs(60)).await;
    assert_eq!(house.notifications.remove_old().await.unwrap(), 0);
    pass(&house, Duration::from_secs(120)).await;
    assert_eq!(house.notifications.remove_old().await.unwrap(), 1);
    assert_eq!(house.titles(ann).await, ["You bought read and not", "You bought new"]);
    pass(&house, 23 * DAY - Duration::from_secs(120)).await;
    assert_eq!(house.notifications.remove_old().await.unwrap(), 0);
    // To read it now does not make it stay for longer.
    house.inbox.mark(ann, &Marked::UpTo(3), Mark::Read).await.unwrap();
    pass(&house, Duration::from_secs(120)).await;
    assert_eq!(house.notifications.remove_old().await.unwrap(), 2);
    assert_eq!(house.all(ann).await, []);
    // Positions are never given twice.
    sell(&house, ann, &["more"]).await;
    assert_eq!(house.all(ann).await[0].position, 4);
}

async fn what_is_old_goes_a_little_at_a_time(place: &SqlPlace) {
    let (house, ann) = open(place).await;
    let things: Vec<String> = (0..600).map(|number| number.to_string()).collect();
    sell(&house, ann, &things.iter().map(String::as_str).collect::<Vec<_>>()).await;
    house.sql("UPDATE notification SET remove_at = position WHERE position <= 550").await;
    assert_eq!(house.notifications.remove_old().await.unwrap(), 500);
    assert_eq!(house.all(ann).await[0].position, 501, "the oldest go first");
    assert_eq!(house.notifications.remove_old().await.unwrap(), 50);
    assert_eq!(house.notifications.remove_old().await.unwrap(), 0);
    assert_eq!(house.count("notification").await, 50);
}
