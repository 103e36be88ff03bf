//! What is told to those who listen.

use futures::StreamExt;
use futures::stream::BoxStream;
use matchmaking::store::{Push, Seen};

use crate::setup::{PATIENCE, Setup, group, id, ids, matches, only};

for_every_store! {
    every_listener_is_told_of_matches_and_of_those_who_left,
    a_look_tells_what_became_of_each_ticket,
    a_look_at_thousands_keeps_their_order,
}

async fn next(pushes: &mut BoxStream<'static, Push>) -> Push {
    tokio::time::timeout(PATIENCE, pushes.next()).await.expect("a push").expect("the store is there")
}

async fn every_listener_is_told_of_matches_and_of_those_who_left(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..5).await;
    let mut listeners = [tickets.pushes().await.unwrap(), tickets.elsewhere().await.pushes().await.unwrap()];
    tickets.delete(&id(99)).await.unwrap();
    tickets.delete(&id(4)).await.unwrap();
    tickets.assign(&[group("not", ids([0, 4]))]).await.unwrap();
    let groups = [group("one", ids([0, 1])), group("nor", ids([4])), group("two", ids([2]))];
    tickets.assign(&groups).await.unwrap();
    tickets.delete(&id(0)).await.unwrap();
    tickets.delete(&id(3)).await.unwrap();
    for pushes in &mut listeners {
        // These, in this order, and nothing for what was refused.
        let push = next(pushes).await;
        assert!(matches!(&push, Push::Gone(gone) if *gone == id(4)), "{push:?}");
        let Push::Assigned(made) = next(pushes).await else { panic!("no matches") };
        assert_eq!(matches(&made), [("one".to_owned(), ids([0, 1])), ("two".to_owned(), ids([2]))]);
        let push = next(pushes).await;
        assert!(matches!(&push, Push::Gone(gone) if *gone == id(3)), "{push:?}");
    }
}

async fn a_look_tells_what_became_of_each_ticket(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all(0..4).await;
    assert_eq!(tickets.look(&ids([0])).await.unwrap(), [Seen::Waiting]);
    let one = group("one", ids([1]));
    tickets.assign(std::slice::from_ref(&one)).await.unwrap();
    tickets.delete(&id(2)).await.unwrap();
    tickets.deindex(&id(3)).await.unwrap();
    let assigned = Seen::Assigned(only(&one));
    let seen = tickets.look(&ids([2, 1, 0, 99, 3, 1])).await.unwrap();
    assert_eq!(seen, [Seen::Gone, assigned.clone(), Seen::Waiting, Seen::Gone, Seen::Waiting, assigned]);
    assert_eq!(tickets.look(&[]).await.unwrap(), []);
}

async fn a_look_at_thousands_keeps_their_order(setup: Setup) {
    let tickets = setup.open().await;
    tickets.create_all((0..2500).step_by(2)).await;
    let made = group("match", ids((0..2500).step_by(4)));
    tickets.assign(std::slice::from_ref(&made)).await.unwrap();
    let seen = tickets.look(&ids(0..2500)).await.unwrap();
    assert_eq!(seen.len(), 2500);
    for (number, seen) in seen.into_iter().enumerate() {
        let expected = match number % 4 {
            0 => Seen::Assigned(only(&made).clone()),
            2 => Seen::Waiting,
            _ => Seen::Gone,
        };
        assert_eq!(seen, expected, "{number}");
    }
}
