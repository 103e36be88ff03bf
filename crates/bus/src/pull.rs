//! Durable consumers of JetStream.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::consumer::pull::{self, BatchConfig};
use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy};
use async_nats::jetstream::stream::{ConsumerError, ConsumerErrorKind};
use async_nats::jetstream::{AckKind, ErrorCode, Message};
use async_nats::{Request, StatusCode, Subject};
use futures::StreamExt;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::consume::{Origin, Response};
use crate::publish::RECHECK;
use crate::read::strip_prefix;
use crate::{Delivery, Error, Nats, Subscription};

/// How often the server sends a heartbeat to a waiting request. A heartbeat also ends a request that has events but can get no more
/// because `max_pending` is reached. Otherwise it would wait until it expires.
const HEARTBEAT: Duration = Duration::from_millis(250);

/// Well strip_prefix the buffer of a client subscription, which discards messages beyond it.
const MAX_BATCH: usize = 10_000;

/// A durable consumer on NATS.
#[derive(Clone, Debug)]
pub(crate) struct NatsConsumer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    nats: Nats,
    subscription: Subscription,
}

/// How a pull request ended.
enum PullEnd {
    /// It got all requested events, or there are no more.
    Done,
    /// The server has lost the request: it restarted, or the connection changed.
    Lost,
    /// The consumer does not exist.
    NoConsumer,
}

impl Nats {
    pub(crate) async fn subscribe(&self, subscription: &Subscription) -> Result<NatsConsumer, Error> {
        self.ensure_consumer(subscription).await?;
        Ok(NatsConsumer(Arc::new(Inner { nats: self.clone(), subscription: subscription.clone() })))
    }

    /// Creates or updates the consumer according to the subscription.
    async fn ensure_consumer(&self, wanted: &Subscription) -> Result<(), Error> {
        if self.find_stream().await?.is_none() {
            self.ensure_stream().await?;
        }
        if let Some(found) = self.find_consumer(wanted).await? {
            self.check_consumer(wanted, &found)?;
        }
        let config = pull::Config {
            durable_name: Some(wanted.name.clone()),
            filter_subject: self.filter(wanted),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ack_wait: wanted.ack_wait,
            max_ack_pending: wanted.max_pending.try_into().unwrap_or(i64::MAX),
            ..pull::Config::default()
        };
        let created = self.jetstream.create_consumer_on_stream(config, &self.stream.name);
        match timeout(self.timeout, created).await.map_err(Error::unreachable)? {
            Ok(_) => Ok(()),
            Err(error) => Err(refusal(wanted, error)),
        }
    }

    /// Returns the configuration of the existing consumer, or `None`.
    async fn find_consumer(&self, wanted: &Subscription) -> Result<Option<consumer::Config>, Error> {
        let found = self
            .jetstream
            .get_consumer_from_stream::<consumer::Config, _, _>(&wanted.name, &self.stream.name);
        match timeout(self.timeout, found).await.map_err(Error::unreachable)? {
            Ok(found) => Ok(Some(found.cached_info().config.clone())),
            Err(error) => match error.kind() {
                ConsumerErrorKind::JetStream(said)
                    if matches!(
                        said.error_code(),
                        ErrorCode::CONSUMER_NOT_FOUND | ErrorCode::STREAM_NOT_FOUND
                    ) =>
                {
                    Ok(None)
                }
                _ => Err(refusal(wanted, error)),
            },
        }
    }

    /// Fails if the existing consumer cannot be used. The server itself refuses other settings that cannot change.
    fn check_consumer(&self, wanted: &Subscription, found: &consumer::Config) -> Result<(), Error> {
        const REMEDY: &str = "choose another name, or remove that consumer if it is not needed";
        if found.deliver_subject.is_some() {
            return Err(wanted.unusable(format!("it pushes events to {:?}; {REMEDY}", found.deliver_subject)));
        }
        if found.ack_policy != AckPolicy::Explicit {
            return Err(
                wanted.unusable(format!("it does not require each event to be acknowledged; {REMEDY}"))
            );
        }
        let requested = self.filter(wanted);
        if found.filter_subject != requested || !found.filter_subjects.is_empty() {
            let existing = [found.filter_subjects.join(", "), found.filter_subject.clone()].concat();
            let all = format!("{}.>", self.stream.prefix);
            let named = |subjects: String| if subjects.is_empty() { all.clone() } else { subjects };
            return Err(wanted.subjects_differ(&named(existing), &named(requested)));
        }
        Ok(())
    }

    /// Returns the subject filter. Empty for all subjects, as NATS defines it.
    fn filter(&self, wanted: &Subscription) -> String {
        let full = |subjects: &String| format!("{}.{subjects}", self.stream.prefix);
        wanted.subjects.as_ref().map(full).unwrap_or_default()
    }
}

impl NatsConsumer {
    pub(crate) fn name(&self) -> &str {
        &self.0.subscription.name
    }

    /// Returns the position up to which everything is acknowledged.
    pub(crate) async fn ack_floor(&self) -> Result<u64, Error> {
        let Inner { nats, subscription } = &*self.0;
        let found = nats
            .jetstream
            .get_consumer_from_stream::<consumer::Config, _, _>(&subscription.name, &nats.stream.name);
        let found = timeout(nats.timeout, found).await.map_err(Error::unreachable)?;
        let found = found.map_err(|error| refusal(subscription, error))?;
        Ok(found.cached_info().ack_floor.stream_sequence)
    }

    pub(crate) async fn fetch(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, Error> {
        let nats = &self.0.nats;
        // The client would buffer the request and send it after it reconnects, when the caller no longer waits.
        if nats.client.connection_state() == State::Disconnected {
            return Err(Error::unreachable(io::Error::from(ErrorKind::NotConnected)));
        }
        let until = Instant::now() + wait;
        let mut taken = Vec::new();
        let ended = timeout_at(until + nats.timeout, self.pull_until(&mut taken, max, until)).await;
        match ended {
            // These were delivered, whatever happened afterwards.
            _ if !taken.is_empty() => Ok(taken),
            Ok(ended) => ended.map(|()| taken),
            Err(elapsed) => Err(Error::unreachable(elapsed)),
        }
    }

    /// Pulls until there are events or the time is over. Creates the consumer again if it has vanished.
    async fn pull_until(&self, taken: &mut Vec<Delivery>, max: usize, until: Instant) -> Result<(), Error> {
        let Inner { nats, subscription } = &*self.0;
        for failures in 1.. {
            match self.pull_or_wait(taken, max, until.saturating_duration_since(Instant::now())).await? {
                _ if !taken.is_empty() => return Ok(()),
                PullEnd::Done | PullEnd::Lost if Instant::now() >= until => return Ok(()),
                // Other requests get the available events first, or `max_pending` is reached.
                PullEnd::Done => {}
                PullEnd::Lost => continue,
                PullEnd::NoConsumer => match nats.ensure_consumer(subscription).await {
                    Ok(()) if failures == 1 => continue,
                    // The consumer exists but accepts nothing: it is still recovering.
                    Ok(()) | Err(Error::Unreachable(_)) => {}
                    Err(error) => return Err(error),
                },
            }
            sleep(RECHECK.after(failures)).await;
        }
        Ok(())
    }

    /// Pulls the available events. If there are none, waits for the first.
    async fn pull_or_wait(
        &self,
        taken: &mut Vec<Delivery>,
        max: usize,
        wait: Duration,
    ) -> Result<PullEnd, Error> {
        // A short wait may expire before a busy server begins to deliver.
        if wait < 2 * HEARTBEAT {
            let end = self.pull(taken, max, None).await?;
            let is_empty = matches!(end, PullEnd::Done) && taken.is_empty();
            if !is_empty || wait.is_zero() {
                return Ok(end);
            }
        }
        self.pull(taken, max, Some(wait)).await
    }

    /// Sends one pull request. It ends with the available events. Without events it ends at once, or after `wait` if one is given.
    async fn pull(
        &self,
        taken: &mut Vec<Delivery>,
        max: usize,
        wait: Option<Duration>,
    ) -> Result<PullEnd, Error> {
        let Inner { nats, subscription } = &*self.0;
        let batch = max.min(subscription.max_pending).min(MAX_BATCH);
        // The server refuses a heartbeat that is longer than half of the wait.
        let heartbeat = wait.filter(|wait| *wait >= 2 * HEARTBEAT).map(|_| HEARTBEAT);
        // A live server is never silent for longer. Half of the timeout is left for other work.
        let max_silence = heartbeat.or(wait).unwrap_or_default() + HEARTBEAT.min(nats.timeout / 2);
        let request = BatchConfig {
            batch,
            expires: wait,
            no_wait: true,
            idle_heartbeat: heartbeat.unwrap_or_default(),
            ..BatchConfig::default()
        };
        let request = serde_json::to_vec(&request).map_err(Error::unreachable)?;
        let inbox = nats.client.new_inbox();
        let mut responses = nats.client.subscribe(inbox.clone()).await.map_err(Error::unreachable)?;
        let subject = format!("CONSUMER.MSG.NEXT.{}.{}", nats.stream.name, subscription.name);
        let request = Request::new().payload(request.into()).inbox(inbox);
        nats.jetstream.send_request(subject, request).await.map_err(Error::unreachable)?;
        let mut is_confirmed = false;
        loop {
            let response = match timeout(max_silence, responses.next()).await {
                Ok(response) => response,
                Err(_) if is_confirmed => return Ok(PullEnd::Lost),
                // The server does not refuse a request to a missing consumer, so look for the consumer.
                Err(_) => tokio::select! {
                    biased;
                    response = responses.next() => response,
                    found = nats.find_consumer(subscription) => match found? {
                        // A request without a wait is also not refused if `max_pending` is reached.
                        Some(_) if wait.is_none() => return Ok(PullEnd::Done),
                        Some(_) => {
                            is_confirmed = true;
                            continue;
                        }
                        None => return Ok(PullEnd::NoConsumer),
                    },
                },
            };
            let closed = || Error::unreachable(io::Error::from(ErrorKind::ConnectionAborted));
            let response = response.ok_or_else(closed)?;
            is_confirmed = false;
            let said = response.description.as_deref().unwrap_or_default();
            match response.status {
                None | Some(StatusCode::OK) => {
                    taken.push(self.delivery(response)?);
                    if taken.len() >= batch {
                        return Ok(PullEnd::Done);
                    }
                }
                Some(StatusCode::IDLE_HEARTBEAT) => {}
                Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => return Ok(PullEnd::Done),
                Some(StatusCode::NO_RESPONDERS) => return Ok(PullEnd::NoConsumer),
                Some(_) if said.eq_ignore_ascii_case("Consumer Deleted") => return Ok(PullEnd::NoConsumer),
                Some(status) => {
                    return Err(Error::unreachable(io::Error::other(format!("{status} {said}"))));
                }
            }
        }
    }

    fn delivery(&self, message: async_nats::Message) -> Result<Delivery, Error> {
        let nats = &self.0.nats;
        let message = Message { message, context: nats.jetstream.clone() };
        let no_event = || Error::unreachable(io::Error::other("a response that is not an event"));
        let info = message.info().map_err(|_| no_event())?;
        let (position, attempt) = (info.stream_sequence, info.delivered.try_into().unwrap_or(1));
        let message = message.message;
        let reply = message.reply.ok_or_else(no_event)?;
        let subject = strip_prefix(&message.subject, &nats.stream.prefix).to_owned();
        let origin = Origin::Nats { consumer: self.clone(), reply };
        Ok(Delivery { position, attempt, subject, body: message.payload, origin })
    }

    /// Sends the response as a request, which the server confirms. The client's own double acknowledgement treats "no responders" as a
    /// confirmation.
    pub(crate) async fn respond(
        &self,
        reply: &Subject,
        response: Response,
        started: Instant,
    ) -> Result<(), Error> {
        let nats = &self.0.nats;
        let kind = match response {
            Response::Done => AckKind::Ack,
            Response::RedeliverAfter(Duration::ZERO) => AckKind::Nak(None),
            Response::RedeliverAfter(after) => AckKind::Nak(Some(after)),
            // Without the reason: NATS before 2.10 misreads it as another command.
            Response::GivenUp => AckKind::Term,
            Response::InProgress => AckKind::Progress,
        };
        let confirmed = nats.client.request(reply.clone(), kind.into());
        let confirmed = timeout_at(started + nats.timeout, confirmed).await.map_err(Error::unreachable)?;
        confirmed.map(drop).map_err(Error::unreachable)
    }
}

fn refusal(wanted: &Subscription, error: ConsumerError) -> Error {
    match error.kind() {
        ConsumerErrorKind::JetStream(said)
            if said.code() != 503 && said.error_code() != ErrorCode::STREAM_NOT_FOUND =>
        {
            wanted.unusable(said.to_string())
        }
        _ => Error::unreachable(error),
    }
}
