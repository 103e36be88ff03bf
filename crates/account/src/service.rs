//! Sign-ins, identities and accounts.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use base::Clock;
use base::id::Uuid;
use db::{Db, Tx};
use hierlock::{LockManager, Target};
use outbox::Outbox;
use serde_json::{Value, json};

use crate::event::{self, EventData};
use crate::model::{ACCOUNT_NAME, ACTOR, Claims, Identity};
use crate::retry::retry_conflicts;
use crate::{
    Account, AccountId, DEFAULT_ACCOUNT, Error, OnErase, OnSessionsEnd, SignIn, SignInResult, UserId,
    UserState, UserView, store,
};

pub(crate) const LINKED: &str = "identity.linked";
pub(crate) const UNLINKED: &str = "identity.unlinked";

/// Users, their identities and accounts. Cheap to clone; clones share state.
#[derive(Clone)]
pub struct Accounts(Arc<Inner>);

/// The state that clones share.
pub struct Inner {
    pub(crate) db: Db,
    locks: LockManager,
    pub(crate) outbox: Outbox,
    clock: Clock,
    /// Registered while services open, called when a user is erased.
    pub(crate) on_erase: RwLock<Vec<Arc<dyn OnErase>>>,
    /// Registered while services open, called when the sessions of a user end.
    pub(crate) on_sessions_end: RwLock<Vec<Arc<dyn OnSessionsEnd>>>,
}

impl Accounts {
    /// `locks` and `outbox` must belong to the database `db`.
    pub fn new(db: Db, locks: LockManager, outbox: Outbox, clock: Clock) -> Self {
        let (on_erase, on_sessions_end) = Default::default();
        Self(Arc::new(Inner { db, locks, outbox, clock, on_erase, on_sessions_end }))
    }

    /// Registers a service that stores data about users. Hooks are called in the order of their registration.
    pub fn on_erase(&self, hook: Arc<dyn OnErase>) {
        self.on_erase.write().unwrap_or_else(PoisonError::into_inner).push(hook);
    }

    /// Registers a service that stores sessions of users.
    pub fn on_sessions_end(&self, hook: Arc<dyn OnSessionsEnd>) {
        self.on_sessions_end.write().unwrap_or_else(PoisonError::into_inner).push(hook);
    }

    /// Finds the user of an identity, or creates the user at the first sign-in.
    ///
    /// The claims replace the stored roles, and the stored name if they contain one.
    pub async fn sign_in(&self, sign_in: &SignIn) -> Result<SignInResult, Error> {
        let claims = Claims::validate(sign_in)?;
        retry_conflicts(|| self.bounded(self.try_sign_in(&claims))).await
    }

    /// Signs in like [`sign_in`](Self::sign_in) and also returns the user's accounts, oldest first. A known user with unchanged claims
    /// costs one query.
    pub async fn sign_in_with_accounts(&self, sign_in: &SignIn) -> Result<(UserView, Vec<Account>), Error> {
        let claims = Claims::validate(sign_in)?;
        let read =
            async { Ok(store::user_and_accounts(&mut self.db.connection().await?, &claims.identity).await?) };
        match self.bounded(read).await? {
            Some((user, accounts)) if !claims.differ_from(&user) => Ok((require_active(user)?, accounts)),
            _ => {
                let user = self.sign_in(sign_in).await?.user;
                let accounts = self.accounts(user.id).await?;
                Ok((user, accounts))
            }
        }
    }

    /// Signs in like [`sign_in_with_accounts`](Self::sign_in_with_accounts), but never creates a user: for identities that have signed in
    /// before. Fails with [`Error::UnknownIdentity`] if the user was erased since.
    pub async fn find_with_accounts(&self, sign_in: &SignIn) -> Result<(UserView, Vec<Account>), Error> {
        let claims = Claims::validate(sign_in)?;
        let read =
            async { Ok(store::user_and_accounts(&mut self.db.connection().await?, &claims.identity).await?) };
        match self.bounded(read).await? {
            None => Err(Error::UnknownIdentity),
            Some((user, accounts)) if !claims.differ_from(&user) => Ok((require_active(user)?, accounts)),
            Some((user, accounts)) => {
                let user =
                    retry_conflicts(|| self.bounded(self.update_claims(user.clone(), &claims))).await?.user;
                Ok((user, accounts))
            }
        }
    }

    async fn try_sign_in(&self, claims: &Claims<'_>) -> Result<SignInResult, Error> {
        let found = {
            let mut connection = self.db.connection().await?;
            store::user_of_identity(&mut connection, &claims.identity).await?
        };
        match found {
            Some(user) => self.update_claims(user, claims).await,
            None => self.register(claims).await,
        }
    }

    /// Updates the stored name and roles if the claims differ.
    async fn update_claims(&self, user: UserView, claims: &Claims<'_>) -> Result<SignInResult, Error> {
        let user = require_active(user)?;
        if !claims.differ_from(&user) {
            return Ok(SignInResult { user, created: false });
        }
        let mut tx = self.db.begin().await?;
        if !store::update_user(&mut tx, user.id, claims).await? {
            // Banned or erased since it was read.
            return Err(Error::Conflict);
        }
        let user = require_user(&mut tx, user.id).await?;
        tx.commit().await?;
        Ok(SignInResult { user, created: false })
    }

    /// Creates the user of an identity. Fails with [`db::Error::Duplicate`] if a concurrent request has created it.
    async fn register(&self, claims: &Claims<'_>) -> Result<SignInResult, Error> {
        let (user, account) = (UserId::generate(), AccountId::generate());
        let mut tx = self.db.begin().await?;
        // First, because its unique key decides: a concurrent registration waits here and has written nothing else.
        store::insert_identity(&mut tx, user, &claims.identity).await?;
        store::insert_user(&mut tx, user, claims).await?;
        store::insert_account(&mut tx, user, account, DEFAULT_ACCOUNT).await?;
        // No lock is needed for the order of the user's events: no other transaction sees the user yet.
        self.append_event(&mut tx, user, &event::registered(user, account))?;
        let user = require_user(&mut tx, user).await?;
        tx.commit().await?;
        Ok(SignInResult { user, created: true })
    }

    /// Returns a user, even if banned or erased.
    pub async fn user(&self, user: UserId) -> Result<UserView, Error> {
        self.bounded(async { require_user(&mut self.db.connection().await?, user).await }).await
    }

    /// Returns the user of an identity.
    pub async fn find(&self, issuer: &str, subject: &str) -> Result<UserView, Error> {
        let identity = Identity::validate(issuer, subject)?;
        let read = async {
            let found = store::user_of_identity(&mut self.db.connection().await?, &identity).await?;
            found.ok_or(Error::UnknownIdentity)
        };
        self.bounded(read).await
    }

    /// Returns users who are not erased, ordered by id, which is the order of registration. Starts after `after`, if set.
    pub async fn ids_after(&self, after: Option<UserId>, limit: u32) -> Result<Vec<UserId>, Error> {
        let after = after.map_or(Uuid::nil(), |user| *user.as_uuid());
        let read = async { Ok(store::ids_after(&mut self.db.connection().await?, after, limit).await?) };
        self.bounded(read).await
    }

    /// Returns the given users who exist and are not erased.
    pub async fn filter_existing(&self, users: &[UserId]) -> Result<Vec<UserId>, Error> {
        let read = async { Ok(store::filter_existing(&mut self.db.connection().await?, users).await?) };
        self.bounded(read).await
    }

    /// Returns the accounts of a user, oldest first. An erased user has none.
    pub async fn accounts(&self, user: UserId) -> Result<Vec<Account>, Error> {
        let read = async {
            let mut connection = self.db.connection().await?;
            let accounts = store::accounts(&mut connection, user).await?;
            if accounts.is_empty() {
                require_user(&mut connection, user).await?;
            }
            Ok(accounts)
        };
        self.bounded(read).await
    }

    /// Creates an account, or returns the existing one with this name.
    pub async fn create_account(&self, user: UserId, name: &str) -> Result<Account, Error> {
        let name = ACCOUNT_NAME.check_name(name)?;
        retry_conflicts(|| self.try_create_account(user, name)).await
    }

    async fn try_create_account(&self, user: UserId, name: &str) -> Result<Account, Error> {
        let read = async { Ok(store::account_of_name(&mut self.db.connection().await?, user, name).await?) };
        if let Some(account) = self.bounded(read).await? {
            return Ok(account);
        }
        let account = AccountId::generate();
        // Shares the user with other work on accounts, and excludes the erasure of the user.
        let (user_text, account_text) = (user.to_string(), account.to_string());
        let target = Target::account(&user_text, &account_text).map_err(lock_error)?;
        let mut tx = self.db.begin_locked(&self.locks, &[target]).await?;
        let create = async move {
            require_active(require_user(&mut tx, user).await?)?;
            store::insert_account(&mut tx, user, account, name).await?;
            let created = store::account_of_name(&mut tx, user, name).await?;
            tx.commit().await?;
            created.ok_or(Error::Conflict)
        };
        self.bounded(create).await
    }

    /// Links another identity to a user, who can then also sign in with it.
    pub async fn link(&self, user: UserId, issuer: &str, subject: &str, actor: &str) -> Result<(), Error> {
        let (identity, actor) = (Identity::validate(issuer, subject)?, ACTOR.check(actor)?);
        retry_conflicts(|| self.try_link(user, identity, actor)).await
    }

    async fn try_link(&self, user: UserId, identity: Identity<'_>, actor: &str) -> Result<(), Error> {
        let mut tx = self.begin_exclusive(user).await?;
        let link = async move {
            require_active(require_user(&mut tx, user).await?)?;
            match store::insert_identity(&mut tx, user, &identity).await {
                Ok(()) => {}
                Err(db::Error::Duplicate(_)) => {
                    let owner = store::user_of_identity(&mut tx, &identity).await?;
                    let is_linked_here = owner.is_some_and(|owner| owner.id == user);
                    return if is_linked_here { Ok(()) } else { Err(Error::LinkedElsewhere) };
                }
                Err(error) => return Err(error.into()),
            }
            let identities = store::identities(&mut tx, user).await?.len();
            record_audit(&mut tx, user, actor, LINKED, json!({ "identities": identities })).await?;
            Ok(tx.commit().await?)
        };
        self.bounded(link).await
    }

    /// Unlinks an identity from a user. Refuses the last one: without it the user could never sign in again.
    pub async fn unlink(&self, user: UserId, issuer: &str, subject: &str, actor: &str) -> Result<(), Error> {
        let (identity, actor) = (Identity::validate(issuer, subject)?, ACTOR.check(actor)?);
        retry_conflicts(|| self.try_unlink(user, identity, actor)).await
    }

    async fn try_unlink(&self, user: UserId, identity: Identity<'_>, actor: &str) -> Result<(), Error> {
        let mut tx = self.begin_exclusive(user).await?;
        let unlink = async move {
            // A banned user could sign in as a new user with an unlinked identity.
            require_active(require_user(&mut tx, user).await?)?;
            let identities = store::identities(&mut tx, user).await?;
            let hash = identity.hash();
            if !identities.iter().any(|known| *known == hash) {
                return Err(Error::UnknownIdentity);
            }
            if identities.len() == 1 {
                return Err(Error::LastIdentity);
            }
            store::delete_identity(&mut tx, user, &identity).await?;
            record_audit(&mut tx, user, actor, UNLINKED, json!({ "identities": identities.len() - 1 }))
                .await?;
            Ok(tx.commit().await?)
        };
        self.bounded(unlink).await
    }

    /// Returns whether the account belongs to the user and the user is not erased, as the caller's transaction sees it. If the caller holds
    /// a lock on the account or on a resource in it, the result stays true until the transaction ends.
    pub async fn owns(tx: &mut Tx, user: UserId, account: AccountId) -> Result<bool, Error> {
        Ok(store::has_account(tx, user, account).await?)
    }

    /// The condition of [`owns`](Self::owns) as a column, for a `SELECT` that reads further columns in the same query. Its parameters are
    /// the user id and the account id.
    pub const OWNS: &str = store::HAS_ACCOUNT;

    /// Runs database work with the timeout of the database.
    pub(crate) async fn bounded<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.db.bounded(work).await
    }

    /// Begins a transaction with the exclusive lock on the user. Bounded by the timeouts of locks and connections.
    pub(crate) async fn begin_exclusive(&self, user: UserId) -> Result<Tx, Error> {
        let user = user.to_string();
        Ok(self.db.begin_locked(&self.locks, &[Target::user(&user).map_err(lock_error)?]).await?)
    }

    /// Appends an event to the outbox. The commit of the transaction writes it.
    pub(crate) fn append_event(&self, tx: &mut Tx, user: UserId, data: &impl EventData) -> Result<(), Error> {
        let event = event::user_event(user, self.clock.now(), data)?;
        self.outbox.append(tx, &[(*user.as_uuid(), event)]);
        Ok(())
    }
}

impl Deref for Accounts {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accounts").finish_non_exhaustive()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

/// Reads a user. Fails with [`Error::NotFound`] if there is none.
pub(crate) async fn require_user(from: &mut impl store::Queryable, user: UserId) -> Result<UserView, Error> {
    store::user(from, user).await?.ok_or(Error::NotFound(user))
}

/// Adds an audit record. The detail must not contain personal data.
pub(crate) async fn record_audit(
    tx: &mut Tx,
    user: UserId,
    actor: &str,
    action: &str,
    detail: Value,
) -> Result<(), Error> {
    Ok(store::insert_audit(tx, user, actor, action, &detail).await?)
}

/// Returns the user. Fails if banned or erased.
fn require_active(user: UserView) -> Result<UserView, Error> {
    match user.state {
        UserState::Active => Ok(user),
        UserState::Banned => {
            Err(Error::Banned { user: user.id, reason: user.ban_reason.unwrap_or_default() })
        }
        UserState::Erased => Err(Error::Erased(user.id)),
    }
}

fn lock_error(error: hierlock::EmptyId) -> Error {
    db::Error::from(hierlock::Error::from(error)).into()
}
