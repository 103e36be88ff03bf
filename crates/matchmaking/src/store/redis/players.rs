//! The tickets of players in Redis: a hash per player, and a sorted set of when tickets become overdue.

use std::time::Duration;

use ::redis::FromRedisValue;
use base::id::Uuid;
use bytes::Bytes;
use redis_store::{Call, Key, Script};

use super::scripts;
use super::{BATCH, Redis, is_unreachable};
use crate::error::Error;
use crate::model::TicketId;
use crate::store::ready::EndCause;
use crate::store::{AbsenceTimeouts, JoinOutcome, NewPlayerTicket, StoredTicket};

/// The reply of `join.lua`.
type JoinReply = (String, String, Bytes, Option<Bytes>);

impl Redis {
    pub(in crate::store) async fn join(&self, request: &NewPlayerTicket) -> Result<JoinOutcome, Error> {
        // Safe to repeat after a lost reply: the second call finds the created ticket.
        let mut reply = self.run_join(request).await;
        if is_unreachable(&reply) {
            reply = self.run_join(request).await;
        }
        let (what, id, data, assignment) = reply?;
        let id = TicketId::parse(&id).ok_or(Error::Interrupted)?;
        Ok(match what.as_str() {
            "ticket" => JoinOutcome::Ticket { id, found: StoredTicket { data: Some(data), assignment } },
            _ => JoinOutcome::OtherQueue { queue: String::from_utf8_lossy(&data).into_owned(), id },
        })
    }

    async fn run_join(&self, request: &NewPlayerTicket) -> Result<JoinReply, Error> {
        let NewPlayerTicket { user, queue, ticket, allowed_queues, replaces, cancel_when_gone } = request;
        // As long as any ticket of the player can be read.
        let life = millis(ticket.ttl + self.rules.assigned_ttl);
        let gone = cancel_when_gone.map(|after| millis(after).to_string()).unwrap_or_default();
        let own = [
            self.keys.idle_engines(),
            self.keys.player(user),
            self.keys.presence(),
            self.keys.ticket(&ticket.id),
        ];
        let add = |step: &mut Call| {
            step.arg(self.keys.wake_channels()).arg(queue);
            step.arg(replaces.as_ref().map_or("", TicketId::as_str)).arg(millis(ticket.ttl));
            step.arg(ticket.created.micros()).arg(&ticket.data[..]);
            step.arg(life).arg(gone).arg(&allowed_queues[..]).end();
        };
        self.step(&scripts::JOIN, own.into_iter().chain(self.keys.stems()), add).await
    }

    pub(in crate::store) async fn player_tickets(
        &self,
        user: Uuid,
    ) -> Result<Vec<(TicketId, StoredTicket)>, Error> {
        let own = [self.keys.player(&user), self.keys.presence()].into_iter().chain(self.keys.stems());
        let tickets: Vec<(String, Bytes, Option<Bytes>)> =
            self.run_unlocked(&scripts::TICKETS, own, |_| {}).await?;
        let found = tickets.into_iter().filter_map(|(id, data, assignment)| {
            Some((TicketId::parse(&id)?, StoredTicket { data: Some(data), assignment }))
        });
        Ok(found.collect())
    }

    pub(in crate::store) async fn mark_present(
        &self,
        users: &[Uuid],
        absence_timeouts: &AbsenceTimeouts,
    ) -> Result<(), Error> {
        for users in users.chunks(BATCH / 4) {
            let own = std::iter::once(self.keys.presence())
                .chain(self.keys.stems())
                .chain(users.iter().map(|user| self.keys.player(user)));
            let add = |step: &mut Call| {
                absence_timeouts.iter().for_each(|(queue, after)| step.arg(queue).arg(millis(*after)).end());
            };
            self.run_unlocked::<()>(&scripts::PRESENT, own, add).await?;
        }
        Ok(())
    }

    pub(in crate::store) async fn cancel_overdue(&self) -> Result<usize, Error> {
        let mut cancelled = 0;
        loop {
            // Queried without the lock, because usually there are none.
            let presence = || std::iter::once(self.keys.presence());
            let most = |step: &mut Call| step.arg(BATCH).end();
            let entries: Vec<String> = self.run_unlocked(&scripts::OVERDUE, presence(), most).await?;
            if !entries.is_empty() {
                // The entry of a party's ticket also names a member.
                let ids = entries.iter().map(|entry| entry.split(':').next().unwrap_or(entry));
                let own = presence().chain(self.keys.ready_checks());
                let own = own.chain(ids.flat_map(|id| self.keys.ticket_and_assign(id)));
                let add = |step: &mut Call| self.add_ready_args(step).arg(&entries[..]).end();
                let (count, checks): (usize, u64) = self.step(&scripts::SWEEP, own, add).await?;
                cancelled += count;
                (0..checks).for_each(|_| self.metrics.ready_check_ended(EndCause::Lost));
            }
            if entries.len() < BATCH {
                return Ok(cancelled);
            }
        }
    }

    /// Runs a script that touches no key that other programs lock.
    pub(super) async fn run_unlocked<T: FromRedisValue>(
        &self,
        script: &'static Script,
        own: impl IntoIterator<Item = Key>,
        args: impl FnOnce(&mut Call),
    ) -> Result<T, Error> {
        let mut step = scripts::step(script, &self.keys, own, "");
        args(&mut step);
        self.servers.run(&step).await
    }
}

pub(super) fn millis(length: Duration) -> u64 {
    length.as_millis().try_into().unwrap_or(u64::MAX)
}
