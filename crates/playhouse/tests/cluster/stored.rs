//! The events in the stream at the end, and the checks on them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

use async_nats::jetstream::{self, consumer::AckPolicy, consumer::pull};
use futures::StreamExt;
use serde_json::Value;

use super::shop::{self, STREAM, StreamedEvent};

/// All events of the stream.
pub(crate) struct Stored {
    grants: Vec<StreamedEvent>,
    /// The id and the tickets of each match, in the order of the stream.
    matches: Vec<(String, HashSet<String>)>,
}

/// The numbers of events that were checked.
pub(crate) struct Verdict {
    grants: usize,
    matches: usize,
}

impl Stored {
    pub(crate) async fn read(nats: Vec<String>) -> Self {
        let client = async_nats::connect(nats).await.unwrap();
        let stream = jetstream::new(client).get_stream(STREAM).await.unwrap();
        let count = stream.cached_info().state.messages.try_into().unwrap();
        let reader = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
        let mut messages =
            stream.create_consumer(reader).await.unwrap().messages().await.unwrap().take(count);
        let mut stored = Self { grants: Vec::new(), matches: Vec::new() };
        while let Some(message) = messages.next().await {
            let body: Value = serde_json::from_slice(&message.unwrap().payload).unwrap();
            let event = shop::streamed_event(&body);
            if event.version.is_some() {
                stored.grants.push(event);
            } else if body["data"]["match_id"].is_string() {
                let tickets = serde_json::from_value(body["data"]["ticket_ids"].clone()).unwrap();
                stored.matches.push((event.id, tickets));
            }
        }
        stored
    }

    /// Fails unless every answered grant and every assigned match is stored once, and the events of each key are in order.
    pub(crate) fn check(self, bought: &BTreeSet<String>, assigned: &HashMap<String, Vec<String>>) -> Verdict {
        shop::assert_once_and_in_order(&self.grants, bought);
        let mut seen = HashSet::new();
        for (id, tickets) in &self.matches {
            assert!(seen.insert(id), "the match {id} is in the stream twice");
            let players: HashSet<String> = assigned.get(id).into_iter().flatten().cloned().collect();
            assert_eq!(&players, tickets, "the event of match {id} names other tickets than were assigned");
        }
        let lost: Vec<&String> = assigned.keys().filter(|id| !seen.contains(id)).collect();
        assert!(lost.is_empty(), "{} of {} matches are lost: {lost:?}", lost.len(), assigned.len());
        Verdict { grants: self.grants.len(), matches: self.matches.len() }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { grants, matches } = self;
        write!(
            f,
            "{grants} grants and {matches} matches: none lost, none twice, every key in order, none given up"
        )
    }
}

/// Damages one thing in the events that were read.
type Damage = fn(&mut Stored);

/// Returns two entitlements with their changes, and two matches, all of them correct.
fn correct() -> (Stored, BTreeSet<String>, HashMap<String, Vec<String>>) {
    let grant = |key: &str, version| StreamedEvent {
        id: format!("{key}-{version}"),
        key: key.to_owned(),
        version: Some(version),
    };
    let grants = vec![grant("a", 1), grant("b", 1), grant("a", 2), grant("a", 3), grant("b", 2)];
    let new_match = |id: &str| (id.to_owned(), [format!("{id}-1"), format!("{id}-2")]);
    let matches = [new_match("one"), new_match("two")];
    let bought = grants.iter().map(|event| event.id.clone()).collect();
    let assigned = matches.iter().map(|(id, tickets)| (id.clone(), tickets.to_vec())).collect();
    let matches = matches.into_iter().map(|(id, tickets)| (id, tickets.into())).collect();
    (Stored { grants, matches }, bought, assigned)
}

/// Guards the check itself: each kind of damage alone makes it fail.
#[test]
fn check_finds_lost_duplicate_and_reordered_events() {
    let passes = |damage: Damage| {
        let (mut stored, bought, assigned) = correct();
        damage(&mut stored);
        std::panic::catch_unwind(|| stored.check(&bought, &assigned)).is_ok()
    };
    assert!(passes(|_| {}));
    assert!(passes(|stored| stored.grants.swap(0, 1)), "events of different keys have no order");
    let damages: [(&str, Damage); 9] = [
        ("a grant is stored twice in a row", |stored| stored.grants.insert(1, stored.grants[0].clone())),
        ("a grant is stored twice, the second time at the end", |stored| {
            stored.grants.push(stored.grants[0].clone());
        }),
        ("a grant is lost", |stored| drop(stored.grants.remove(2))),
        ("the last grant is lost", |stored| drop(stored.grants.pop())),
        ("two grants of a key are swapped", |stored| stored.grants.swap(0, 2)),
        ("a grant was never answered", |stored| {
            stored.grants.push(StreamedEvent { id: "x".to_owned(), key: "c".to_owned(), version: Some(1) });
        }),
        ("a match is stored twice", |stored| stored.matches.push(stored.matches[0].clone())),
        ("a match is lost", |stored| drop(stored.matches.pop())),
        ("an event of a match names another ticket", |stored| {
            stored.matches[0].1.insert("x".to_owned());
        }),
    ];
    for (what, damage) in damages {
        assert!(!passes(damage), "not noticed: {what}");
    }
}
