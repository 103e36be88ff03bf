//! From the store's outbox to the event bus: every match that was made becomes one event.
//!
//! At least once: an entry leaves the outbox when the bus has acknowledged all its events. An event's id is that of its match, so
//! whoever gets it twice can tell.

use std::sync::Arc;
use std::time::Duration;

use base::Timestamp;
use base::id::ProcessId;
use bus::{Bus, Event, EventId, EventKind, Json};
use proto::playhouse::MatchMade;
use runtime::Drain;
use runtime::lifecycle::LoopError;
use serde::Serialize;
use serde_json::json;
use tokio::sync::Notify;

use crate::metrics::Metrics;
use crate::model::MatchId;
use crate::store::Store;
use crate::wire;

/// How often the outbox is looked at when nobody says that there is something.
const POLL: Duration = Duration::from_secs(1);
/// How long matches that are made one after the other are gathered: their players have been told already.
const GATHER: Duration = Duration::from_millis(50);
/// How long one relay may take before another takes over what it has taken.
const RETAKE: Duration = Duration::from_secs(30);
/// How many entries are taken at once. One holds up to some hundred matches.
const ENTRIES: usize = 32;

/// The kind of the event.
const MATCH_MADE: &str = "playhouse.match.made.v1";

/// Tells the bus of matches. Any number run at once.
#[derive(Clone, Debug)]
pub struct Relay {
    store: Store,
    bus: Bus,
    name: Arc<str>,
    metrics: Metrics,
    /// Matches have been made.
    made: Arc<Notify>,
    retake: Duration,
}

/// The data of the event.
#[derive(Serialize)]
struct Data<'a> {
    match_id: &'a str,
    match_profile: &'a str,
    match_function: &'a str,
    ticket_ids: &'a [String],
    user_ids: &'a [String],
    connection: &'a str,
}

impl Relay {
    pub fn new(id: ProcessId, store: Store, bus: Bus, made: Arc<Notify>, metrics: Metrics) -> Self {
        Self { store, bus, name: id.to_string().into(), metrics, made, retake: RETAKE }
    }

    /// The same relay, which takes over from another after another time.
    pub fn with_retake(self, retake: Duration) -> Self {
        Self { retake, ..self }
    }

    /// Tells the bus of what there is, once. Returns how many matches it told of.
    pub async fn tick(&self) -> Result<usize, LoopError> {
        Ok(self.step().await?.0)
    }

    /// Also says whether there may be more.
    async fn step(&self) -> Result<(usize, bool), LoopError> {
        let entries = self.store.take_events(&self.name, ENTRIES, self.retake).await?;
        let more = entries.len() >= ENTRIES;
        let mut told = 0;
        let mut done = Vec::new();
        let mut events = Vec::new();
        for entry in &entries {
            self.store.copy_assignments(&entry.made).await?;
            let matches = wire::matches_made(&entry.made);
            if matches.is_none() {
                tracing::error!(entry = entry.key, "an entry of matches cannot be read and is given up");
            }
            events.push(matches.iter().flatten().filter_map(event).collect::<Vec<_>>());
        }
        let results = self.bus.publish(&events.concat()).await;
        let mut failed = None;
        for ((entry, events), failure) in entries.into_iter().zip(&events).zip(failures(&events, results)) {
            match failure {
                None => {
                    told += events.len();
                    done.push(entry);
                }
                Some(error) => failed = Some(error),
            }
        }
        self.store.events_done(&done).await?;
        self.metrics.events_relayed.inc_by(told as u64);
        self.metrics.events_waiting.set(self.store.events_waiting().await?.try_into().unwrap_or(i64::MAX));
        match failed {
            Some(error) => Err(error.into()),
            None => Ok((told, more)),
        }
    }

    /// Tells the bus until told to stop.
    pub async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        while !drain.is_requested() {
            if self.step().await?.1 {
                continue;
            }
            tokio::select! {
                () = self.made.notified() => drop(drain.sleep(GATHER).await),
                () = tokio::time::sleep(POLL) => {}
                () = drain.requested() => {}
            }
        }
        // The engine's last tick may have been after ours.
        self.tick().await.map(drop)
    }
}

/// For each entry, why it has to stay. An event that the bus can never take would hold up its entry for ever, so it is given up;
/// all else may be mended.
fn failures(entries: &[Vec<Event>], results: Vec<Result<(), bus::Error>>) -> Vec<Option<bus::Error>> {
    let mut results = results.into_iter();
    let of_entry = |events: &Vec<Event>| {
        let mut stays = None;
        for event in events {
            match results.next().unwrap_or(Ok(())) {
                Ok(()) => {}
                Err(error) if error.is_hopeless() => {
                    tracing::error!(event = %event.id, cause = base::error::chain(&error), "an event is given up");
                }
                Err(error) => stays = Some(error),
            }
        }
        stays
    };
    entries.iter().map(of_entry).collect()
}

fn event(made: &MatchMade) -> Option<Event> {
    let id: MatchId = made.match_id.parse().ok()?;
    let data = Data {
        match_id: &made.match_id,
        match_profile: &made.match_profile,
        match_function: &made.match_function,
        ticket_ids: &made.ticket_ids,
        user_ids: &made.user_ids,
        connection: &made.assignment.connection,
    };
    Some(Event {
        id: EventId::from_uuid(*id.as_uuid()),
        subject: MATCH_MADE.trim_start_matches("playhouse.").to_owned(),
        kind: MATCH_MADE.to_owned(),
        source: "/playhouse/matchmaking".to_owned(),
        time: Timestamp::from_millis(made.made_at),
        key: Some(made.match_id.clone()),
        traceparent: Some(made.traceparent.clone()).filter(|trace| !trace.is_empty()),
        data: Json::of(&data).ok()?,
    })
}

/// Every kind of event that is told here.
pub fn events() -> Vec<EventKind> {
    let text = json!({ "type": "string" });
    let schema = json!({
        "type": "object",
        "required": ["match_id", "match_profile", "match_function", "ticket_ids", "user_ids", "connection"],
        "properties": {
            "match_id": text, "match_profile": text, "match_function": text,
            "ticket_ids": { "type": "array", "items": text, "description": "The tickets that play." },
            "user_ids": {
                "type": "array", "items": text,
                "description": "Who plays. Tickets of Open Match clients that name no player add nobody.",
            },
            "connection": { "type": "string", "description": "Where the match is played." },
        },
    });
    let summary = "A match was made, and its tickets were assigned to a server.";
    vec![EventKind { kind: MATCH_MADE, summary, key: "{match_id}", schema }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_when_any_of_its_events_failed_and_no_other_does() {
        let made = || MatchMade { match_id: MatchId::generate().to_string(), ..Default::default() };
        let entry = |size: usize| (0..size).filter_map(|_| event(&made())).collect::<Vec<_>>();
        let away = || Err(bus::Error::NoJetStream);
        let results = vec![away(), Ok(()), Ok(()), Ok(()), Ok(()), Ok(()), away()];
        let stays: Vec<bool> = failures(&[entry(3), entry(2), entry(0), entry(2)], results)
            .iter()
            .map(Option::is_some)
            .collect();
        assert_eq!(stays, [true, false, false, true]);
    }
}
