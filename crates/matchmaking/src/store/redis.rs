//! Tickets in Redis: the five keys that minimatch documents, and our own keys (see docs/adr/0004).

mod abandoned;
mod assigners;
mod backfills;
mod changes;
mod claims;
mod error;
mod events;
mod foreign;
mod keys;
mod lock;
mod parties;
mod players;
mod ready;
mod rooms;
mod scripts;
mod trials;

use std::time::Duration;

use ::redis::FromRedisValue;
use ::redis::aio::ConnectionManager;
use base::id::Uuid;
use bytes::Bytes;
use config::Choice;
use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::BoxStream;
use redis_store::{Call, Key, Script};
use tokio::sync::Notify;

use super::ready::EndCause;
use super::{
    AssignOutcome, AssignResult, AssignmentGroup, Claim, DeleteOutcome, EngineName, Error, FetchedTickets,
    Membership, NewTicket, ReadyStates, Rules, StoredTicket, TicketEvent, TicketStatus, UnrecordedBatch,
    WaitingTimes, WatchState,
};
use crate::metrics::Metrics;
use crate::model::TicketId;
use crate::wire;
use runtime::batch::Batcher;

use self::foreign::{ForeignEngine, ForeignProgram};
use self::keys::Keys;
use self::lock::{Lock, LockGuard};
pub use self::trials::TRIALS;

/// How many tickets one script may touch. A script blocks Redis while it runs.
const BATCH: usize = 1000;

/// How long a subscription may be silent before it is pinged.
const PING_AFTER: Duration = Duration::from_secs(5);

/// How several processes coordinate their steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordination {
    /// Each step is one script.
    Script,
    /// Each step is one script that runs under the documented lock, for use beside programs that take this lock.
    Lock,
}

impl Choice for Coordination {
    const WORDS: &'static [(&'static str, Self)] = &[("script", Self::Script), ("lock", Self::Lock)];
}

/// Redis servers in addition to the primary.
#[derive(Clone, Debug, Default)]
pub struct RedisServers {
    /// The server that assignments are read from.
    pub assignments: Option<redis_store::Redis>,
    /// The replica that tickets are read from first.
    pub replica: Option<redis_store::Redis>,
}

#[derive(Clone, Debug)]
pub struct Redis {
    servers: Servers,
    keys: Keys,
    rules: Rules,
    lock: Lock,
    foreign: ForeignEngine,
    metrics: Metrics,
    create_batcher: Batcher<NewTicket, Result<(), Error>>,
    find_batcher: Batcher<TicketId, Result<StoredTicket, Error>>,
    membership_batcher: Batcher<Uuid, Result<Membership, Error>>,
}

/// The servers, by purpose.
#[derive(Clone, Debug)]
struct Servers {
    primary: redis_store::Redis,
    others: RedisServers,
}

impl Servers {
    fn is_single(&self) -> bool {
        self.others.assignments.is_none() && self.others.replica.is_none()
    }

    fn primary(&self) -> ConnectionManager {
        self.primary.connection.clone()
    }

    async fn run<T: FromRedisValue>(&self, step: &Call) -> Result<T, Error> {
        Ok(step.run(self.primary()).await?)
    }

    fn assignments(&self) -> ConnectionManager {
        self.others.assignments.as_ref().unwrap_or(&self.primary).connection.clone()
    }

    async fn find(&self, keys: &Keys, ids: &[TicketId]) -> Result<Vec<StoredTicket>, Error> {
        let assigns: Vec<Key> = ids.iter().map(|id| keys.assign(id)).collect();
        let (data, assignments) = if self.is_single() {
            let tickets = ids.iter().map(|id| keys.ticket(id));
            let mut data = get_many(self.primary(), &tickets.chain(assigns).collect::<Vec<_>>()).await?;
            let assignments = data.split_off(ids.len());
            (data, assignments)
        } else {
            tokio::try_join!(self.data(keys, ids), get_many(self.assignments(), &assigns))?
        };
        Ok(data
            .into_iter()
            .zip(assignments)
            .map(|(data, assignment)| StoredTicket { data, assignment })
            .collect())
    }

    /// Reads the data of tickets from the replica, and from the primary what the replica lacks.
    async fn data(&self, keys: &Keys, ids: &[TicketId]) -> Result<Vec<Option<Bytes>>, Error> {
        let keys: Vec<Key> = ids.iter().map(|id| keys.ticket(id)).collect();
        let Some(replica) = &self.others.replica else { return get_many(self.primary(), &keys).await };
        let mut data = get_many(replica.connection.clone(), &keys).await.unwrap_or_else(|error| {
            tracing::warn!(
                outage = "replica_url",
                cause = base::error::chain(&error),
                "The replica at matchmaking.replica_url does not answer; reading from the primary"
            );
            vec![None; ids.len()]
        });
        let missing: Vec<usize> = (0..data.len()).filter(|at| data[*at].is_none()).collect();
        if !missing.is_empty() {
            let keys: Vec<Key> = missing.iter().map(|at| keys[*at].clone()).collect();
            for (at, found) in missing.into_iter().zip(get_many(self.primary(), &keys).await?) {
                data[at] = found;
            }
        }
        Ok(data)
    }
}

impl Redis {
    pub(super) fn new(
        primary: redis_store::Redis,
        others: RedisServers,
        rules: Rules,
        metrics: Metrics,
    ) -> Self {
        let keys = Keys::new(&primary, &rules.key_prefix);
        let foreign = ForeignEngine::new(rules.coordination == Coordination::Lock, metrics.clone());
        let lock = Lock::new(primary.connection.clone(), &keys, foreign.clone());
        let servers = Servers { primary, others };
        let (batch_servers, batch_keys) = (servers.clone(), keys.clone());
        let create_batcher = Batcher::new(1, BATCH / 4, move |tickets| {
            create(batch_servers.clone(), batch_keys.clone(), tickets)
        });
        let (batch_servers, batch_keys) = (servers.clone(), keys.clone());
        let find_batcher =
            Batcher::new(1, BATCH / 4, move |ids| find(batch_servers.clone(), batch_keys.clone(), ids));
        let (batch_servers, batch_keys) = (servers.clone(), keys.clone());
        let membership_batcher = Batcher::new(1, BATCH / 4, move |users| {
            parties::memberships(batch_servers.clone(), batch_keys.clone(), users)
        });
        Self {
            servers,
            keys,
            rules,
            lock,
            foreign,
            metrics,
            create_batcher,
            find_batcher,
            membership_batcher,
        }
    }

    pub(super) const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Checks the primary and the server of assignments. A replica may be away: the primary stands in.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        let assignments = async {
            match &self.servers.others.assignments {
                Some(assignments) => assignments.ping().await,
                None => Ok(()),
            }
        };
        tokio::try_join!(self.servers.primary.ping(), assignments)?;
        Ok(())
    }

    /// Returns whether an engine of another program works on the tickets: it was seen lately, or is configured.
    pub(super) fn has_foreign_engine(&self) -> bool {
        self.must_lock()
    }

    /// Runs a script that hands out or assigns tickets. It includes `refuse_beside_lock.lua`: while another program
    /// holds the lock, or has left one of its keys behind, the script does nothing without the lock.
    async fn exclusive_step<T: FromRedisValue>(
        &self,
        script: &'static Script,
        own: impl IntoIterator<Item = Key>,
        args: impl Fn(&mut Call),
    ) -> Result<T, Error> {
        let keys: Vec<Key> = own.into_iter().chain(self.keys.library_lock()).collect();
        match self.step(script, keys.clone(), &args).await {
            Err(Error::Locked) if !self.must_lock() => {
                self.foreign.seen();
                self.step(script, keys, &args).await
            }
            done => done,
        }
    }

    fn must_lock(&self) -> bool {
        self.rules.coordination == Coordination::Lock || self.foreign.is_present()
    }

    /// Runs a script with its own keys, under the lock if the coordination requires it.
    async fn step<T: FromRedisValue>(
        &self,
        script: &'static Script,
        own: impl IntoIterator<Item = Key>,
        args: impl FnOnce(&mut Call),
    ) -> Result<T, Error> {
        let held = if self.must_lock() { Some(self.lock.acquire().await?) } else { None };
        let mut step = scripts::step(script, &self.keys, own, held.as_ref().map_or("", LockGuard::token));
        args(&mut step);
        let run = self.servers.run(&step);
        match held {
            None => run.await,
            Some(held) => {
                let done = held.run_extending(run).await;
                held.release().await;
                done
            }
        }
    }

    pub(super) async fn create(&self, ticket: NewTicket) -> Result<(), Error> {
        self.create_batcher.run(ticket).await.unwrap_or(Err(Error::Interrupted))
    }

    pub(super) async fn find(&self, id: &TicketId) -> Result<StoredTicket, Error> {
        self.find_batcher.run(id.clone()).await.unwrap_or(Err(Error::Interrupted))
    }

    pub(super) async fn watch_states(&self, ids: &[TicketId]) -> Result<Vec<WatchState>, Error> {
        let batches = ids.chunks(BATCH).map(|ids| self.watch_states_of_batch(ids));
        Ok(try_join_all(batches).await?.concat())
    }

    async fn watch_states_of_batch(&self, ids: &[TicketId]) -> Result<Vec<WatchState>, Error> {
        let assigns: Vec<Key> = ids.iter().map(|id| self.keys.assign(id)).collect();
        let mut states: Vec<WatchState> = get_many(self.servers.assignments(), &assigns)
            .await?
            .into_iter()
            .map(|assignment| assignment.map_or(WatchState::Waiting, WatchState::Assigned))
            .collect();
        let waiting: Vec<usize> = (0..ids.len()).filter(|at| states[*at] == WatchState::Waiting).collect();
        if waiting.is_empty() {
            return Ok(states);
        }
        // Usually all of them exist, which one EXISTS command shows.
        let keys: Vec<Key> = waiting.iter().map(|at| self.keys.ticket(&ids[*at])).collect();
        let existing: usize =
            ::redis::cmd("EXISTS").arg(&keys).query_async(&mut self.servers.primary()).await?;
        if existing < keys.len() {
            let mut each = ::redis::pipe();
            for key in &keys {
                each.cmd("EXISTS").arg(key);
            }
            let existing: Vec<bool> = each.query_async(&mut self.servers.primary()).await?;
            let lost = waiting.into_iter().zip(existing).filter(|(_, exists)| !exists);
            let lost: Vec<usize> = lost.map(|(at, _)| at).collect();
            // It may have been assigned after the first look and removed before the second.
            let assigns: Vec<Key> = lost.iter().map(|at| self.keys.assign(&ids[*at])).collect();
            if !lost.is_empty() {
                let assigned = get_many(self.servers.assignments(), &assigns).await?;
                for (at, assigned) in lost.into_iter().zip(assigned) {
                    states[at] = assigned.map_or(WatchState::Gone, WatchState::Assigned);
                }
            }
        }
        Ok(states)
    }

    pub(super) async fn delete(&self, id: &TicketId) -> Result<DeleteOutcome, Error> {
        let own = self.keys.ticket_and_assign(id.as_str()).into_iter().chain(self.keys.ready_checks());
        let own = own.chain([self.keys.ready_of(id)]);
        let add = |step: &mut Call| self.add_ready_args(step).end();
        let (deleted, has_ended_check): (u8, bool) = self.step(&scripts::DELETE, own, add).await?;
        if has_ended_check {
            self.metrics.ready_check_ended(EndCause::Lost);
        }
        match deleted {
            0 => Ok(DeleteOutcome::NotFound),
            1 => Ok(DeleteOutcome::Deleted),
            _ => Ok(DeleteOutcome::AlreadyAssigned),
        }
    }

    pub(super) async fn deindex(&self, id: &TicketId) -> Result<(), Error> {
        self.step(&scripts::DEINDEX, [self.keys.ticket(id)], |step| step.arg("0").end()).await
    }

    pub(super) async fn fetch(
        &self,
        engine: &EngineName,
        limit: usize,
        joined: Option<Claim>,
    ) -> Result<FetchedTickets, Error> {
        let timeout = self.rules.pending_timeout.as_secs();
        let most = self.rules.max_unrecorded;
        let own = || [self.keys.events(), self.keys.idle_engines(), self.keys.claim_number()];
        let joined = joined.map(|claim| claim.to_string()).unwrap_or_default();
        let add = |step: &mut Call| {
            step.arg(limit).arg(timeout).arg(&**engine).arg(most).arg(&*joined).end();
        };
        let (fetched, queued, foreign) =
            read_fetched(self.exclusive_step(&scripts::FETCH, own(), add).await?);
        self.foreign.holds_tickets(foreign);
        // Tickets written by another program are not in the queue yet. Once added, they may be older than the fetched
        // ones.
        if fetched.is_held_back || fetched.waiting <= queued {
            return Ok(fetched);
        }
        let again = async {
            if self.adopt().await? == 0 {
                return Ok(false);
            }
            self.release(Some(fetched.claim), &fetched.ids).await.map(|_| true)
        };
        match again.await {
            Ok(true) => {
                let (fetched, _, foreign) =
                    read_fetched(self.exclusive_step(&scripts::FETCH, own(), add).await?);
                self.foreign.holds_tickets(foreign);
                Ok(fetched)
            }
            Ok(false) => Ok(fetched),
            // The fetched tickets are usable all the same.
            Err::<_, Error>(error) => {
                tracing::warn!(
                    outage = "tickets",
                    cause = base::error::chain(&error),
                    "Cannot add tickets of other programs to the queue; retrying at the next fetch"
                );
                Ok(fetched)
            }
        }
    }

    /// Adds tickets that another program wrote to the queue. Returns how many.
    async fn adopt(&self) -> Result<u64, Error> {
        let ids: Vec<String> = ::redis::cmd("ZDIFF")
            .arg(2)
            .arg(self.keys.all())
            .arg(self.keys.queue())
            .query_async(&mut self.servers.primary())
            .await?;
        let mut adopted = 0;
        for ids in ids.chunks(BATCH) {
            let ids: Vec<TicketId> = ids.iter().filter_map(|id| TicketId::parse(id)).collect();
            // Unreadable tickets are added too: reading them for a match removes them and logs why.
            let created = |id: &TicketId, data: Bytes| {
                wire::decode_ticket(id.clone(), &data).map(|ticket| ticket.created)
            };
            let data = self.read(&ids).await?;
            let found =
                ids.iter().zip(data).filter_map(|(id, data)| data.map(|data| (id, created(id, data))));
            let places: Vec<(i64, &TicketId)> =
                found.map(|(id, created)| (created.unwrap_or_default().micros(), id)).collect();
            let add = |step: &mut Call| {
                places.iter().for_each(|(created, id)| step.arg(*created).arg(id.as_str()).end());
            };
            adopted += self.step::<u64>(&scripts::ADOPT, [], add).await?;
        }
        self.metrics.adopted.inc_by(adopted);
        Ok(adopted)
    }

    pub(super) async fn read(&self, ids: &[TicketId]) -> Result<Vec<Option<Bytes>>, Error> {
        let batches = ids.chunks(BATCH).map(|ids| self.servers.data(&self.keys, ids));
        let data = try_join_all(batches).await?.concat();
        let lost: Vec<&TicketId> =
            ids.iter().zip(&data).filter(|(_, data)| data.is_none()).map(|(id, _)| id).collect();
        for lost in lost.chunks(BATCH) {
            let own = lost.iter().map(|id| self.keys.ticket(id));
            let repaired = self.step(&scripts::DEINDEX, own, |step| step.arg("1").end()).await?;
            self.metrics.repaired.inc_by(repaired);
        }
        Ok(data)
    }

    pub(super) async fn remove_expired(&self, sample: usize) -> Result<usize, Error> {
        let mut choose = ::redis::cmd("SRANDMEMBER");
        choose.arg(self.keys.all()).arg(sample);
        let ids: Vec<String> = choose.query_async(&mut self.servers.primary()).await?;
        let ids: Vec<TicketId> = ids.iter().filter_map(|id| TicketId::parse(id)).collect();
        if ids.is_empty() {
            return Ok(0);
        }
        // Reading tickets removes those without data.
        Ok(self.read(&ids).await?.iter().filter(|data| data.is_none()).count())
    }

    pub(super) async fn assign(&self, groups: &[AssignmentGroup]) -> Result<AssignResult, Error> {
        let mut batches = vec![Vec::new()];
        let mut size = 0;
        for group in groups {
            if size + group.tickets.len() > BATCH && size > 0 {
                batches.push(Vec::new());
                size = 0;
            }
            size += group.tickets.len();
            if let Some(batch) = batches.last_mut() {
                batch.push(group);
            }
        }
        let mut all = AssignResult::default();
        for (outcomes, batch) in try_join_all(batches.iter().map(|batch| self.assign_batch(batch))).await? {
            all.outcomes.extend(outcomes);
            all.batches.extend(batch);
        }
        Ok(all)
    }

    async fn assign_batch(
        &self,
        groups: &[&AssignmentGroup],
    ) -> Result<(Vec<AssignOutcome>, Option<UnrecordedBatch>), Error> {
        let check = if self.rules.check_tickets { "1" } else { "0" };
        let lifetime = self.rules.assigned_ttl.as_millis() as u64;
        let tickets = || groups.iter().flat_map(|group| &group.tickets);
        let fences = || groups.iter().filter_map(|group| group.fence);
        let own = [self.keys.events(), self.keys.backfill_acks()]
            .into_iter()
            .chain(tickets().map(|id| self.keys.ticket(id)))
            .chain(tickets().map(|id| self.keys.assign(id)))
            .chain(fences().map(|id| self.keys.abandoned(&id)))
            .chain(
                groups.iter().filter_map(|group| group.room.as_ref()).map(|new| self.keys.backfill(&new.id)),
            );
        let add = |step: &mut Call| {
            step.arg(check).arg(lifetime).arg(tickets().count()).arg(fences().count());
            step.arg(self.rules.backfill_ttl().as_millis() as u64);
            for group in groups {
                let is_fenced = if group.fence.is_some() { "1" } else { "0" };
                let assignments = group.assignments.all();
                let claim = group.claim.map(|claim| claim.to_string()).unwrap_or_default();
                step.arg(group.tickets.len())
                    .arg(is_fenced)
                    .arg(claim)
                    .arg(&group.encoded_match[..])
                    .arg(assignments.len());
                assignments.iter().for_each(|assignment| step.arg(&assignment[..]).end());
                let Some(new) = &group.room else {
                    step.arg("0").end();
                    continue;
                };
                step.arg("1").arg(&new.fixed[..]);
                step.arg(rooms::to_json(&new.room.origin)).arg(rooms::to_json(&new.room.teams));
                let seat = |id: &TicketId| new.seats.get(id).cloned().unwrap_or_default();
                group.tickets.iter().for_each(|id| step.arg(rooms::to_json(&seat(id))).end());
            }
        };
        let (key, obstacles): (Option<String>, Vec<(i64, bool)>) =
            self.exclusive_step(&scripts::ASSIGN, own, add).await?;
        let outcomes: Vec<AssignOutcome> =
            groups.iter().zip(obstacles).map(|(group, obstacle)| outcome(group, obstacle)).collect();
        let assigned =
            groups.iter().zip(&outcomes).filter(|(_, outcome)| **outcome == AssignOutcome::Assigned);
        let batch = key.map(|key| {
            let matches: Vec<&[u8]> = assigned.map(|(group, _)| &group.encoded_match[..]).collect();
            UnrecordedBatch { key, matches: matches.concat().into() }
        });
        Ok((outcomes, batch))
    }

    /// Copies assignments to the server that they are read from. The first copy wins.
    async fn copy_assignments(&self, matches: &Bytes) -> Result<(), Error> {
        let Some(assignments) = &self.servers.others.assignments else { return Ok(()) };
        let lifetime = self.rules.assigned_ttl.as_millis().to_string();
        let mut copies = ::redis::pipe();
        for match_ in wire::decode_matches(matches).unwrap_or_default() {
            for (id, assignment) in wire::ticket_assignments(&match_) {
                let Some(id) = TicketId::parse(id) else { continue };
                let assignment = buffa::Message::encode_to_vec(assignment);
                let set = copies.cmd("SET").arg(self.keys.assign(&id)).arg(assignment);
                set.arg("NX").arg("PX").arg(&lifetime).ignore();
            }
        }
        Ok(copies.query_async::<()>(&mut assignments.connection.clone()).await?)
    }

    pub(super) async fn ticket_events(&self) -> Result<BoxStream<'static, TicketEvent>, Error> {
        let (assigned, gone) = (self.keys.assigned_channel(), self.keys.gone_channel());
        let ready = self.keys.ready_channel();
        let channels = [assigned.clone(), gone, ready.clone()];
        let messages = self.servers.primary.subscribe(&channels, PING_AFTER).await?;
        let events = messages.filter_map(move |message| {
            let payload = Bytes::copy_from_slice(message.get_payload_bytes());
            let event = if message.get_channel_name() == assigned {
                Some(TicketEvent::Assigned(payload))
            } else if message.get_channel_name() == ready {
                std::str::from_utf8(&payload).ok().and_then(ReadyStates::parse).map(TicketEvent::Ready)
            } else {
                std::str::from_utf8(&payload).ok().and_then(TicketId::parse).map(TicketEvent::Gone)
            };
            async { event }
        });
        Ok(events.boxed())
    }

    pub(super) async fn listen_for_wakes(&self, engine: &EngineName, wake: &Notify) -> Result<(), Error> {
        let messages = self.servers.primary.subscribe(&[self.keys.wake_channel(engine)], PING_AFTER).await?;
        // Tickets may have been created before the subscription began.
        wake.notify_one();
        messages.for_each(async |_| wake.notify_one()).await;
        Ok(())
    }

    pub(super) async fn forget_engine(&self, engine: &EngineName) -> Result<(), Error> {
        let mut remove = ::redis::cmd("SREM");
        remove.arg(self.keys.idle_engines()).arg(&**engine);
        Ok(remove.query_async(&mut self.servers.primary()).await?)
    }

    pub(super) async fn list(&self, limit: usize) -> Result<(Vec<TicketId>, u64), Error> {
        let mut both = ::redis::pipe();
        both.cmd("ZRANGE").arg(self.keys.queue()).arg(0).arg(limit.saturating_sub(1));
        both.cmd("SCARD").arg(self.keys.all());
        let (ids, count): (Vec<String>, u64) = both.query_async(&mut self.servers.primary()).await?;
        // ZRANGE cannot return an empty range, hence `take(limit)`.
        Ok((ids.iter().take(limit).filter_map(|id| TicketId::parse(id)).collect(), count))
    }

    pub(super) async fn waiting_times(&self, bounds: &[i64], oldest: usize) -> Result<WaitingTimes, Error> {
        let queue = self.keys.queue();
        let mut all = ::redis::pipe();
        all.cmd("SCARD").arg(self.keys.all());
        all.cmd("TIME");
        all.cmd("ZRANGE").arg(&queue).arg(0).arg(oldest.saturating_sub(1)).arg("WITHSCORES");
        let (tickets, (now, _), found): (u64, (f64, u64), Vec<(String, f64)>) =
            all.query_async(&mut self.servers.primary()).await?;
        let mut counts = ::redis::pipe();
        let live = now - self.rules.pending_timeout.as_secs_f64();
        counts.cmd("ZCOUNT").arg(self.keys.pending()).arg(live).arg("+inf");
        let starts = std::iter::once("-inf".to_owned()).chain(bounds.iter().map(i64::to_string));
        let ends = bounds.iter().map(|bound| format!("({bound}")).chain(["+inf".to_owned()]);
        for (start, end) in starts.zip(ends) {
            counts.cmd("ZCOUNT").arg(&queue).arg(start).arg(end);
        }
        let mut ranges: Vec<u64> = counts.query_async(&mut self.servers.primary()).await?;
        let pending = ranges.remove(0);
        // ZRANGE cannot return an empty range, hence `take`.
        let found = found.into_iter().take(oldest);
        let oldest = found.filter_map(|(id, created)| Some((TicketId::parse(&id)?, created as i64)));
        Ok(WaitingTimes { tickets, pending, ranges, oldest: oldest.collect() })
    }

    pub(super) async fn status(&self, id: &TicketId) -> Result<TicketStatus, Error> {
        let found = self.find(id).await?;
        let mut all = ::redis::pipe();
        all.cmd("SISMEMBER").arg(self.keys.all()).arg(id.as_str());
        all.cmd("ZSCORE").arg(self.keys.pending()).arg(id.as_str());
        all.cmd("PTTL").arg(self.keys.ticket(id));
        all.cmd("TIME");
        let (indexed, since, ttl, (now, _)): (bool, Option<f64>, i64, (f64, u64)) =
            all.query_async(&mut self.servers.primary()).await?;
        let live = now - self.rules.pending_timeout.as_secs_f64();
        let claim = since.filter(|since| *since >= live).map(Claim::from_score);
        Ok(TicketStatus {
            found,
            is_indexed: indexed,
            // The claim of a ready check begins at its deadline.
            pending_since: claim.map(|claim| claim.second().min(now as i64)),
            holder: self.holders_of(&[claim]).await?.pop().flatten(),
            ttl: ttl.try_into().ok().map(Duration::from_millis),
        })
    }
}

/// Reads the outcome of a match from the reply of `assign.lua`.
fn outcome(group: &AssignmentGroup, (obstacle, is_stale): (i64, bool)) -> AssignOutcome {
    match usize::try_from(obstacle).map(|place| place.checked_sub(1).and_then(|at| group.tickets.get(at))) {
        Err(_) => AssignOutcome::Abandoned,
        Ok(None) => AssignOutcome::Assigned,
        Ok(Some(id)) if is_stale => AssignOutcome::Stale(id.clone()),
        Ok(Some(id)) => AssignOutcome::Refused(id.clone()),
    }
}

/// Creates a batch of tickets with one script. Needs no lock, because it cannot disturb any other step.
async fn create(servers: Servers, keys: Keys, tickets: Vec<NewTicket>) -> Vec<Result<(), Error>> {
    let own =
        std::iter::once(keys.idle_engines()).chain(tickets.iter().map(|ticket| keys.ticket(&ticket.id)));
    let mut step = scripts::step(&scripts::CREATE, &keys, own, "");
    step.arg(keys.wake_channels());
    for ticket in &tickets {
        step.arg(ticket.ttl.as_millis() as u64).arg(ticket.created.micros()).arg(&ticket.data[..]);
    }
    let mut created = servers.run::<()>(&step).await;
    if is_unreachable(&created) {
        created = servers.run(&step).await;
    }
    vec![created; tickets.len()]
}

/// Reads a batch of tickets for players.
async fn find(servers: Servers, keys: Keys, ids: Vec<TicketId>) -> Vec<Result<StoredTicket, Error>> {
    let mut found = servers.find(&keys, &ids).await;
    if is_unreachable(&found) {
        found = servers.find(&keys, &ids).await;
    }
    match found {
        Ok(found) => found.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error); ids.len()],
    }
}

/// Returns whether the connection was lost. Idempotent calls are then repeated.
fn is_unreachable<T>(done: &Result<T, Error>) -> bool {
    matches!(done, Err(Error::Store(redis_store::Error::Unreachable(_))))
}

async fn get_many(mut connection: ConnectionManager, keys: &[Key]) -> Result<Vec<Option<Bytes>>, Error> {
    Ok(::redis::cmd("MGET").arg(keys).query_async(&mut connection).await?)
}

/// Reads the reply of `fetch.lua`. Also returns the size of the queue, and the other program that holds tickets.
fn read_fetched(
    (waiting, queued, is_held_back, claim, ids, foreign): (u64, u64, bool, String, Vec<String>, u8),
) -> (FetchedTickets, u64, Option<ForeignProgram>) {
    let foreign = ForeignProgram::from_script(foreign);
    let ids = ids.iter().filter_map(|id| TicketId::parse(id)).collect();
    let claim = claim.parse().map(Claim::from_score).unwrap_or_default();
    (FetchedTickets { ids, claim, waiting, is_held_back }, queued, foreign)
}
