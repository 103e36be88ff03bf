//! Operations of operators: bans, the end of sessions, notes, erasure, search and the audit log.

use std::sync::PoisonError;

use base::id::Uuid;
use db::Tx;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::model::{ACTOR, NOTE, REASON};
use crate::retry::retry_conflicts;
use crate::service::{record_audit, require_user};
use crate::{
    Account, AccountId, Accounts, AuditRecord, Error, LinkedIdentity, Note, UserId, UserState, UserView,
    event, store,
};

pub(crate) const BANNED: &str = "user.banned";
pub(crate) const UNBANNED: &str = "user.unbanned";
pub(crate) const ERASED: &str = "user.erased";
pub(crate) const SESSIONS_ENDED: &str = "sessions.ended";

/// The maximum number of listed users or records.
const MAX_LIMIT: u32 = 1_000;

/// A service that stores data about users.
///
/// It is called under the user's exclusive lock, while the user's accounts still exist. It is called again if the transaction is
/// retried. An error rolls back the whole erasure. Each call is bounded by the timeout of a database call.
pub trait OnErase: Send + Sync {
    /// Removes or revokes all data about the user, in the transaction that erases the user.
    fn erase<'a>(&'a self, tx: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), Error>>;
}

/// A service that stores sessions of users.
///
/// It is called under the user's exclusive lock, and again if the transaction is retried. An error rolls back the whole change.
pub trait OnSessionsEnd: Send + Sync {
    /// Records in this transaction that all current sessions of the user have ended.
    fn end_sessions<'a>(&'a self, tx: &'a mut Tx, user: UserId) -> BoxFuture<'a, Result<(), Error>>;
}

impl Accounts {
    /// Bans a user: ends all sessions and refuses sign-ins. A new reason replaces the previous one.
    pub async fn ban(&self, user: UserId, reason: &str, actor: &str) -> Result<(), Error> {
        let (reason, actor) = (REASON.check(reason)?, ACTOR.check(actor)?);
        retry_conflicts(|| self.try_ban(user, reason, actor)).await
    }

    async fn try_ban(&self, user: UserId, reason: &str, actor: &str) -> Result<(), Error> {
        let mut tx = self.begin_exclusive(user).await?;
        let ban = async move {
            let before = require_user(&mut tx, user).await?;
            match before.state {
                UserState::Erased => return Err(Error::Erased(user)),
                UserState::Banned if before.ban_reason.as_deref() == Some(reason) => return Ok(()),
                UserState::Banned | UserState::Active => {}
            }
            store::set_state(&mut tx, user, UserState::Banned, Some(reason)).await?;
            self.end_sessions_in(&mut tx, user).await?;
            // Without the reason, which may contain personal data.
            record_audit(&mut tx, user, actor, BANNED, transition(before.state, UserState::Banned)).await?;
            self.append_event(&mut tx, user, &event::banned(user))?;
            Ok(tx.commit().await?)
        };
        self.bounded(ban).await
    }

    /// Lets a banned user sign in again.
    pub async fn unban(&self, user: UserId, actor: &str) -> Result<(), Error> {
        let actor = ACTOR.check(actor)?;
        retry_conflicts(|| self.try_unban(user, actor)).await
    }

    async fn try_unban(&self, user: UserId, actor: &str) -> Result<(), Error> {
        let mut tx = self.begin_exclusive(user).await?;
        let unban = async move {
            match require_user(&mut tx, user).await?.state {
                UserState::Erased => return Err(Error::Erased(user)),
                UserState::Active => return Ok(()),
                UserState::Banned => {}
            }
            store::set_state(&mut tx, user, UserState::Active, None).await?;
            record_audit(&mut tx, user, actor, UNBANNED, transition(UserState::Banned, UserState::Active))
                .await?;
            self.append_event(&mut tx, user, &event::unbanned(user))?;
            Ok(tx.commit().await?)
        };
        self.bounded(unban).await
    }

    /// Ends all current sessions of a user. The user may sign in again.
    pub async fn end_sessions(&self, user: UserId, actor: &str) -> Result<(), Error> {
        let actor = ACTOR.check(actor)?;
        retry_conflicts(|| self.try_end_sessions(user, actor)).await
    }

    async fn try_end_sessions(&self, user: UserId, actor: &str) -> Result<(), Error> {
        let mut tx = self.begin_exclusive(user).await?;
        let end = async move {
            if require_user(&mut tx, user).await?.state == UserState::Erased {
                return Err(Error::Erased(user));
            }
            self.end_sessions_in(&mut tx, user).await?;
            record_audit(&mut tx, user, actor, SESSIONS_ENDED, json!({})).await?;
            Ok(tx.commit().await?)
        };
        self.bounded(end).await
    }

    async fn end_sessions_in(&self, tx: &mut Tx, user: UserId) -> Result<(), Error> {
        let hooks = self.on_sessions_end.read().unwrap_or_else(PoisonError::into_inner).clone();
        for hook in hooks {
            hook.end_sessions(tx, user).await?;
        }
        Ok(())
    }

    /// Adds a note about a user. It is removed when the user is erased.
    pub async fn add_note(&self, user: UserId, note: &str, actor: &str) -> Result<(), Error> {
        let (note, actor) = (NOTE.check_lines(note)?, ACTOR.check(actor)?);
        retry_conflicts(|| self.try_add_note(user, note, actor)).await
    }

    async fn try_add_note(&self, user: UserId, note: &str, actor: &str) -> Result<(), Error> {
        // Excludes the erasure of the user: no note may appear after it.
        let mut tx = self.begin_exclusive(user).await?;
        let add = async move {
            if require_user(&mut tx, user).await?.state == UserState::Erased {
                return Err(Error::Erased(user));
            }
            store::insert_note(&mut tx, user, actor, note).await?;
            Ok(tx.commit().await?)
        };
        self.bounded(add).await
    }

    /// Returns the notes about a user, newest first.
    pub async fn notes(&self, user: UserId, limit: u32) -> Result<Vec<Note>, Error> {
        let read = async {
            let mut connection = self.db.connection().await?;
            Ok(store::notes(&mut connection, user, limit.clamp(1, MAX_LIMIT)).await?)
        };
        self.bounded(read).await
    }

    /// Removes all personal data of a user, here and in every [`OnErase`], or nothing.
    pub async fn erase(&self, user: UserId, actor: &str) -> Result<(), Error> {
        let actor = ACTOR.check(actor)?;
        retry_conflicts(|| self.try_erase(user, actor)).await
    }

    async fn try_erase(&self, user: UserId, actor: &str) -> Result<(), Error> {
        let mut tx = self.begin_exclusive(user).await?;
        let before = self.bounded(require_user(&mut tx, user)).await?.state;
        if before == UserState::Erased {
            return Ok(());
        }
        let hooks = self.on_erase.read().unwrap_or_else(PoisonError::into_inner).clone();
        for hook in hooks {
            self.bounded(hook.erase(&mut tx, user)).await?;
        }
        let erase = async move {
            store::erase(&mut tx, user).await?;
            record_audit(&mut tx, user, actor, ERASED, transition(before, UserState::Erased)).await?;
            self.append_event(&mut tx, user, &event::erased(user))?;
            Ok(tx.commit().await?)
        };
        self.bounded(erase).await
    }

    /// Finds users by user id, account id, subject or display name. Returns those with an id greater than `after`, ordered by id.
    pub async fn search(
        &self,
        text: &str,
        after: Option<UserId>,
        limit: u32,
    ) -> Result<Vec<UserView>, Error> {
        let after = after.map(|user| *user.as_uuid()).unwrap_or_default();
        let read = async {
            let mut connection = self.db.connection().await?;
            Ok(store::find(&mut connection, text, after, limit.clamp(1, MAX_LIMIT)).await?)
        };
        self.bounded(read).await
    }

    /// Finds users whose display name begins with `prefix`, ordered by name and id, after the name and id `after`.
    pub async fn search_by_prefix(
        &self,
        prefix: &str,
        after: Option<(&str, UserId)>,
        limit: u32,
    ) -> Result<Vec<UserView>, Error> {
        let after = after.map(|(name, user)| (name, *user.as_uuid()));
        let read = async {
            let mut connection = self.db.connection().await?;
            Ok(store::find_by_prefix(&mut connection, prefix, after, limit.clamp(1, MAX_LIMIT)).await?)
        };
        self.bounded(read).await
    }

    /// Returns the users who registered before `before`, newest first.
    pub async fn newest(&self, before: Option<UserId>, limit: u32) -> Result<Vec<UserView>, Error> {
        let before = before.map_or(Uuid::max(), |user| *user.as_uuid());
        let read = async {
            let mut connection = self.db.connection().await?;
            Ok(store::newest(&mut connection, before, limit.clamp(1, MAX_LIMIT)).await?)
        };
        self.bounded(read).await
    }

    /// Returns the account with this id, of any user. None if there is no such account.
    pub async fn account(&self, account: AccountId) -> Result<Option<Account>, Error> {
        let read = async { Ok(store::find_by_account(&mut self.db.connection().await?, account).await?) };
        self.bounded(read).await
    }

    /// Returns the identities of a user. An erased user has none.
    pub async fn identities(&self, user: UserId) -> Result<Vec<LinkedIdentity>, Error> {
        let read = async { Ok(store::linked_identities(&mut self.db.connection().await?, user).await?) };
        self.bounded(read).await
    }

    /// Returns the audit records of a user, newest first. They remain when the user is erased.
    pub async fn audit(&self, user: UserId, limit: u32) -> Result<Vec<AuditRecord>, Error> {
        let read = async {
            let mut connection = self.db.connection().await?;
            let records = store::audit(&mut connection, user, limit.clamp(1, MAX_LIMIT)).await?;
            if records.is_empty() {
                require_user(&mut connection, user).await?;
            }
            Ok(records)
        };
        self.bounded(read).await
    }
}

/// Describes a change of state for the audit log.
fn transition(from: UserState, to: UserState) -> Value {
    json!({ "from": from.word(), "to": to.word() })
}
