//! The live messages about a player's tickets, without an HTTP handler.

use std::time::Duration;

use buffa::Message as _;
use buffa_types::google::protobuf::{Any, StringValue};
use live::{Live, Message, Player, Subscription, Topic, Topics};
use matchmaking::{Error, Queue, TicketCreated, USER_FIELD};
use proto::openmatch;
use runtime::Drain;
use testkit::{Redis, need};

use crate::setup::{PATIENCE, Setup, Tickets, to, user};

for_every_store! {
    created_ticket_is_published_to_its_player_once,
    assigned_or_cancelled_ticket_is_not_published,
    ticket_of_the_open_match_frontend_is_not_published,
}

/// A marker that follows everything published before it.
enum Marker {}

impl Topic for Marker {
    type Key = Player;
    type Message = u64;
    const NAME: &'static str = "marker";
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Received {
    Created,
    Marker(u64),
    Gap,
}

impl Topics for Received {
    type Key = Player;

    fn read(message: &Message<Player>) -> Option<Self> {
        let marker = || message.read::<Marker>().map(|number| Self::Marker(*number));
        message.read::<TicketCreated>().map(|_| Self::Created).or_else(marker)
    }
}

/// The stream of a player, in any process.
struct Stream {
    live: Live,
    player: Player,
    subscription: Subscription<Received>,
}

impl Stream {
    async fn open(tickets: &Tickets, number: u128) -> Self {
        let (live, player) = (tickets.live.clone(), Player(user(number)));
        let running = live.clone();
        tokio::spawn(async move { running.run(Drain::new()).await });
        let subscription = live.subscribe(player).await;
        let mut stream = Self { live, player, subscription };
        stream.published().await;
        stream
    }

    /// Returns the messages published since the last call.
    async fn published(&mut self) -> Vec<Received> {
        let marker = fastrand::u64(..);
        self.live.publish::<Marker>(self.player, marker).await.unwrap();
        let mut all = Vec::new();
        loop {
            let next = tokio::time::timeout(PATIENCE, self.subscription.next()).await;
            match next.expect("the marker is received") {
                live::SubscriptionEvent::Message(Received::Marker(number)) if number == marker => return all,
                // The marker of another stream.
                live::SubscriptionEvent::Message(Received::Marker(_)) => {}
                live::SubscriptionEvent::Message(received) => all.push(received),
                live::SubscriptionEvent::Gap => {
                    all.push(Received::Gap);
                    // While a gap is pending, messages are dropped: the marker may be one of them.
                    self.live.publish::<Marker>(self.player, marker).await.unwrap();
                }
            }
        }
    }
}

async fn created_ticket_is_published_to_its_player_once(setup: Setup) {
    let tickets = setup.open().await;
    let elsewhere = tickets.elsewhere().await;
    let mut streams = [
        Stream::open(&tickets, 0).await,
        Stream::open(&elsewhere, 0).await,
        Stream::open(&elsewhere, 1).await,
    ];
    let players = tickets.players([("duel", Queue::default()), ("ranked", Queue::default())]);
    assert!(players.join(user(0), to("duel")).await.unwrap().is_new);
    let created = [Received::Created];
    for (stream, expected) in streams.iter_mut().zip([&created[..], &created, &[]]) {
        assert_eq!(stream.published().await, expected);
    }
    // Joining again returns the existing ticket, and another queue is refused: nothing is new.
    assert!(!players.join(user(0), to("duel")).await.unwrap().is_new);
    assert!(matches!(players.join(user(0), to("ranked")).await, Err(Error::OtherQueue { .. })));
    assert!(matches!(players.join(user(0), to("unknown")).await, Err(Error::Invalid(_))));
    for stream in &mut streams {
        assert_eq!(stream.published().await, []);
    }
}

async fn assigned_or_cancelled_ticket_is_not_published(setup: Setup) {
    let tickets = setup.open().await;
    let mut stream = Stream::open(&tickets, 0).await;
    let players = tickets.players([("duel", Queue::default())]);
    let cancelled = players.join(user(0), to("duel")).await.unwrap().ticket;
    players.leave(user(0), cancelled.id.as_str()).await.unwrap();
    let assigned = players.join(user(0), to("duel")).await.unwrap().ticket;
    assert_eq!(stream.published().await, [Received::Created; 2]);
    tickets.play("m1", &[&assigned]).await;
    assert_eq!(stream.published().await, []);
}

async fn ticket_of_the_open_match_frontend_is_not_published(setup: Setup) {
    let tickets = setup.open().await;
    let mut stream = Stream::open(&tickets, 0).await;
    let players = tickets.players([("duel", Queue::default())]);
    // Also if it says whose it is: only the use cases of players give a player a ticket.
    let mut ticket = openmatch::Ticket::default();
    let owner = StringValue { value: user(0).to_string(), ..Default::default() };
    let owner = Any {
        type_url: "type.googleapis.com/google.protobuf.StringValue".to_owned(),
        value: owner.encode_to_bytes(),
        ..Default::default()
    };
    ticket.persistent_field.insert(USER_FIELD.to_owned(), owner);
    let made = tickets.frontend.create(Some(ticket)).await.unwrap();
    let id = openmatch::Ticket::decode_from_slice(&made).unwrap().id;
    assert_eq!(tickets.frontend.get(&id).await.unwrap().id, id);
    assert_eq!(tickets.all().await.len(), 1, "it takes part");
    assert_eq!(players.tickets(user(0)).await.unwrap(), []);
    tickets.frontend.delete(&id).await.unwrap();
    assert_eq!(stream.published().await, []);
}

/// Processes of two versions understand each other during an upgrade.
#[tokio::test(flavor = "multi_thread")]
async fn channel_and_payload_are_unchanged() {
    use futures::StreamExt;

    let setup = Setup::script(need!(Redis::shared().await));
    let tickets = setup.open().await;
    let mut stream = Stream::open(&tickets, 0).await;
    let channel = tickets.key("live:00000000-0000-0000-0000-000000000001");
    let receivers: u64 = tickets.raw().await.ask(&["PUBLISH", &channel, "\"tickets\""]).await;
    assert_eq!(receivers, 1);
    assert_eq!(stream.published().await, [Received::Created]);

    let redis = redis_store::Redis::open(setup.url(), PATIENCE).await.unwrap();
    let other = redis.subscribe(&[channel], Duration::from_secs(60)).await.unwrap();
    let mut other = std::pin::pin!(other);
    tickets.players([("duel", Queue::default())]).join(user(0), to("duel")).await.unwrap();
    let published = tokio::time::timeout(PATIENCE, other.next()).await.unwrap().unwrap();
    assert_eq!(published.get_payload_bytes(), b"\"tickets\"");
}
