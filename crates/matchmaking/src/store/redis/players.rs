//! The tickets of players in Redis: a hash per player, and a sorted set of when tickets are overdue.

use std::time::Duration;

use ::redis::FromRedisValue;
use base::id::Uuid;
use bytes::Bytes;

use super::scripts::{SCRIPTS, Script, Step};
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
        let add = |step: &mut Step| {
            step.arg(user.to_string()).arg(queue).arg(replaces.as_ref().map_or("", TicketId::as_str));
            step.arg(ticket.id.as_str()).arg(millis(ticket.ttl));
            step.arg(ticket.created.micros()).arg(&ticket.data[..]);
            step.arg(life).arg(gone).arg(&beside[..]).end();
        };
        self.step(&SCRIPTS.join, add).await
    }

    pub(in crate::store) async fn of_player(&self, user: Uuid) -> Result<Vec<(TicketId, Found)>, Error> {
        let add = |step: &mut Step| step.arg(user.to_string()).end();
        let tickets: Vec<(String, Bytes, Option<Bytes>)> = self.without_lock(&SCRIPTS.tickets, add).await?;
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
            let add = |step: &mut Step| {
                step.arg(gone_after.len());
                gone_after.iter().for_each(|(queue, after)| step.arg(queue).arg(millis(*after)).end());
                users.iter().for_each(|user| step.arg(user.to_string()).end());
            };
            self.without_lock::<()>(&SCRIPTS.present, add).await?;
        }
        Ok(())
    }

    pub(in crate::store) async fn sweep(&self) -> Result<usize, Error> {
        let mut cancelled = 0;
        loop {
            // Asked without the lock: mostly there are none.
            let ids: Vec<String> = self.without_lock(&SCRIPTS.overdue, |step| step.arg(BATCH).end()).await?;
            if !ids.is_empty() {
                cancelled += self.step::<usize>(&SCRIPTS.sweep, |step| step.arg(&ids[..]).end()).await?;
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
        args: impl FnOnce(&mut Step),
    ) -> Result<T, Error> {
        let mut step = script.step(&self.keys, "");
        args(&mut step);
        step.run(self.servers.primary()).await
    }
}

fn millis(length: Duration) -> u64 {
    length.as_millis().try_into().unwrap_or(u64::MAX)
}
