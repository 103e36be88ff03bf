//! What services ask to be told.

use std::collections::HashSet;

use base::error::Coded;
use base::{Code, Timestamp};
use notification::{Content, Error, LIVE, Recipients, Request, Text};
use serde_json::{Value, json};

use super::*;

testkit::on_all_stores!(
    one_or_some_are_told,
    a_key_is_used_once,
    the_same_key_at_the_same_time_tells_once,
    what_is_not_sound_is_refused,
    a_template_for_services_needs_its_fields,
    all_are_told_once_whoever_stops_in_the_middle,
    a_broadcast_goes_on_where_another_worker_was,
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

async fn one_or_some_are_told(place: &SqlPlace) {
    let house = House::open(place, Setup::default()).await;
    let (ann, ben, nobody) = (house.user("ann").await, house.user("ben").await, UserId::generate());
    let mut stream = follow(&house.live, *ann.as_uuid()).await;
    let (sent, is_replayed) = house.notifications.send("shop", "1", &to(&[ann], "Hello")).await.unwrap();
    assert_eq!((sent.told, sent.unknown.len(), is_replayed), (Some(1), 0, false));
    assert!(matches!(stream.next().await, Received::Message(_)));
    let (sent, _) = house.notifications.send("shop", "2", &to(&[ann, nobody, ben], "All")).await.unwrap();
    assert_eq!((sent.told, sent.unknown), (Some(2), vec![*nobody.as_uuid()]));
    assert_eq!(house.titles(*ann.as_uuid()).await, ["Hello", "All"]);
    assert_eq!(house.titles(*ben.as_uuid()).await, ["All"]);
    assert_eq!(house.states(LIVE).await, [State::Done; 3]);
    assert_eq!(house.measured("playhouse_notification_made_total"), 3);
    let error = house.notifications.send("shop", "3", &to(&[nobody], "Hello")).await.unwrap_err();
    assert!(matches!(error, Error::UnknownUser(user) if user == nobody), "{error:?}");
    // It was no answer: whoever registers meanwhile can be told under the key.
    assert_eq!(house.notifications.send("shop", "3", &to(&[ben], "Hello")).await.unwrap().0.told, Some(1));
    // Of several who are all unknown, that is the answer.
    let several = to(&[nobody, UserId::generate()], "Hello");
    let (sent, _) = house.notifications.send("shop", "4", &several).await.unwrap();
    assert_eq!((sent.told, sent.unknown.len()), (Some(0), 2));
    assert_eq!(house.count("notification_head").await, 2);
    // A user who is named twice is told once.
    let (sent, _) = house.notifications.send("shop", "5", &to(&[ann, ann], "Twice")).await.unwrap();
    assert_eq!(sent.told, Some(1));
}

async fn a_key_is_used_once(place: &SqlPlace) {
    let house = House::open(place, Setup::default()).await;
    let (ann, ben) = (house.user("ann").await, house.user("ben").await);
    let (first, _) = house.notifications.send("shop", "k", &to(&[ann], "Hello")).await.unwrap();
    let (again, is_replayed) = house.notifications.send("shop", "k", &to(&[ann], "Hello")).await.unwrap();
    assert_eq!((again, is_replayed), (first, true));
    assert_eq!(house.titles(*ann.as_uuid()).await.len(), 1);
    let hello = to(&[ann], "Hello");
    for other in [
        to(&[ann], "Bye"),
        to(&[ben], "Hello"),
        request(Recipients::All, texts("Hello")),
        Request { data: json!({ "a": 1 }), ..hello.clone() },
        Request { expires_at: Some(Timestamp::from_millis(4_000_000_000_000)), ..hello.clone() },
    ] {
        let error = house.notifications.send("shop", "k", &other).await.unwrap_err();
        assert_eq!(error.code(), Code::Unprocessable, "{error:?}");
    }
    // Somebody else's key is another one.
    assert!(!house.notifications.send("game", "k", &hello).await.unwrap().1);
    // The answer stays what it was, whatever has become of the user.
    house.accounts.erase(ann, "test").await.unwrap();
    assert!(house.notifications.send("shop", "k", &hello).await.unwrap().1);
    let error = house.notifications.send("shop", "", &hello).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

async fn the_same_key_at_the_same_time_tells_once(place: &SqlPlace) {
    let house = House::open(place, Setup::default()).await;
    let ann = house.user("ann").await;
    // More than there are connections to the store.
    let sends = (0..32).map(|number| {
        let (notifications, key) = (house.notifications.clone(), format!("{}", number % 2));
        tokio::spawn(async move { notifications.send("shop", &key, &to(&[ann], "Hello")).await.unwrap() })
    });
    let sends: Vec<_> = sends.collect();
    let mut new = 0;
    for send in sends {
        new += usize::from(!send.await.unwrap().1);
    }
    assert_eq!(new, 2);
    assert_eq!(house.titles(*ann.as_uuid()).await.len(), 2);
}

async fn what_is_not_sound_is_refused(place: &SqlPlace) {
    let house = House::open(place, Setup::default()).await;
    let ann = house.user("ann").await;
    let content = |language: &str, title: &str, body: &str, channel: &str| {
        let text = Text { title: title.to_owned(), body: body.to_owned() };
        Content::Texts([(language.to_owned(), text)].into(), vec![channel.parse().unwrap()])
    };
    let users = || Recipients::Users(vec![ann]);
    let long = |length: usize| "ä".repeat(length);
    let sound = request(users(), content("pt-br", &long(200), &long(4_000), "live"));
    house.notifications.send("shop", "sound", &sound).await.unwrap();
    let data = |data: Value| Request { data, ..sound.clone() };
    let large = |length: usize| json!({ "a": "x".repeat(length - 8) });
    house.notifications.send("shop", "large", &data(large(16 << 10))).await.unwrap();
    let refused = [
        ("at least one user", to(&[], "Hello")),
        ("at most 1000", to(&vec![ann; 1_001], "Hello")),
        ("1 to 200", request(users(), content("en", &long(201), "", "live"))),
        ("1 to 200", request(users(), content("en", "", "", "live"))),
        ("4000 characters", request(users(), content("en", "a", &long(4_001), "live"))),
        ("no language", request(users(), content("EN", "a", "", "live"))),
        ("say something", request(users(), Content::Texts([].into(), Vec::new()))),
        ("no channel webhook:shop", request(users(), content("en", "a", "", "webhook:shop"))),
        ("16384 bytes", data(large((16 << 10) + 1))),
        ("an object", data(json!([]))),
        ("in the past", Request { expires_at: Some(Timestamp::from_millis(1)), ..sound.clone() }),
        (
            "no template \"x\" for services; there is none",
            request(users(), Content::Template("x".to_owned())),
        ),
        // It is for an event.
        ("no template \"sold\"", request(users(), Content::Template("sold".to_owned()))),
    ];
    for (expected, request) in refused {
        let error = house.notifications.send("shop", "k", &request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{expected}");
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
    assert_eq!(house.all(*ann.as_uuid()).await.len(), 2);
    // Named twice, a channel is one.
    let Content::Texts(texts, _) = texts("Hello") else { panic!("they are texts") };
    let twice = Content::Texts(texts, vec![Channel::Live, Channel::Log, Channel::Live]);
    house.notifications.send("shop", "twice", &request(users(), twice)).await.unwrap();
    assert_eq!(house.count(LIVE).await, 3);
}

async fn a_template_for_services_needs_its_fields(place: &SqlPlace) {
    let setup = Setup::with(|config| {
        let mut news = template(None, &["what", "by", "color"], "{what} by {by|somebody}");
        news.channels = Vec::new();
        news.expires_after = Some(Duration::from_secs(60));
        config.templates.insert("news".to_owned(), news);
    });
    let house = House::open(place, setup).await;
    let ann = house.user("ann").await;
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
        let error = house.notifications.send("shop", "k", &news(data)).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains(missing), "{error}");
    }
    let full = json!({ "what": "Peace", "by": "all", "color": "red" });
    house.notifications.send("shop", "1", &news(full)).await.unwrap();
    // What has a fallback may be absent.
    house.notifications.send("shop", "2", &news(json!({ "what": "War", "color": "red" }))).await.unwrap();
    assert_eq!(house.titles(*ann.as_uuid()).await, ["Peace by all", "War by somebody"]);
    let one = house.all(*ann.as_uuid()).await.remove(0);
    let left = one.expires_at.unwrap() - one.created_at;
    assert!((50_000..=60_000).contains(&left), "{left}");
    assert_eq!(one.template, "news");
    assert_eq!(house.count(LIVE).await, 0);
}

/// Makes so many users in a moment, and no others.
pub(crate) async fn people(house: &House, count: usize) -> Vec<Uuid> {
    let users: Vec<Uuid> = (0..count).map(|_| *UserId::generate().as_uuid()).collect();
    // No other user gets it.
    house.sql("DELETE FROM users").await;
    house.add_users(users.iter().copied()).await;
    users
}

pub(crate) fn broadcast(house: &House) -> Running {
    let (notifications, id, drain) = (house.notifications.clone(), house.id, runtime::Drain::new());
    let until = drain.clone();
    let task = tokio::spawn(async move {
        notifications.broadcasts().run(id, notifications.clone(), until).await.unwrap();
    });
    Running { drain, task }
}

pub(crate) async fn all_have(house: &House, users: &[Uuid], title: &str) {
    let mut connection = house.db.connection().await.unwrap();
    let told: Vec<(Vec<u8>, i64, String)> = db::on!(connection, raw => {
        sqlx::query_as("SELECT user_id, position, texts FROM notification").fetch_all(raw).await.unwrap()
    });
    assert!(told.iter().all(|(_, position, texts)| *position == 1 && texts.contains(title)));
    let distinct: HashSet<Uuid> = told.iter().map(|(user, ..)| Uuid::from_slice(user).unwrap()).collect();
    assert_eq!((told.len(), distinct.len()), (users.len(), users.len()));
    assert!(users.iter().all(|user| distinct.contains(user)));
}

async fn all_are_told_once_whoever_stops_in_the_middle(place: &SqlPlace) {
    let house =
        House::open(place, Setup::with(|config| config.delivery.lease = Duration::from_secs(1))).await;
    let users = people(&house, 2_300).await;
    let erased = house.user("ann").await;
    house.accounts.erase(erased, "test").await.unwrap();
    let all = request(Recipients::All, texts("To all"));
    let (sent, _) = house.notifications.send("shop", "k", &all).await.unwrap();
    assert_eq!(sent.told, None);
    let progress = async || house.notifications.broadcasts().progress(sent.id).await.unwrap().unwrap();
    assert_eq!((progress().await.state, progress().await.told), (State::Pending, 0));
    // Workers that die in the middle, wherever they are.
    for _ in 0..2 {
        let before = progress().await.told;
        let dying = broadcast(&house);
        testkit::eventually("it goes on", PATIENCE, async || progress().await.told > before).await;
        dying.task.abort();
        let _ = dying.task.await;
    }
    let told = progress().await.told;
    assert!(told >= 500, "{told}");
    // One that is told to stop gives it back at once.
    let working = broadcast(&house);
    testkit::eventually("all are told", PATIENCE, async || progress().await.state == State::Done).await;
    working.stop().await;
    assert_eq!(progress().await.told, 2_300);
    all_have(&house, &users, "To all").await;
    // Nobody is told again.
    assert!(house.notifications.send("shop", "k", &all).await.unwrap().1);
    assert_eq!(house.count(notification::BROADCAST).await, 1);
    assert_eq!(house.notifications.broadcasts().progress(uuid(7)).await.unwrap(), None);
}

async fn a_broadcast_goes_on_where_another_worker_was(place: &SqlPlace) {
    let setup = Setup::with(|config| config.delivery.lease = Duration::from_secs(60));
    let house = House::open(place, setup).await;
    let users = people(&house, 2_300).await;
    let all = request(Recipients::All, texts("To all"));
    let (sent, _) = house.notifications.send("shop", "k", &all).await.unwrap();
    let queue = house.queue(notification::BROADCAST);
    // One that is slow loses it to another one, and finds out before it tells anybody twice.
    let slow = broadcast(&house);
    let told = async || house.notifications.broadcasts().progress(sent.id).await.unwrap().unwrap();
    testkit::eventually("it goes on", PATIENCE, async || told().await.told >= 500).await;
    house.sql(&format!("UPDATE {} SET due_at = 0 WHERE state = 0", notification::BROADCAST)).await;
    let fast = house.another(place, house.setup.clone()).await;
    let fast = broadcast(&fast);
    testkit::eventually("all are told", PATIENCE, async || told().await.state == State::Done).await;
    slow.stop().await;
    fast.stop().await;
    all_have(&house, &users, "To all").await;
    assert_eq!(queue.list(work_queue::Filter::Done, 10).await.unwrap().len(), 1);
}
