//! Parties in Redis: a hash per party, a hash per user who is in one or invited to some, and a key per join code.

use std::collections::HashMap;

use base::id::Uuid;
use bytes::Bytes;
use redis_store::{Call, Key};

use super::players::millis;
use super::{Redis, Servers, is_unreachable, scripts};
use crate::error::Error;
use crate::model::{PartyId, TicketId};
use crate::store::ready::EndCause;
use crate::store::redis::keys::Keys;
use crate::store::{Membership, PartyChange, PartyOutcome, StoredParty, StoredTicket, TicketStep};

/// The reply of `change_party.lua`.
type ChangeReply = (String, usize, String, Bytes, Option<Bytes>);

impl Redis {
    pub(in crate::store) async fn membership(&self, user: Uuid) -> Result<Membership, Error> {
        self.membership_batcher.run(user).await.unwrap_or(Err(Error::Interrupted))
    }

    pub(in crate::store) async fn party(&self, id: &PartyId) -> Result<Option<StoredParty>, Error> {
        let mut get = ::redis::cmd("HMGET");
        get.arg(self.keys.party(id)).arg("version").arg("data");
        let (version, data): (Option<u64>, Option<Bytes>) =
            get.query_async(&mut self.servers.primary()).await?;
        Ok(version.zip(data).map(|(version, data)| StoredParty { version, data }))
    }

    pub(in crate::store) async fn party_by_code(&self, code: &str) -> Result<Option<PartyId>, Error> {
        let id: Option<String> = ::redis::cmd("GET")
            .arg(self.keys.party_code(code))
            .query_async(&mut self.servers.primary())
            .await?;
        Ok(id.and_then(|id| PartyId::parse(&id)))
    }

    pub(in crate::store) async fn change_party(&self, change: &PartyChange) -> Result<PartyOutcome, Error> {
        // Safe to repeat after a lost reply: a change that was applied is stale the second time.
        let mut reply = self.run_change_party(change).await;
        if is_unreachable(&reply) {
            reply = self.run_change_party(change).await;
        }
        let (word, number, id, data, assignment) = reply?;
        let user = || number.checked_sub(1).and_then(|at| change.members.get(at)).copied();
        Ok(match word.as_str() {
            "changed" => {
                if number == 1 {
                    self.metrics.ready_check_ended(EndCause::Lost);
                }
                PartyOutcome::Changed
            }
            "stale" => PartyOutcome::Stale,
            "code" => PartyOutcome::CodeTaken,
            "member" => PartyOutcome::InAnotherParty {
                user: user().ok_or(Error::Interrupted)?,
                party: PartyId::parse(&id).ok_or(Error::Interrupted)?,
            },
            "queued" => PartyOutcome::Queued,
            "ticket" => PartyOutcome::Ticket {
                id: TicketId::parse(&id).ok_or(Error::Interrupted)?,
                found: StoredTicket { data: Some(data), assignment },
            },
            _ => PartyOutcome::MemberWaits {
                user: user().ok_or(Error::Interrupted)?,
                queue: String::from_utf8_lossy(&data).into_owned(),
                ticket: TicketId::parse(&id).ok_or(Error::Interrupted)?,
            },
        })
    }

    async fn run_change_party(&self, change: &PartyChange) -> Result<ChangeReply, Error> {
        let keys = &self.keys;
        let of_users = |users: &[Uuid]| users.iter().map(|user| keys.member(user)).collect::<Vec<Key>>();
        let mut own =
            vec![keys.idle_engines(), keys.presence(), keys.party(&change.id), keys.party_code(&change.code)];
        own.push(keys.party_code(&change.old_code));
        own.extend(keys.ready_checks());
        own.push(keys.parties());
        for users in [&change.members, &change.left, &change.invited, &change.uninvited] {
            own.extend(of_users(users));
        }
        if let TicketStep::Create(new) = &change.step {
            own.push(keys.ticket(&new.ticket.id));
            own.extend(change.members.iter().map(|user| keys.player(user)));
        }
        let add = |step: &mut Call| {
            step.arg(change.version).arg(change.data.as_deref().unwrap_or_default()).arg(millis(change.ttl));
            let mode = match change.step {
                TicketStep::Keep => "keep",
                TicketStep::RequireIdle => "idle",
                TicketStep::Cancel => "cancel",
                TicketStep::Create(_) => "create",
            };
            step.arg(change.id.as_str()).arg(mode).arg(change.ticket.as_ref().map_or("", TicketId::as_str));
            self.add_ready_args(step).arg(change.members.len()).arg(change.left.len());
            step.arg(change.invited.len()).arg(change.uninvited.len());
            let TicketStep::Create(new) = &change.step else { return };
            // As long as any ticket of the player can be read.
            let life = millis(new.ticket.ttl + self.rules.assigned_ttl);
            let gone = new.cancel_when_gone.map(|after| millis(after).to_string()).unwrap_or_default();
            step.arg(keys.wake_channels()).arg(&new.queue);
            step.arg(new.replaces.as_ref().map_or("", TicketId::as_str)).arg(millis(new.ticket.ttl));
            step.arg(new.ticket.created.micros()).arg(&new.ticket.data[..]).arg(life).arg(gone);
            step.arg(&new.allowed_queues[..]).end();
        };
        self.step(&scripts::CHANGE_PARTY, own, add).await
    }
}

/// Reads the parties of a batch of users.
pub(super) async fn memberships(
    servers: Servers,
    keys: Keys,
    users: Vec<Uuid>,
) -> Vec<Result<Membership, Error>> {
    let mut found = read(&servers, &keys, &users).await;
    if is_unreachable(&found) {
        found = read(&servers, &keys, &users).await;
    }
    match found {
        Ok(found) => found.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error); users.len()],
    }
}

async fn read(servers: &Servers, keys: &Keys, users: &[Uuid]) -> Result<Vec<Membership>, Error> {
    let mut all = ::redis::pipe();
    for user in users {
        all.cmd("HGETALL").arg(keys.member(user));
    }
    let found: Vec<HashMap<String, String>> = all.query_async(&mut servers.primary()).await?;
    Ok(found.iter().map(membership).collect())
}

fn membership(fields: &HashMap<String, String>) -> Membership {
    let invitations = fields.keys().filter_map(|name| PartyId::parse(name.strip_prefix("invite:")?));
    let mut invitations: Vec<PartyId> = invitations.collect();
    // By the age of the parties.
    invitations.sort_unstable();
    Membership { party: fields.get("party").and_then(|id| PartyId::parse(id)), invitations }
}
