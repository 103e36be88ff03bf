//! What operators do to users: ban, unban, end their sessions, erase, look at what was done.

use std::sync::PoisonError;

use db::Tx;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::model::{ACTOR, REASON};
use crate::retry::retrying;
use crate::service::{existing, note};
use crate::{Accounts, AuditRecord, Error, LinkedIdentity, UserId, UserState, UserView, event, store};

const BANNED: &str = "user.banned";
const UNBANNED: &str = "user.unbanned";
const ERASED: &str = "user.erased";
const SESSIONS_ENDED: &str = "sessions.ended";

/// More are not listed at once.
const MOST_RECORDS: u32 = 1_000;

/// A part of the product that keeps something of users.
///
/// It is called under the user's exclusive lock, while the user's accounts are still there, and perhaps again if the transaction
/// is tried again. An error undoes the whole erasure. It must not take long: it has the time of a call to the store.
pub trait OnErase: Send + Sync {
    /// Removes or revokes all that is kept of the user, in the same transaction as everybody else.
    fn erase<'a>(&'a self, tx: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), Error>>;
}

/// A part of the product that keeps sessions of users.
///
/// It is called under the user's exclusive lock, and perhaps again if the transaction is tried again. An error undoes the whole change.
pub trait OnSessionsEnd: Send + Sync {
    /// Records in this transaction that all sessions of the user that have begun are over.
    fn end_sessions<'a>(&'a self, tx: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), Error>>;
}

impl Accounts {
    /// Keeps a user from signing in, and ends their sessions for good. Another reason replaces the one before.
    pub async fn ban(&self, user: UserId, reason: &str, actor: &str) -> Result<(), Error> {
        let (reason, actor) = (REASON.check(reason)?, ACTOR.check(actor)?);
        retrying(|| self.try_ban(user, reason, actor)).await
    }

    async fn try_ban(&self, user: UserId, reason: &str, actor: &str) -> Result<(), Error> {
        let mut tx = self.begin_with(user).await?;
        let banning = async move {
            let before = existing(&mut tx, user).await?;
            match before.state {
                UserState::Erased => return Err(Error::Erased(user)),
                UserState::Banned if before.ban_reason.as_deref() == Some(reason) => return Ok(()),
                UserState::Banned | UserState::Active => {}
            }
            store::set_state(&mut tx, user, UserState::Banned, Some(reason)).await?;
            self.end_sessions_in(&mut tx, user).await?;
            // Not the reason: it may name somebody.
            note(&mut tx, user, actor, BANNED, change(before.state, UserState::Banned)).await?;
            self.tell(&mut tx, user, &event::banned(user))?;
            Ok(tx.commit().await?)
        };
        self.bounded(banning).await
    }

    /// Lets a banned user sign in again.
    pub async fn unban(&self, user: UserId, actor: &str) -> Result<(), Error> {
        let actor = ACTOR.check(actor)?;
        retrying(|| self.try_unban(user, actor)).await
    }

    async fn try_unban(&self, user: UserId, actor: &str) -> Result<(), Error> {
        let mut tx = self.begin_with(user).await?;
        let unbanning = async move {
            match existing(&mut tx, user).await?.state {
                UserState::Erased => return Err(Error::Erased(user)),
                UserState::Active => return Ok(()),
                UserState::Banned => {}
            }
            store::set_state(&mut tx, user, UserState::Active, None).await?;
            note(&mut tx, user, actor, UNBANNED, change(UserState::Banned, UserState::Active)).await?;
            self.tell(&mut tx, user, &event::unbanned(user))?;
            Ok(tx.commit().await?)
        };
        self.bounded(unbanning).await
    }

    /// Ends all sessions of a user that have begun. The user may sign in again.
    pub async fn end_sessions(&self, user: UserId, actor: &str) -> Result<(), Error> {
        let actor = ACTOR.check(actor)?;
        retrying(|| self.try_end_sessions(user, actor)).await
    }

    async fn try_end_sessions(&self, user: UserId, actor: &str) -> Result<(), Error> {
        let mut tx = self.begin_with(user).await?;
        let ending = async move {
            if existing(&mut tx, user).await?.state == UserState::Erased {
                return Err(Error::Erased(user));
            }
            self.end_sessions_in(&mut tx, user).await?;
            note(&mut tx, user, actor, SESSIONS_ENDED, json!({})).await?;
            Ok(tx.commit().await?)
        };
        self.bounded(ending).await
    }

    async fn end_sessions_in(&self, tx: &mut Tx, user: UserId) -> Result<(), Error> {
        let parts = self.on_sessions_end.read().unwrap_or_else(PoisonError::into_inner).clone();
        for part in parts {
            part.end_sessions(tx, user).await?;
        }
        Ok(())
    }

    /// Removes everything personal of a user, here and with every [`OnErase`], or nothing at all.
    pub async fn erase(&self, user: UserId, actor: &str) -> Result<(), Error> {
        let actor = ACTOR.check(actor)?;
        retrying(|| self.try_erase(user, actor)).await
    }

    async fn try_erase(&self, user: UserId, actor: &str) -> Result<(), Error> {
        let mut tx = self.begin_with(user).await?;
        let before = self.bounded(existing(&mut tx, user)).await?.state;
        if before == UserState::Erased {
            return Ok(());
        }
        let parts = self.on_erase.read().unwrap_or_else(PoisonError::into_inner).clone();
        for part in parts {
            self.bounded(part.erase(&mut tx, user)).await?;
        }
        let erasing = async move {
            store::erase(&mut tx, user).await?;
            note(&mut tx, user, actor, ERASED, change(before, UserState::Erased)).await?;
            self.tell(&mut tx, user, &event::erased(user))?;
            Ok(tx.commit().await?)
        };
        self.bounded(erasing).await
    }

    /// Finds users by their id, the id of one of their accounts, a subject, or a display name. Returns those behind an id, in the order
    /// of their ids.
    pub async fn search(
        &self,
        text: &str,
        after: Option<UserId>,
        limit: u32,
    ) -> Result<Vec<UserView>, Error> {
        let after = after.map(|user| *user.as_uuid()).unwrap_or_default();
        let reading = async {
            let mut connection = self.db.connection().await?;
            Ok(store::find(&mut connection, text, after, limit.clamp(1, MOST_RECORDS)).await?)
        };
        self.bounded(reading).await
    }

    /// By what a user signs in. None once the user is erased.
    pub async fn identities(&self, user: UserId) -> Result<Vec<LinkedIdentity>, Error> {
        let reading = async { Ok(store::linked_identities(&mut self.db.connection().await?, user).await?) };
        self.bounded(reading).await
    }

    /// What was done to a user, the last first. It stays when the user is erased.
    pub async fn audit(&self, user: UserId, limit: u32) -> Result<Vec<AuditRecord>, Error> {
        let reading = async {
            let mut connection = self.db.connection().await?;
            let records = store::audit(&mut connection, user, limit.clamp(1, MOST_RECORDS)).await?;
            if records.is_empty() {
                existing(&mut connection, user).await?;
            }
            Ok(records)
        };
        self.bounded(reading).await
    }
}

fn change(from: UserState, to: UserState) -> Value {
    json!({ "from": from.word(), "to": to.word() })
}
