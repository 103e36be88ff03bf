//! Removes banned and erased users from their parties.

use std::time::Duration;

use base::id::Uuid;
use bus::{Bus, Consumer, Delivery, Subscription};
use runtime::lifecycle::{Drain, LoopError};
use serde::Deserialize;

use super::Parties;

/// The consumer's name on the bus.
const CONSUMER: &str = "matchmaking-parties";
/// The events about users.
const SUBJECTS: &str = "user.>";
/// Those after which a user is in no party.
const REMOVING: [&str; 2] = ["user.banned.v1", "user.erased.v1"];
/// How long an event may stay unacknowledged before the bus delivers it to another process.
const ACK_WAIT: Duration = Duration::from_secs(10);
/// How long one fetch waits for events. A stop may have to wait this long.
const FETCH_WAIT: Duration = Duration::from_secs(1);
const BATCH: usize = 100;

/// Removes users from their parties when the bus says that they were banned or erased. Any number of processes can do so
/// at the same time. An event that arrives again changes nothing.
#[derive(Clone, Debug)]
pub(crate) struct AccountEvents {
    bus: Bus,
    parties: Parties,
}

#[derive(Deserialize)]
struct CloudEvent {
    data: UserData,
}

#[derive(Deserialize)]
struct UserData {
    user_id: Uuid,
}

impl AccountEvents {
    pub(crate) fn new(bus: Bus, parties: Parties) -> Self {
        Self { bus, parties }
    }

    pub(crate) async fn subscribe(&self) -> Result<Consumer, bus::Error> {
        let subscription = Subscription {
            name: CONSUMER.to_owned(),
            subjects: Some(SUBJECTS.to_owned()),
            ack_wait: ACK_WAIT,
            max_pending: BATCH * 16,
        };
        self.bus.subscribe(&subscription).await
    }

    /// Handles a batch of events. Waits up to `wait` for the first one. Returns how many there were.
    async fn tick(&self, consumer: &Consumer, wait: Duration) -> Result<usize, LoopError> {
        let deliveries = consumer.fetch(BATCH, wait).await?;
        for delivery in &deliveries {
            self.handle(delivery).await?;
        }
        Ok(deliveries.len())
    }

    async fn handle(&self, delivery: &Delivery) -> Result<(), LoopError> {
        if REMOVING.contains(&delivery.subject.as_str()) {
            match serde_json::from_slice::<CloudEvent>(&delivery.body) {
                Ok(event) => self.parties.remove(event.data.user_id).await?,
                Err(error) => {
                    tracing::error!(%error, subject = delivery.subject, "Cannot read an event about a user");
                }
            }
        }
        Ok(delivery.ack().await?)
    }

    /// Repeats [`tick`](Self::tick) until `drain` is requested.
    pub(crate) async fn run(&self, drain: Drain) -> Result<(), LoopError> {
        let consumer = self.subscribe().await?;
        while !drain.is_requested() {
            self.tick(&consumer, FETCH_WAIT).await?;
        }
        Ok(())
    }
}
