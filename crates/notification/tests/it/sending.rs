//! Notifications sent by services.

use std::collections::HashSet;

use base::error::Coded;
use base::{Code, Timestamp};
use notification::{Content, Error, LIVE, Recipients, Request, Text};
use serde_json::{Value, json};

use super::*;

testkit::on_all_stores!(
    request_notifies_its_users,
    key_belongs_to_one_request,
    concurrent_requests_with_the_same_key_notify_once,
    invalid_requests_are_refused,
    template_for_services_requires_its_fields,
    broadcast_notifies_all_once_although_workers_die,
    broadcast_continues_where_another_worker_lost_it,
);

pub(crate) fn texts(title: &str) -> Content {
    let text = Text { title: title.to_owned(), body: String::new() };
    Content::Texts([("en".to_owned(), text)].into(), vec![Channel::Live])
}

pub(crate) fn request(to: Recipients, content: Content) -> Request {
    Request { to, content, data: json!({}), expires_at: None }
}

fn to(users: &[UserId], title: &str) -> Request {
    request(Recipients::Users(users.to_vec()), texts(title))
}

async fn request_notifies_its_users(database: &TestDatabase) {
    let process = Process::open(database, Setup::default()).await;
    let (ann, ben, unknown) = (process.user("ann").await, process.user("ben").await, UserId::generate());
    let mut stream = follow(&process.live, *ann.as_uuid()).await;
    let (receipt, is_replayed) = process.notifications.send("shop", "1", &to(&[ann], "Hello")).await.unwrap();
    assert_eq!((receipt.notified, receipt.unknown.len(), is_replayed), (Some(1), 0, false));
    assert!(matches!(stream.next().await, SubscriptionEvent::Message(_)));
    let (receipt, _) =
        process.notifications.send("shop", "2", &to(&[ann, unknown, ben], "All")).await.unwrap();
    assert_eq!((receipt.notified, receipt.unknown), (Some(2), vec![*unknown.as_uuid()]));
    assert_eq!(process.titles(*ann.as_uuid()).await, ["Hello", "All"]);
    assert_eq!(process.titles(*ben.as_uuid()).await, ["All"]);
    assert_eq!(process.states(LIVE).await, [State::Done; 3]);
    assert_eq!(process.measured("playhouse_notification_made_total"), 3);
    let error = process.notifications.send("shop", "3", &to(&[unknown], "Hello")).await.unwrap_err();
    assert!(matches!(error, Error::UnknownUser(user) if user == unknown), "{error:?}");
    // A failed request is not recorded, so the key can be used again.
    assert_eq!(
        process.notifications.send("shop", "3", &to(&[ben], "Hello")).await.unwrap().0.notified,
        Some(1)
    );
    // A request to several users succeeds even if all of them are unknown.
    let several = to(&[unknown, UserId::generate()], "Hello");
    let (receipt, _) = process.notifications.send("shop", "4", &several).await.unwrap();
    assert_eq!((receipt.notified, receipt.unknown.len()), (Some(0), 2));
    assert_eq!(process.count("notification_head").await, 2);
    // A user who is listed twice is notified once.
    let (receipt, _) = process.notifications.send("shop", "5", &to(&[ann, ann], "Twice")).await.unwrap();
    assert_eq!(receipt.notified, Some(1));
}

async fn key_belongs_to_one_request(database: &TestDatabase) {
    let process = Process::open(database, Setup::default()).await;
    let (ann, ben) = (process.user("ann").await, process.user("ben").await);
    let (first, _) = process.notifications.send("shop", "k", &to(&[ann], "Hello")).await.unwrap();
    let (again, is_replayed) = process.notifications.send("shop", "k", &to(&[ann], "Hello")).await.unwrap();
    assert_eq!((again, is_replayed), (first, true));
    assert_eq!(process.titles(*ann.as_uuid()).await.len(), 1);
    let hello = to(&[ann], "Hello");
    for other in [
        to(&[ann], "Bye"),
        to(&[ben], "Hello"),
        request(Recipients::All, texts("Hello")),
        Request { data: json!({ "a": 1 }), ..hello.clone() },
        Request { expires_at: Some(Timestamp::from_millis(4_000_000_000_000)), ..hello.clone() },
    ] {
        let error = process.notifications.send("shop", "k", &other).await.unwrap_err();
        assert_eq!(error.code(), Code::Unprocessable, "{error:?}");
    }
    // Keys of different callers are different.
    assert!(!process.notifications.send("game", "k", &hello).await.unwrap().1);
    // The recorded response stays the same after the user is erased.
    process.accounts.erase(ann, "test").await.unwrap();
    assert!(process.notifications.send("shop", "k", &hello).await.unwrap().1);
    let error = process.notifications.send("shop", "", &hello).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

async fn concurrent_requests_with_the_same_key_notify_once(database: &TestDatabase) {
    let process = Process::open(database, Setup::default()).await;
    let ann = process.user("ann").await;
    // More than there are connections to the database.
    let sends = (0..32).map(|number| {
        let (notifications, key) = (process.notifications.clone(), format!("{}", number % 2));
        tokio::spawn(async move { notifications.send("shop", &key, &to(&[ann], "Hello")).await.unwrap() })
    });
    let sends: Vec<_> = sends.collect();
    let mut new = 0;
    for send in sends {
        new += usize::from(!send.await.unwrap().1);
    }
    assert_eq!(new, 2);
    assert_eq!(process.titles(*ann.as_uuid()).await.len(), 2);
}

async fn invalid_requests_are_refused(database: &TestDatabase) {
    let process = Process::open(database, Setup::default()).await;
    let ann = process.user("ann").await;
    let content = |language: &str, title: &str, body: &str, channel: &str| {
        let text = Text { title: title.to_owned(), body: body.to_owned() };
        Content::Texts([(language.to_owned(), text)].into(), vec![channel.parse().unwrap()])
    };
    let users = || Recipients::Users(vec![ann]);
    let long = |length: usize| "ä".repeat(length);
    let valid = request(users(), content("pt-br", &long(200), &long(4_000), "live"));
    process.notifications.send("shop", "valid", &valid).await.unwrap();
    let data = |data: Value| Request { data, ..valid.clone() };
    let large = |length: usize| json!({ "a": "x".repeat(length - 8) });
    process.notifications.send("shop", "large", &data(large(16 << 10))).await.unwrap();
    let refused = [
        ("at least one user", to(&[], "Hello")),
        ("at most 1000", to(&vec![ann; 1_001], "Hello")),
        ("1 to 200", request(users(), content("en", &long(201), "", "live"))),
        ("1 to 200", request(users(), content("en", "", "", "live"))),
        ("4000 characters", request(users(), content("en", "a", &long(4_001), "live"))),
        ("is not a language", request(users(), content("EN", "a", "", "live"))),
        ("there are no texts", request(users(), Content::Texts([].into(), Vec::new()))),
        ("no channel webhook:shop", request(users(), content("en", "a", "", "webhook:shop"))),
        ("16384 bytes", data(large((16 << 10) + 1))),
        ("an object", data(json!([]))),
        ("in the past", Request { expires_at: Some(Timestamp::from_millis(1)), ..valid.clone() }),
        (
            "no template \"x\" for services; the templates are: none",
            request(users(), Content::Template("x".to_owned())),
        ),
        // This template is for an event.
        ("no template \"sold\"", request(users(), Content::Template("sold".to_owned()))),
    ];
    for (expected, request) in refused {
        let error = process.notifications.send("shop", "k", &request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{expected}");
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
    assert_eq!(process.all(*ann.as_uuid()).await.len(), 2);
    // A channel that is listed twice counts once.
    let Content::Texts(texts, _) = texts("Hello") else { panic!("not texts") };
    let twice = Content::Texts(texts, vec![Channel::Live, Channel::Log, Channel::Live]);
    process.notifications.send("shop", "twice", &request(users(), twice)).await.unwrap();
    assert_eq!(process.count(LIVE).await, 3);
}

async fn template_for_services_requires_its_fields(database: &TestDatabase) {
    let setup = Setup::with(|config| {
        let mut news = template(None, &["what", "by", "color"], "{what} by {by|somebody}");
        news.channels = Vec::new();
        news.expires_after = Some(Duration::from_secs(60));
        config.templates.insert("news".to_owned(), news);
    });
    let process = Process::open(database, setup).await;
    let ann = process.user("ann").await;
    let news = |data: Value| Request {
        data,
        ..request(Recipients::Users(vec![ann]), Content::Template("news".to_owned()))
    };
    for (missing, data) in [
        ("data.what", json!({ "by": "x", "color": "x" })),
        ("data.what", json!({ "what": null, "by": "x", "color": "x" })),
        ("data.color", json!({ "what": "x", "by": "x" })),
        ("\"what\"", json!({ "what": {}, "by": "x", "color": "x" })),
    ] {
        let error = process.notifications.send("shop", "k", &news(data)).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains(missing), "{error}");
    }
    let full = json!({ "what": "Peace", "by": "all", "color": "red" });
    process.notifications.send("shop", "1", &news(full)).await.unwrap();
    // A field with a fallback may be absent.
    process.notifications.send("shop", "2", &news(json!({ "what": "War", "color": "red" }))).await.unwrap();
    assert_eq!(process.titles(*ann.as_uuid()).await, ["Peace by all", "War by somebody"]);
    let one = process.all(*ann.as_uuid()).await.remove(0);
    let left = one.expires_at.unwrap() - one.created_at;
    assert!((50_000..=60_000).contains(&left), "{left}");
    assert_eq!(one.template, "news");
    assert_eq!(process.count(LIVE).await, 0);
}

/// Replaces all users by this many new ones.
pub(crate) async fn replace_users(process: &Process, count: usize) -> Vec<Uuid> {
    let users: Vec<Uuid> = (0..count).map(|_| *UserId::generate().as_uuid()).collect();
    process.sql("DELETE FROM users").await;
    process.add_users(users.iter().copied()).await;
    users
}

pub(crate) fn broadcast(process: &Process) -> Running {
    let (notifications, id, drain) = (process.notifications.clone(), process.id, runtime::Drain::new());
    let until = drain.clone();
    let task = tokio::spawn(async move {
        notifications.broadcasts().run(id, notifications.clone(), until).await.unwrap();
    });
    Running { drain, task }
}

/// Checks that the inboxes of these users, and no others, contain exactly one notification with this title.
pub(crate) async fn assert_all_have(process: &Process, users: &[Uuid], title: &str) {
    let mut connection = process.db.connection().await.unwrap();
    let rows: Vec<(Vec<u8>, i64, String)> = db::on!(connection, raw => {
        sqlx::query_as("SELECT user_id, position, texts FROM notification").fetch_all(raw).await.unwrap()
    });
    assert!(rows.iter().all(|(_, position, texts)| *position == 1 && texts.contains(title)));
    let distinct: HashSet<Uuid> = rows.iter().map(|(user, ..)| Uuid::from_slice(user).unwrap()).collect();
    assert_eq!((rows.len(), distinct.len()), (users.len(), users.len()));
    assert!(users.iter().all(|user| distinct.contains(user)));
}

async fn broadcast_notifies_all_once_although_workers_die(database: &TestDatabase) {
    let process =
        Process::open(database, Setup::with(|config| config.delivery.lease = Duration::from_secs(1))).await;
    let users = replace_users(&process, 2_300).await;
    let erased = process.user("ann").await;
    process.accounts.erase(erased, "test").await.unwrap();
    let all = request(Recipients::All, texts("To all"));
    let (receipt, _) = process.notifications.send("shop", "k", &all).await.unwrap();
    assert_eq!(receipt.notified, None);
    let progress = async || process.notifications.broadcasts().progress(receipt.id).await.unwrap().unwrap();
    assert_eq!((progress().await.state, progress().await.notified), (State::Pending, 0));
    // Workers die in the middle of a step.
    for _ in 0..2 {
        let before = progress().await.notified;
        let dying = broadcast(&process);
        testkit::eventually("it makes progress", PATIENCE, async || progress().await.notified > before).await;
        dying.task.abort();
        let _ = dying.task.await;
    }
    let notified = progress().await.notified;
    assert!(notified >= 500, "{notified}");
    let working = broadcast(&process);
    testkit::eventually("all are notified", PATIENCE, async || progress().await.state == State::Done).await;
    working.stop().await;
    assert_eq!(progress().await.notified, 2_300);
    assert_all_have(&process, &users, "To all").await;
    // A retry of the request creates no second broadcast.
    assert!(process.notifications.send("shop", "k", &all).await.unwrap().1);
    assert_eq!(process.count(notification::BROADCAST).await, 1);
    assert_eq!(process.notifications.broadcasts().progress(uuid(7)).await.unwrap(), None);
}

async fn broadcast_continues_where_another_worker_lost_it(database: &TestDatabase) {
    let setup = Setup::with(|config| config.delivery.lease = Duration::from_secs(60));
    let process = Process::open(database, setup).await;
    let users = replace_users(&process, 2_300).await;
    let all = request(Recipients::All, texts("To all"));
    let (receipt, _) = process.notifications.send("shop", "k", &all).await.unwrap();
    let queue = process.queue(notification::BROADCAST);
    // The slow worker loses its lease, and notices it before it notifies any user twice.
    let slow = broadcast(&process);
    let progress = async || process.notifications.broadcasts().progress(receipt.id).await.unwrap().unwrap();
    testkit::eventually("it makes progress", PATIENCE, async || progress().await.notified >= 500).await;
    process.sql(&format!("UPDATE {} SET due_at = 0 WHERE state = 0", notification::BROADCAST)).await;
    let fast = process.another(database, process.setup.clone()).await;
    let fast = broadcast(&fast);
    testkit::eventually("all are notified", PATIENCE, async || progress().await.state == State::Done).await;
    slow.stop().await;
    fast.stop().await;
    assert_all_have(&process, &users, "To all").await;
    assert_eq!(queue.list(work_queue::Filter::Done, 10).await.unwrap().len(), 1);
}
