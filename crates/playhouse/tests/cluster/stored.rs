//! What the stream has in the end.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

use async_nats::jetstream::{self, consumer::AckPolicy, consumer::pull};
use futures::StreamExt;
use serde_json::Value;

use super::shop::{self, STREAM, Told};

/// All events of the stream.
pub(crate) struct Stored {
    grants: Vec<Told>,
    /// Id and tickets, in the order of the stream.
    matches: Vec<(String, HashSet<String>)>,
}

/// What was compared.
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
            let told = shop::told(&body);
            if told.version.is_some() {
                stored.grants.push(told);
            } else if body["data"]["match_id"].is_string() {
                let tickets = serde_json::from_value(body["data"]["ticket_ids"].clone()).unwrap();
                stored.matches.push((told.id, tickets));
            }
        }
        stored
    }

    /// Everything that was answered or assigned is here once, and the events of each key are in order.
    pub(crate) fn check(self, bought: &BTreeSet<String>, assigned: &HashMap<String, Vec<String>>) -> Verdict {
        shop::once_and_in_order(&self.grants, bought);
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

/// Changes one thing in what was read.
type Damage = fn(&mut Stored);

/// Two entitlements with their changes, and two matches.
fn sound() -> (Stored, BTreeSet<String>, HashMap<String, Vec<String>>) {
    let grant = |key: &str, version| Told {
        id: format!("{key}-{version}"),
        key: key.to_owned(),
        version: Some(version),
    };
    let grants = vec![grant("a", 1), grant("b", 1), grant("a", 2), grant("a", 3), grant("b", 2)];
    let made = |id: &str| (id.to_owned(), [format!("{id}-1"), format!("{id}-2")]);
    let matches = [made("one"), made("two")];
    let bought = grants.iter().map(|told| told.id.clone()).collect();
    let assigned = matches.iter().map(|(id, tickets)| (id.clone(), tickets.to_vec())).collect();
    let matches = matches.into_iter().map(|(id, tickets)| (id, tickets.into())).collect();
    (Stored { grants, matches }, bought, assigned)
}

/// A check that cannot fail shows nothing: each kind of damage alone makes it fail.
#[test]
fn the_check_finds_what_is_lost_doubled_or_out_of_order() {
    let passes = |damage: Damage| {
        let (mut stored, bought, assigned) = sound();
        damage(&mut stored);
        std::panic::catch_unwind(|| stored.check(&bought, &assigned)).is_ok()
    };
    assert!(passes(|_| {}));
    assert!(passes(|stored| stored.grants.swap(0, 1)), "keys have no order among each other");
    let damages: [(&str, Damage); 9] = [
        ("a grant is stored twice in a row", |stored| stored.grants.insert(1, stored.grants[0].clone())),
        ("a grant is stored twice, the second time at the end", |stored| {
            stored.grants.push(stored.grants[0].clone());
        }),
        ("a grant is lost", |stored| drop(stored.grants.remove(2))),
        ("the last grant is lost", |stored| drop(stored.grants.pop())),
        ("two grants of a key are swapped", |stored| stored.grants.swap(0, 2)),
        ("a grant was never answered", |stored| {
            stored.grants.push(Told { id: "x".to_owned(), key: "c".to_owned(), version: Some(1) });
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
