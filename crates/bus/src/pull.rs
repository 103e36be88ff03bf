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

use crate::consume::{Answer, Origin};
use crate::publish::LOOK_AGAIN;
use crate::read::below;
use crate::{Delivery, Error, Nats, Subscription};

/// How often the server tells somebody who waits that it is still there. It also ends a request that has got something and
/// cannot get more because `max_pending` is reached, which would otherwise wait to its end.
const HEARTBEAT: Duration = Duration::from_millis(250);

/// Well below what the client holds for a subscription; it discards what is more.
const LARGEST_BATCH: usize = 10_000;

/// A durable consumer on NATS.
#[derive(Clone, Debug)]
pub(crate) struct NatsConsumer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    nats: Nats,
    subscription: Subscription,
}

/// How a request for events ended.
enum End {
    /// With all that were asked for, or there are no more.
    Done,
    /// The server has forgotten it: it was started again, or the connection was another one.
    Lost,
    /// Nobody took it: the consumer is not there.
    Untaken,
}

impl Nats {
    pub(crate) async fn subscribe(&self, subscription: &Subscription) -> Result<NatsConsumer, Error> {
        self.ensure_consumer(subscription).await?;
        Ok(NatsConsumer(Arc::new(Inner { nats: self.clone(), subscription: subscription.clone() })))
    }

    /// Sees to it that the consumer is there and is as the subscription says.
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

    /// The consumer of that name as it is; `None` if there is none.
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

    /// What keeps us from using a consumer of that name. The server itself refuses what else cannot be changed.
    fn check_consumer(&self, wanted: &Subscription, found: &consumer::Config) -> Result<(), Error> {
        const REMEDY: &str = "choose another name, or remove that consumer if nobody needs it";
        if found.deliver_subject.is_some() {
            return Err(wanted.unusable(format!("it pushes events to {:?}; {REMEDY}", found.deliver_subject)));
        }
        if found.ack_policy != AckPolicy::Explicit {
            return Err(wanted.unusable(format!("it does not have each event acknowledged; {REMEDY}")));
        }
        let ours = self.filter(wanted);
        if found.filter_subject != ours || !found.filter_subjects.is_empty() {
            let theirs = [found.filter_subjects.join(", "), found.filter_subject.clone()].concat();
            let all = format!("{}.>", self.stream.prefix);
            let named = |subjects: String| if subjects.is_empty() { all.clone() } else { subjects };
            return Err(wanted.reads_others(&named(theirs), &named(ours)));
        }
        Ok(())
    }

    /// Empty for everything, as NATS has it.
    fn filter(&self, wanted: &Subscription) -> String {
        let full = |subjects: &String| format!("{}.{subjects}", self.stream.prefix);
        wanted.subjects.as_ref().map(full).unwrap_or_default()
    }
}

impl NatsConsumer {
    pub(crate) fn name(&self) -> &str {
        &self.0.subscription.name
    }

    /// The position up to which everything is acknowledged.
    pub(crate) async fn floor(&self) -> Result<u64, Error> {
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
        // The client would keep the request and send it once it is connected, when nobody waits for the events any more.
        if nats.client.connection_state() == State::Disconnected {
            return Err(Error::unreachable(io::Error::from(ErrorKind::NotConnected)));
        }
        let until = Instant::now() + wait;
        let mut taken = Vec::new();
        let ended = timeout_at(until + nats.timeout, self.pull_until(&mut taken, max, until)).await;
        match ended {
            // Whatever happened then, these were delivered to us.
            _ if !taken.is_empty() => Ok(taken),
            Ok(ended) => ended.map(|()| taken),
            Err(elapsed) => Err(Error::unreachable(elapsed)),
        }
    }

    /// Asks until there is something or the time is over, making the consumer anew where it has vanished.
    async fn pull_until(&self, taken: &mut Vec<Delivery>, max: usize, until: Instant) -> Result<(), Error> {
        let Inner { nats, subscription } = &*self.0;
        for failures in 1.. {
            match self.ask(taken, max, until.saturating_duration_since(Instant::now())).await? {
                _ if !taken.is_empty() => return Ok(()),
                End::Done | End::Lost if Instant::now() >= until => return Ok(()),
                // What is there, others wait for already. They have it in a moment, or `max_pending` is reached.
                End::Done => {}
                End::Lost => continue,
                End::Untaken => match nats.ensure_consumer(subscription).await {
                    Ok(()) if failures == 1 => continue,
                    // It is there and takes nothing: it is still being recovered.
                    Ok(()) | Err(Error::Unreachable(_)) => {}
                    Err(error) => return Err(error),
                },
            }
            sleep(LOOK_AGAIN.after(failures)).await;
        }
        Ok(())
    }

    /// Asks for what there is, and else for what comes first.
    async fn ask(&self, taken: &mut Vec<Delivery>, max: usize, wait: Duration) -> Result<End, Error> {
        // A short wait may be over before a busy server begins to deliver what it has.
        if wait < 2 * HEARTBEAT {
            let end = self.pull(taken, max, None).await?;
            let is_nothing = matches!(end, End::Done) && taken.is_empty();
            if !is_nothing || wait.is_zero() {
                return Ok(end);
            }
        }
        self.pull(taken, max, Some(wait)).await
    }

    /// One request. It ends with the events that there are; if there are none at once or, with a wait, when that is over.
    async fn pull(
        &self,
        taken: &mut Vec<Delivery>,
        max: usize,
        wait: Option<Duration>,
    ) -> Result<End, Error> {
        let Inner { nats, subscription } = &*self.0;
        let batch = max.min(subscription.max_pending).min(LARGEST_BATCH);
        // The server refuses a heartbeat that is longer than half of the wait.
        let heartbeat = wait.filter(|wait| *wait >= 2 * HEARTBEAT).map(|_| HEARTBEAT);
        // A server that is there is quiet for no longer. Half of the timeout is left for what there is to do otherwise.
        let quiet = heartbeat.or(wait).unwrap_or_default() + HEARTBEAT.min(nats.timeout / 2);
        let request = BatchConfig {
            batch,
            expires: wait,
            no_wait: true,
            idle_heartbeat: heartbeat.unwrap_or_default(),
            ..BatchConfig::default()
        };
        let request = serde_json::to_vec(&request).map_err(Error::unreachable)?;
        let inbox = nats.client.new_inbox();
        let mut answers = nats.client.subscribe(inbox.clone()).await.map_err(Error::unreachable)?;
        let subject = format!("CONSUMER.MSG.NEXT.{}.{}", nats.stream.name, subscription.name);
        let request = Request::new().payload(request.into()).inbox(inbox);
        nats.jetstream.send_request(subject, request).await.map_err(Error::unreachable)?;
        let mut is_known = false;
        loop {
            let answer = match timeout(quiet, answers.next()).await {
                Ok(answer) => answer,
                Err(_) if is_known => return Ok(End::Lost),
                // Nobody refuses what is asked of a consumer that is not there, so we have to look.
                Err(_) => tokio::select! {
                    biased;
                    answer = answers.next() => answer,
                    found = nats.find_consumer(subscription) => match found? {
                        // Without an end it is not refused either where `max_pending` is reached.
                        Some(_) if wait.is_none() => return Ok(End::Done),
                        Some(_) => {
                            is_known = true;
                            continue;
                        }
                        None => return Ok(End::Untaken),
                    },
                },
            };
            let closed = || Error::unreachable(io::Error::from(ErrorKind::ConnectionAborted));
            let answer = answer.ok_or_else(closed)?;
            is_known = false;
            let said = answer.description.as_deref().unwrap_or_default();
            match answer.status {
                None | Some(StatusCode::OK) => {
                    taken.push(self.delivery(answer)?);
                    if taken.len() >= batch {
                        return Ok(End::Done);
                    }
                }
                Some(StatusCode::IDLE_HEARTBEAT) => {}
                Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => return Ok(End::Done),
                Some(StatusCode::NO_RESPONDERS) => return Ok(End::Untaken),
                Some(_) if said.eq_ignore_ascii_case("Consumer Deleted") => return Ok(End::Untaken),
                Some(status) => {
                    return Err(Error::unreachable(io::Error::other(format!("{status} {said}"))));
                }
            }
        }
    }

    fn delivery(&self, message: async_nats::Message) -> Result<Delivery, Error> {
        let nats = &self.0.nats;
        let message = Message { message, context: nats.jetstream.clone() };
        let no_event = || Error::unreachable(io::Error::other("an answer that is no event"));
        let info = message.info().map_err(|_| no_event())?;
        let (position, attempt) = (info.stream_sequence, info.delivered.try_into().unwrap_or(1));
        let message = message.message;
        let reply = message.reply.ok_or_else(no_event)?;
        let subject = below(&message.subject, &nats.stream.prefix).to_owned();
        let origin = Origin::Nats { consumer: self.clone(), reply };
        Ok(Delivery { position, attempt, subject, body: message.payload, origin })
    }

    /// As a request, which the server confirms. The client's own double acknowledgement takes "nobody is there" for a
    /// confirmation.
    pub(crate) async fn answer(
        &self,
        reply: &Subject,
        answer: Answer,
        started: Instant,
    ) -> Result<(), Error> {
        let nats = &self.0.nats;
        let kind = match answer {
            Answer::Done => AckKind::Ack,
            Answer::Again(Duration::ZERO) => AckKind::Nak(None),
            Answer::Again(after) => AckKind::Nak(Some(after)),
            // Without the reason, which NATS before 2.10 takes for another word altogether.
            Answer::GivenUp => AckKind::Term,
            Answer::InProgress => AckKind::Progress,
        };
        let told = nats.client.request(reply.clone(), kind.into());
        let told = timeout_at(started + nats.timeout, told).await.map_err(Error::unreachable)?;
        told.map(drop).map_err(Error::unreachable)
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
