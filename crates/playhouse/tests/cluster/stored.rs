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
