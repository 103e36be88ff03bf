//! Backfills in Redis: a hash for each, and a sorted set of their last acknowledgements.

use std::collections::HashMap;
use std::time::Duration;

use base::Timestamp;
use bytes::Bytes;
use redis_store::Call;

use super::rooms::{read_room, read_seat};
use super::scripts;
use super::{BATCH, Redis, is_unreachable};
use crate::error::Error;
use crate::model::{BackfillId, TicketId};
use crate::store::{
    AcknowledgeOutcome, AcknowledgedBackfill, AssignBackfillOutcome, Assignments, BackfillData,
    BackfillStatus, ExpiredBackfills, NewBackfill, UnrecordedBatch, UpdateBackfillOutcome,
};

/// How many expired backfills one script deletes. Each may have many tickets.
const EXPIRED_AT_ONCE: usize = 100;

/// The fields of a hash that [`BackfillData`] consists of.
const FIELDS: [&str; 6] = ["generation", "fixed", "fields", "persistent", "match", "teams"];

type Parts = (Option<i64>, Option<Bytes>, Option<Bytes>, Option<Bytes>, Option<Bytes>, Option<Bytes>);

/// The reply of `acknowledge.lua`.
type Acknowledged = (String, i64, Bytes, Bytes, Bytes, Bytes, Bytes, Vec<String>, Vec<Bytes>, Vec<String>);

impl Redis {
    pub(in crate::store) async fn create_backfill(&self, backfill: &NewBackfill) -> Result<bool, Error> {
        let own = || [self.keys.backfill_acks(), self.keys.backfill(&backfill.id)];
        let add = |step: &mut Call| {
            let NewBackfill { id: _, fixed, fields, persistent } = backfill;
            step.arg(millis(self.rules.backfill_ttl()))
                .arg(&fixed[..])
                .arg(&fields[..])
                .arg(&persistent[..])
                .end();
        };
        let mut created = self.run_unlocked(&scripts::CREATE_BACKFILL, own(), add).await;
        if is_unreachable(&created) {
            created = self.run_unlocked(&scripts::CREATE_BACKFILL, own(), add).await;
        }
        created
    }

    pub(in crate::store) async fn read_backfills(
        &self,
        ids: &[BackfillId],
    ) -> Result<Vec<Option<BackfillData>>, Error> {
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(BATCH) {
            let mut all = ::redis::pipe();
            for id in ids {
                all.cmd("HMGET").arg(self.keys.backfill(id)).arg(&FIELDS);
            }
            let read: Vec<Parts> = all.query_async(&mut self.servers.primary()).await?;
            found.extend(read.into_iter().map(|(generation, fixed, fields, persistent, origin, teams)| {
                Some(BackfillData {
                    generation: generation?,
                    fixed: fixed?,
                    fields: fields?,
                    persistent: persistent?,
                    room: read_room(&origin.unwrap_or_default(), &teams.unwrap_or_default()),
                })
            }));
        }
        Ok(found)
    }

    pub(in crate::store) async fn update_backfill(
        &self,
        id: &BackfillId,
        fields: &Bytes,
        persistent: &Bytes,
    ) -> Result<UpdateBackfillOutcome, Error> {
        let own = [self.keys.backfill_acks(), self.keys.backfill(id)];
        let add = |step: &mut Call| {
            step.arg(millis(self.rules.backfill_expiry())).arg(&fields[..]).arg(&persistent[..]).end();
        };
        let (state, generation, fixed, origin, teams): (String, i64, Bytes, Bytes, Bytes) =
            self.step(&scripts::UPDATE_BACKFILL, own, add).await?;
        Ok(match state.as_str() {
            "live" => UpdateBackfillOutcome::Updated(BackfillData {
                generation,
                fixed,
                fields: fields.clone(),
                persistent: persistent.clone(),
                room: read_room(&origin, &teams),
            }),
            "expired" => UpdateBackfillOutcome::Expired,
            _ => UpdateBackfillOutcome::NotFound,
        })
    }

    pub(in crate::store) async fn delete_backfill(&self, id: &BackfillId) -> Result<bool, Error> {
        let (deleted, _) = self.run_delete(std::slice::from_ref(id), None).await?;
        Ok(deleted > 0)
    }

    async fn run_delete(
        &self,
        ids: &[BackfillId],
        expiry: Option<Duration>,
    ) -> Result<(usize, usize), Error> {
        let own =
            std::iter::once(self.keys.backfill_acks()).chain(ids.iter().map(|id| self.keys.backfill(id)));
        let expiry = expiry.map(|expiry| millis(expiry).to_string()).unwrap_or_default();
        self.step(&scripts::DELETE_BACKFILLS, own, |step| step.arg(expiry).end()).await
    }

    pub(in crate::store) async fn acknowledge_backfill(
        &self,
        id: &BackfillId,
    ) -> Result<AcknowledgeOutcome, Error> {
        let own = || [self.keys.backfill_acks(), self.keys.backfill(id)];
        let add = |step: &mut Call| {
            step.arg(millis(self.rules.backfill_expiry())).arg(millis(self.rules.backfill_ttl())).end();
        };
        // Safe to repeat after a lost reply: the call assigns nothing.
        let mut reply: Result<Acknowledged, Error> =
            self.run_unlocked(&scripts::ACKNOWLEDGE, own(), add).await;
        if is_unreachable(&reply) {
            reply = self.run_unlocked(&scripts::ACKNOWLEDGE, own(), add).await;
        }
        let (state, generation, fixed, fields, persistent, origin, teams, waiting, seats, unlisted) = reply?;
        let seat = |(id, seat): (&String, &Bytes)| Some((TicketId::parse(id)?, read_seat(seat)?));
        Ok(match state.as_str() {
            "live" => AcknowledgeOutcome::Acknowledged(AcknowledgedBackfill {
                data: BackfillData {
                    generation,
                    fixed,
                    fields,
                    persistent,
                    room: read_room(&origin, &teams),
                },
                seats: waiting.iter().zip(&seats).filter_map(seat).collect(),
                waiting: ticket_ids(&waiting),
                unlisted: ticket_ids(&unlisted),
            }),
            "expired" => AcknowledgeOutcome::Expired,
            _ => AcknowledgeOutcome::NotFound,
        })
    }

    pub(in crate::store) async fn assign_backfill(
        &self,
        id: &BackfillId,
        tickets: &[TicketId],
        assignments: &Assignments,
        encoded_match: &Bytes,
    ) -> Result<AssignBackfillOutcome, Error> {
        let own = [self.keys.backfill(id), self.keys.events()].into_iter();
        let own = own
            .chain(tickets.iter().map(|id| self.keys.ticket(id)))
            .chain(tickets.iter().map(|id| self.keys.assign(id)));
        let add = |step: &mut Call| {
            step.arg(millis(self.rules.assigned_ttl)).arg(&encoded_match[..]);
            assignments.all().iter().for_each(|assignment| step.arg(&assignment[..]).end());
        };
        let (key, left): (Option<String>, Vec<usize>) =
            self.exclusive_step(&scripts::ASSIGN_BACKFILL, own, add).await?;
        Ok(match key {
            Some(key) => {
                AssignBackfillOutcome::Assigned(UnrecordedBatch { key, matches: encoded_match.clone() })
            }
            None => AssignBackfillOutcome::Refused(
                left.into_iter().filter_map(|at| tickets.get(at.checked_sub(1)?).cloned()).collect(),
            ),
        })
    }

    pub(in crate::store) async fn mark_listed(
        &self,
        id: &BackfillId,
        tickets: &[TicketId],
    ) -> Result<bool, Error> {
        let own = [self.keys.backfill_acks(), self.keys.backfill(id)];
        let add = |step: &mut Call| tickets.iter().for_each(|id| step.arg(id.as_str()).end());
        self.run_unlocked(&scripts::MARK_LISTED, own, add).await
    }

    pub(in crate::store) async fn live_backfills(&self) -> Result<Vec<BackfillId>, Error> {
        let oldest = self.backfill_time().await? - millis(self.rules.backfill_expiry()) as i64;
        let mut command = ::redis::cmd("ZRANGEBYSCORE");
        command.arg(self.keys.backfill_acks()).arg(format!("({oldest}")).arg("+inf");
        let ids: Vec<String> = command.query_async(&mut self.servers.primary()).await?;
        let mut ids = backfill_ids(&ids);
        ids.sort_unstable();
        Ok(ids)
    }

    pub(in crate::store) async fn list_backfills(
        &self,
        limit: usize,
    ) -> Result<(Vec<BackfillId>, u64), Error> {
        let oldest = self.backfill_time().await? - millis(self.rules.backfill_expiry()) as i64;
        let (key, since) = (self.keys.backfill_acks(), format!("({oldest}"));
        let mut both = ::redis::pipe();
        both.cmd("ZRANGEBYSCORE").arg(&key).arg(&since).arg("+inf").arg("LIMIT").arg(0).arg(limit);
        both.cmd("ZCOUNT").arg(&key).arg(&since).arg("+inf");
        let (ids, count): (Vec<String>, u64) = both.query_async(&mut self.servers.primary()).await?;
        let mut ids = backfill_ids(&ids);
        ids.sort_unstable();
        Ok((ids, count))
    }

    /// Returns Redis's time in milliseconds.
    async fn backfill_time(&self) -> Result<i64, Error> {
        let (seconds, micros): (i64, i64) =
            ::redis::cmd("TIME").query_async(&mut self.servers.primary()).await?;
        Ok(seconds * 1000 + micros / 1000)
    }

    pub(in crate::store) async fn expire_backfills(&self) -> Result<ExpiredBackfills, Error> {
        let expiry = self.rules.backfill_expiry();
        let latest = self.backfill_time().await? - millis(expiry) as i64;
        // Queried without the lock, because usually there are none.
        let mut both = ::redis::pipe();
        let expired = both.cmd("ZRANGEBYSCORE").arg(self.keys.backfill_acks()).arg("-inf").arg(latest);
        expired.arg("LIMIT").arg(0).arg(EXPIRED_AT_ONCE);
        both.cmd("ZCARD").arg(self.keys.backfill_acks());
        let (ids, all): (Vec<String>, u64) = both.query_async(&mut self.servers.primary()).await?;
        if ids.is_empty() {
            return Ok(ExpiredBackfills { left: all, ..ExpiredBackfills::default() });
        }
        let (backfills, tickets) = self.run_delete(&backfill_ids(&ids), Some(expiry)).await?;
        let left = all.saturating_sub(backfills as u64);
        Ok(ExpiredBackfills { backfills, tickets, has_more: ids.len() == EXPIRED_AT_ONCE, left })
    }

    pub(in crate::store) async fn backfill_status(
        &self,
        id: &BackfillId,
    ) -> Result<Option<BackfillStatus>, Error> {
        let mut all = ::redis::pipe();
        all.cmd("HGETALL").arg(self.keys.backfill(id));
        all.cmd("ZSCORE").arg(self.keys.backfill_acks()).arg(id.as_str());
        let (stored, acknowledged): (HashMap<String, Bytes>, Option<f64>) =
            all.query_async(&mut self.servers.primary()).await?;
        let part = |name: &str| stored.get(name).cloned();
        let [Some(generation), Some(fixed), Some(fields), Some(persistent), origin, teams] = FIELDS.map(part)
        else {
            return Ok(None);
        };
        let room = read_room(&origin.unwrap_or_default(), &teams.unwrap_or_default());
        let text = |bytes: &Bytes| std::str::from_utf8(bytes).unwrap_or_default().to_owned();
        let generation = text(&generation).parse().unwrap_or_default();
        let data = BackfillData { generation, fixed, fields, persistent, room };
        let held = stored.iter().filter_map(|(field, claim)| {
            Some((TicketId::parse(field.strip_prefix("w:")?)?, text(claim).parse::<f64>().ok()?))
        });
        let mut held: Vec<(TicketId, f64)> = held.collect();
        held.sort_by(|a, b| a.0.cmp(&b.0));
        let waiting = self.still_claimed(held).await?;
        let now = self.backfill_time().await?;
        let acknowledged = acknowledged.map(|millis| millis as i64);
        let expiry = millis(self.rules.backfill_expiry()) as i64;
        Ok(Some(BackfillStatus {
            data,
            acknowledged_at: acknowledged.map(Timestamp::from_millis),
            is_expired: acknowledged.is_none_or(|acknowledged| acknowledged + expiry <= now),
            waiting,
        }))
    }
}

impl Redis {
    /// Returns the tickets that are still pending under these claims.
    async fn still_claimed(&self, held: Vec<(TicketId, f64)>) -> Result<Vec<TicketId>, Error> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let mut scores = ::redis::cmd("ZMSCORE");
        scores.arg(self.keys.pending()).arg(held.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>());
        let scores: Vec<Option<f64>> = scores.query_async(&mut self.servers.primary()).await?;
        let current = held.into_iter().zip(scores).filter(|((_, claim), score)| *score == Some(*claim));
        Ok(current.map(|((id, _), _)| id).collect())
    }
}

fn backfill_ids(ids: &[String]) -> Vec<BackfillId> {
    ids.iter().filter_map(|id| BackfillId::parse(id)).collect()
}

/// Parses ids of tickets and sorts them, because the fields of a hash have no order.
fn ticket_ids(ids: &[String]) -> Vec<TicketId> {
    let mut ids: Vec<TicketId> = ids.iter().filter_map(|id| TicketId::parse(id)).collect();
    ids.sort_unstable();
    ids
}

pub(super) fn millis(length: Duration) -> u64 {
    length.as_millis().try_into().unwrap_or(u64::MAX)
}
