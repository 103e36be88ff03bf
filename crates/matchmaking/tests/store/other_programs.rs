//! Another program at the same Redis, which knows the five documented keys and no others.

use buffa::Message;
use matchmaking::store::{Deleted, Outcome, Seen};
use proto::openmatch;
use testkit::{Redis, need};

use crate::setup::{Raw, Setup, Tickets, data, group, id, ids, only, shuffled, ticket};

async fn both(redis: &Redis) -> [Tickets; 2] {
    [Setup::script(redis).open().await, Setup::lock(redis).open().await]
}

/// Makes a ticket as the other program does.
async fn write(tickets: &Tickets, raw: &mut Raw, id: &str, data: &[u8]) {
    raw.set(&tickets.key(id), data, 600).await;
    raw.ask::<()>(&["SADD", &tickets.key("allTickets"), id]).await;
}

#[tokio::test]
async fn its_tickets_are_handed_out_in_their_place_and_matched() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all([10, 30, 50]).await;
        for number in [40, 20, 5] {
            write(&tickets, &mut raw, id(number).as_str(), &data(number)).await;
        }
        let fetched = tickets.fetch(&"engine".into(), 4).await.unwrap();
        assert_eq!((fetched.ids, fetched.waiting), (ids([5, 10, 20, 30]), 6));
        assert_eq!(tickets.counter("tickets_adopted"), 3);
        let read = tickets.read(&ids([5, 20])).await.unwrap();
        assert_eq!(read[1].fields.tags, ["tag 20"]);
        assert_eq!(read[1].created, ticket(20).created);
        assert_eq!(tickets.take(10).await, ids([40, 50]));
        assert_eq!(tickets.counter("tickets_adopted"), 3, "once each");
        let outcome = tickets.assign(&[group("mixed", ids([5, 10]))]).await.unwrap();
        assert_eq!(outcome, [Outcome::Assigned]);
        assert_eq!(tickets.connection_of(&id(5)).await.as_deref(), Some("mixed"));
        assert_eq!(tickets.all().await, ids([20, 30, 40, 50]));
    }
}

#[tokio::test]
async fn its_tickets_are_matched_in_an_otherwise_empty_queue() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        for number in shuffled(1200) {
            write(&tickets, &mut raw, id(number).as_str(), &data(number)).await;
        }
        assert_eq!(tickets.take(1100).await, ids(0..1100));
        assert_eq!(tickets.take(1100).await, ids(1100..1200));
        assert_eq!(tickets.counter("tickets_adopted"), 1200);
    }
}

#[tokio::test]
async fn its_tickets_are_read_watched_and_taken_back_before_any_engine_saw_them() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        for number in 0..3 {
            write(&tickets, &mut raw, id(number).as_str(), &data(number)).await;
        }
        assert_eq!(tickets.find(&id(0)).await.unwrap().data, Some(data(0)));
        assert_eq!(tickets.look(&ids([0, 9])).await.unwrap(), [Seen::Waiting, Seen::Gone]);
        assert_eq!(tickets.delete(&id(0)).await.unwrap(), Deleted::Done);
        let outcome = tickets.assign(&[group("match", ids([1]))]).await.unwrap();
        assert_eq!(outcome, [Outcome::Assigned]);
        assert_eq!(tickets.take(10).await, ids([2]));
    }
}

#[tokio::test]
async fn its_strange_tickets_hold_up_nobody() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all([1]).await;
        // Without a time it is as old as can be; without data it is none; what cannot be read is found out by reading.
        let timeless = openmatch::Ticket { id: "timeless".to_owned(), ..Default::default() };
        write(&tickets, &mut raw, "timeless", &timeless.encode_to_vec()).await;
        write(&tickets, &mut raw, "broken", b"\xff\xff").await;
        raw.ask::<()>(&["SADD", &tickets.key("allTickets"), "empty", "not an id"]).await;
        let fetched = tickets.take(10).await;
        let fetched: Vec<&str> = fetched.iter().map(|id| id.as_str()).collect();
        assert_eq!(fetched, ["broken", "timeless", "t00001"]);
        let read = tickets.read(&tickets.list(10).await.unwrap().0).await.unwrap();
        let read: Vec<&str> = read.iter().map(|ticket| ticket.id.as_str()).collect();
        assert_eq!(read, ["timeless", "t00001"]);
        assert_eq!(tickets.take(10).await, []);
        let mut left: Vec<String> = raw.ask(&["SMEMBERS", &tickets.key("allTickets")]).await;
        left.sort();
        assert_eq!(left, ["not an id", "t00001", "timeless"]);
    }
}

#[tokio::test]
async fn what_it_takes_out_of_the_set_is_never_handed_out() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all(shuffled(6000)).await;
        // Those in front, and every third one behind them.
        let out: Vec<usize> = (0..1500).chain((1500..6000).filter(|number| number % 3 == 0)).collect();
        for chunk in out.chunks(500) {
            let key = tickets.key("allTickets");
            let ids = ids(chunk.iter().copied());
            let command: Vec<&str> =
                ["SREM", &key].into_iter().chain(ids.iter().map(|id| id.as_str())).collect();
            raw.ask::<()>(&command).await;
        }
        let left: Vec<usize> = (1500..6000).filter(|number| number % 3 != 0).collect();
        assert_eq!(tickets.take(400).await, ids(left[..400].iter().copied()));
        let fetched = tickets.fetch(&"engine".into(), 2500).await.unwrap();
        assert_eq!(fetched.ids, ids(left[400..2900].iter().copied()));
        assert_eq!(fetched.waiting, 3000);
        assert_eq!(tickets.take(2500).await, ids(left[2900..].iter().copied()));
        let queued: u64 = raw.ask(&["ZCARD", &tickets.key("ticketQueue")]).await;
        assert_eq!(queued, 3000, "what had left is forgotten");
    }
}

#[tokio::test]
async fn its_matches_stand() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all(0..4).await;
        assert_eq!(tickets.take(10).await, ids(0..4));
        let theirs = group("theirs", ids([0]));
        // It is done with the first; for the second it has only written the assignment so far.
        for number in 0..2 {
            raw.set(&tickets.key(&format!("assign:{}", id(number))), &only(&theirs), 60).await;
        }
        for command in ["SREM", "ZREM"] {
            let key = if command == "SREM" { "allTickets" } else { "proposed_ticket_ids" };
            raw.ask::<()>(&[command, &tickets.key(key), id(0).as_str()]).await;
        }
        let groups = [group("ours", ids([2, 0])), group("ours", ids([3, 1]))];
        let outcomes = tickets.assign(&groups).await.unwrap();
        assert_eq!(outcomes, [Outcome::Refused(id(0)), Outcome::Refused(id(1))]);
        for number in 0..2 {
            assert_eq!(tickets.delete(&id(number)).await.unwrap(), Deleted::Assigned);
            assert_eq!(tickets.connection_of(&id(number)).await.as_deref(), Some("theirs"));
        }
        tickets.release(&ids(0..4)).await.unwrap();
        assert!(!tickets.take(10).await.contains(&id(0)));
    }
}

#[tokio::test]
async fn what_it_marks_as_pending_is_left_to_it() {
    for tickets in both(need!(Redis::shared().await)).await {
        let mut raw = tickets.raw().await;
        tickets.create_all(0..3).await;
        let (now, _): (i64, u64) = raw.ask(&["TIME"]).await;
        let mut mark = async |number: usize, ago: i64| {
            let since = (now - ago).to_string();
            let key = tickets.key("proposed_ticket_ids");
            raw.ask::<()>(&["ZADD", &key, &since, id(number).as_str()]).await;
        };
        // One that it holds, and one that it has forgotten: the timeout is a minute.
        mark(0, 30).await;
        mark(1, 62).await;
        assert_eq!(tickets.take(10).await, ids([1, 2]));
    }
}
