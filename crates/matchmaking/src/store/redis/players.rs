//! The tickets of players in Redis: a hash per player, and a sorted set of when tickets are overdue.

use std::time::Duration;

use ::redis::FromRedisValue;
use base::id::Uuid;
use bytes::Bytes;
use redis_store::{Call, Key, Script};

use super::scripts;
use super::{BATCH, Redis, is_cut_off};
use crate::error::Error;
use crate::model::TicketId;
use crate::store::{Claim, Claimed, Found, GoneAfter};

/// What `join.lua` answers.
type Answer = (String, String, Bytes, Option<Bytes>);

impl Redis {
    pub(in crate::store) async fn join(&self, claim: &Claim) -> Result<Claimed, Error> {
        // Who lost the answer finds the ticket that was made.
        let mut answer = self.try_to_join(claim).await;
        if is_cut_off(&answer) {
            answer = self.try_to_join(claim).await;
        }
        let (what, id, data, assignment) = answer?;
        let id = TicketId::parse(&id).ok_or(Error::Interrupted)?;
        Ok(match what.as_str() {
            "ticket" => Claimed::Ticket { id, found: Found { data: Some(data), assignment } },
            _ => Claimed::Elsewhere { queue: String::from_utf8_lossy(&data).into_owned(), id },
        })
    }

    async fn try_to_join(&self, claim: &Claim) -> Result<Answer, Error> {
        let Claim { user, queue, ticket, beside, replaces, cancel_when_gone } = claim;
        // As long as any ticket of theirs can be read.
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
            step.arg(life).arg(gone).arg(&beside[..]).end();
        };
        self.step(&scripts::JOIN, own.into_iter().chain(self.keys.stems()), add).await
    }

    pub(in crate::store) async fn of_player(&self, user: Uuid) -> Result<Vec<(TicketId, Found)>, Error> {
        let own = [self.keys.player(&user), self.keys.presence()].into_iter().chain(self.keys.stems());
        let tickets: Vec<(String, Bytes, Option<Bytes>)> =
            self.without_lock(&scripts::TICKETS, own, |_| {}).await?;
        let found = tickets.into_iter().filter_map(|(id, data, assignment)| {
            Some((TicketId::parse(&id)?, Found { data: Some(data), assignment }))
        });
        Ok(found.collect())
    }

    pub(in crate::store) async fn present(
        &self,
        users: &[Uuid],
        gone_after: &GoneAfter,
    ) -> Result<(), Error> {
        for users in users.chunks(BATCH / 4) {
            let own = std::iter::once(self.keys.presence())
                .chain(self.keys.stems())
                .chain(users.iter().map(|user| self.keys.player(user)));
            let add = |step: &mut Call| {
                gone_after.iter().for_each(|(queue, after)| step.arg(queue).arg(millis(*after)).end());
            };
            self.without_lock::<()>(&scripts::PRESENT, own, add).await?;
        }
        Ok(())
    }

    pub(in crate::store) async fn sweep(&self) -> Result<usize, Error> {
        let mut cancelled = 0;
        loop {
            // Asked without the lock: mostly there are none.
            let presence = || std::iter::once(self.keys.presence());
            let most = |step: &mut Call| step.arg(BATCH).end();
            let ids: Vec<String> = self.without_lock(&scripts::OVERDUE, presence(), most).await?;
            if !ids.is_empty() {
                let own = presence().chain(ids.iter().flat_map(|id| self.keys.ticket_and_assign(id)));
                let add = |step: &mut Call| step.arg(self.keys.gone_channel()).end();
                cancelled += self.step::<usize>(&scripts::SWEEP, own, add).await?;
            }
            if ids.len() < BATCH {
                return Ok(cancelled);
            }
        }
    }

    /// Runs a script that touches nothing that another program locks.
    async fn without_lock<T: FromRedisValue>(
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

fn millis(length: Duration) -> u64 {
    length.as_millis().try_into().unwrap_or(u64::MAX)
}
