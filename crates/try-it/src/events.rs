//! An event that the bus refuses for good, to see how a blocked key looks and how it is mended.

use base::id::Uuid;
use base::{Clock, Code, Timestamp};
use bus::{Event, EventId, Json};
use db::Db;
use http_server::Problem;
use outbox::Outbox;
use serde_json::json;

use crate::tools::failed;

/// Appends events of this screen to the outbox.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) db: Db,
    pub(crate) outbox: Outbox,
    pub(crate) clock: Clock,
}

/// The events that were appended, and their key.
pub(crate) struct PlantedEvents {
    pub(crate) failed: Uuid,
    pub(crate) blocked: Uuid,
    pub(crate) key: String,
}

impl Events {
    /// Appends an event that no bus accepts, and one that waits behind it.
    pub(crate) async fn plant_failed(&self) -> Result<PlantedEvents, Problem> {
        let key = format!("try-it/{}", Uuid::now_v7());
        let now = self.clock.now();
        // A space is not allowed in a subject.
        let (first, second) =
            (event("try-it.not a subject", &key, now)?, event("try-it.blocked", &key, now)?);
        let planted = PlantedEvents { failed: *first.id.as_uuid(), blocked: *second.id.as_uuid(), key };
        self.append(&[(Uuid::nil(), first), (Uuid::nil(), second)])
            .await
            .map_err(|error| failed("outbox", &error))?;
        Ok(planted)
    }

    /// Appends events of a new key. Needs no lock: no other transaction appends to that key.
    async fn append(&self, events: &[(Uuid, Event)]) -> Result<(), db::Error> {
        self.db
            .bounded(async {
                let mut tx = self.db.begin().await?;
                self.outbox.append(&mut tx, events);
                tx.commit().await
            })
            .await
    }
}

fn event(subject: &str, key: &str, time: Timestamp) -> Result<Event, Problem> {
    let data = Json::from_value(&json!({ "about": "Planted by the screen Try it." }));
    Ok(Event {
        id: EventId::generate(),
        subject: subject.to_owned(),
        kind: "try-it.planted.v1".to_owned(),
        source: "/playhouse/try-it".to_owned(),
        time,
        key: Some(key.to_owned()),
        traceparent: None,
        data: data.map_err(|_| Problem::new(Code::Internal))?,
    })
}
