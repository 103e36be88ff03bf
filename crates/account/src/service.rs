//! Signing in, identities and accounts.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use base::Clock;
use base::id::Uuid;
use db::{Db, Tx};
use hierlock::{Locks, Target};
use outbox::Outbox;
use serde_json::{Value, json};

use crate::event::{self, Data};
use crate::model::{ACCOUNT_NAME, ACTOR, Claims, Identity};
use crate::retry::retrying;
use crate::{
    Account, AccountId, DEFAULT_ACCOUNT, Error, OnErase, OnSessionsEnd, SignIn, SignedIn, UserId, UserState,
    UserView, store,
};

const LINKED: &str = "identity.linked";
const UNLINKED: &str = "identity.unlinked";

/// Users, their identities and accounts. Clones are the same.
#[derive(Clone)]
pub struct Accounts(Arc<Inner>);

/// What the clones share.
pub struct Inner {
    pub(crate) db: Db,
    locks: Locks,
    outbox: Outbox,
    clock: Clock,
    /// Registered while services are opened, read when a user is erased.
    pub(crate) on_erase: RwLock<Vec<Arc<dyn OnErase>>>,
    /// Registered while services are opened, read when the sessions of a user end.
    pub(crate) on_sessions_end: RwLock<Vec<Arc<dyn OnSessionsEnd>>>,
}

impl Accounts {
    /// The locks are those that go with the store, and the outbox is one in it.
    pub fn new(db: Db, locks: Locks, outbox: Outbox, clock: Clock) -> Self {
        let (on_erase, on_sessions_end) = (RwLock::default(), RwLock::default());
        Self(Arc::new(Inner { db, locks, outbox, clock, on_erase, on_sessions_end }))
    }

    /// Registers a part of the product that keeps something of users. Parts erase in the order in which they are registered.
    pub fn on_erase(&self, part: Arc<dyn OnErase>) {
        self.on_erase.write().unwrap_or_else(PoisonError::into_inner).push(part);
    }

    /// Registers a part of the product that keeps sessions of users.
    pub fn on_sessions_end(&self, part: Arc<dyn OnSessionsEnd>) {
        self.on_sessions_end.write().unwrap_or_else(PoisonError::into_inner).push(part);
    }

    /// Finds the user of an identity, and makes one if it has none yet.
    ///
    /// Claims count as they come: the roles become those of this sign-in, the name that of this one if it has any.
    pub async fn sign_in(&self, sign_in: &SignIn) -> Result<SignedIn, Error> {
        let claims = Claims::checked(sign_in)?;
        retrying(|| self.bounded(self.try_sign_in(&claims))).await
    }

    /// As [`sign_in`](Self::sign_in), with the user's accounts, the oldest first. Of whoever is known, and of whom nothing new is said,
    /// it takes one question.
    pub async fn sign_in_with_accounts(&self, sign_in: &SignIn) -> Result<(UserView, Vec<Account>), Error> {
        let claims = Claims::checked(sign_in)?;
        let reading =
            async { Ok(store::user_and_accounts(&mut self.db.connection().await?, &claims.identity).await?) };
        match self.bounded(reading).await? {
            Some((user, accounts)) if !claims.differ_from(&user) => Ok((active(user)?, accounts)),
            _ => {
                let user = self.sign_in(sign_in).await?.user;
                let accounts = self.accounts(user.id).await?;
                Ok((user, accounts))
            }
        }
    }

    /// As [`sign_in_with_accounts`](Self::sign_in_with_accounts), for an identity that has signed in before: nobody is registered. Fails with
    /// [`Error::UnknownIdentity`] if its user was erased since.
    pub async fn find_with_accounts(&self, sign_in: &SignIn) -> Result<(UserView, Vec<Account>), Error> {
        let claims = Claims::checked(sign_in)?;
        let reading =
            async { Ok(store::user_and_accounts(&mut self.db.connection().await?, &claims.identity).await?) };
        match self.bounded(reading).await? {
            None => Err(Error::UnknownIdentity),
            Some((user, accounts)) if !claims.differ_from(&user) => Ok((active(user)?, accounts)),
            Some((user, accounts)) => {
                let user = retrying(|| self.bounded(self.welcome_back(user.clone(), &claims))).await?.user;
                Ok((user, accounts))
            }
        }
    }

    async fn try_sign_in(&self, claims: &Claims<'_>) -> Result<SignedIn, Error> {
        let found = {
            let mut connection = self.db.connection().await?;
            store::user_of_identity(&mut connection, &claims.identity).await?
        };
        match found {
            Some(user) => self.welcome_back(user, claims).await,
            None => self.register(claims).await,
        }
    }

    async fn welcome_back(&self, user: UserView, claims: &Claims<'_>) -> Result<SignedIn, Error> {
        let user = active(user)?;
        if !claims.differ_from(&user) {
            return Ok(SignedIn { user, created: false });
        }
        let mut tx = self.db.begin().await?;
        if !store::update_user(&mut tx, user.id, claims).await? {
            // Banned or erased since we looked.
            return Err(Error::Raced);
        }
        let user = existing(&mut tx, user.id).await?;
        tx.commit().await?;
        Ok(SignedIn { user, created: false })
    }

    /// Fails with [`db::Error::Duplicate`] if somebody else is registering the same identity, and is done with it.
    async fn register(&self, claims: &Claims<'_>) -> Result<SignedIn, Error> {
        let (user, account) = (UserId::generate(), AccountId::generate());
        let mut tx = self.db.begin().await?;
        // First, for its key decides: whoever comes second waits here for the first, and has written nothing else.
        store::insert_identity(&mut tx, user, &claims.identity).await?;
        store::insert_user(&mut tx, user, claims).await?;
        store::insert_account(&mut tx, user, account, DEFAULT_ACCOUNT).await?;
        // Nobody else knows the user yet, so the order of the user's events needs no lock here.
        self.tell(&mut tx, user, &event::registered(user, account))?;
        let user = existing(&mut tx, user).await?;
        tx.commit().await?;
        Ok(SignedIn { user, created: true })
    }

    /// Also one who is banned or erased.
    pub async fn user(&self, user: UserId) -> Result<UserView, Error> {
        self.bounded(async { existing(&mut self.db.connection().await?, user).await }).await
    }

    /// The user of an identity.
    pub async fn find(&self, issuer: &str, subject: &str) -> Result<UserView, Error> {
        let identity = Identity::checked(issuer, subject)?;
        let reading = async {
            let found = store::user_of_identity(&mut self.db.connection().await?, &identity).await?;
            found.ok_or(Error::UnknownIdentity)
        };
        self.bounded(reading).await
    }

    /// Users who are not erased, in the order of their ids, which is that of their registration: from behind one, or from the start.
    pub async fn ids_after(&self, after: Option<UserId>, limit: u32) -> Result<Vec<UserId>, Error> {
        let after = after.map_or(Uuid::nil(), |user| *user.as_uuid());
        let reading = async { Ok(store::ids_after(&mut self.db.connection().await?, after, limit).await?) };
        self.bounded(reading).await
    }

    /// Those of these users who exist and are not erased.
    pub async fn known(&self, users: &[UserId]) -> Result<Vec<UserId>, Error> {
        let reading = async { Ok(store::known(&mut self.db.connection().await?, users).await?) };
        self.bounded(reading).await
    }

    /// The accounts of a user, the oldest first; none once the user is erased.
    pub async fn accounts(&self, user: UserId) -> Result<Vec<Account>, Error> {
        let reading = async {
            let mut connection = self.db.connection().await?;
            let accounts = store::accounts(&mut connection, user).await?;
            if accounts.is_empty() {
                existing(&mut connection, user).await?;
            }
            Ok(accounts)
        };
        self.bounded(reading).await
    }

    /// Makes an account, or returns the one that has the name.
    pub async fn create_account(&self, user: UserId, name: &str) -> Result<Account, Error> {
        let name = ACCOUNT_NAME.check_name(name)?;
        retrying(|| self.try_create_account(user, name)).await
    }

    async fn try_create_account(&self, user: UserId, name: &str) -> Result<Account, Error> {
        let reading =
            async { Ok(store::account_of_name(&mut self.db.connection().await?, user, name).await?) };
        if let Some(account) = self.bounded(reading).await? {
            return Ok(account);
        }
        let account = AccountId::generate();
        // Shares the user with others who make or use accounts, and keeps out whoever erases the user.
        let (user_text, account_text) = (user.to_string(), account.to_string());
        let target = Target::account(&user_text, &account_text).map_err(locking)?;
        let mut tx = self.db.begin_locked(&self.locks, &[target]).await?;
        let making = async move {
            active(existing(&mut tx, user).await?)?;
            store::insert_account(&mut tx, user, account, name).await?;
            let made = store::account_of_name(&mut tx, user, name).await?;
            tx.commit().await?;
            made.ok_or(Error::Raced)
        };
        self.bounded(making).await
    }

    /// Lets a user sign in with another identity as well.
    pub async fn link(&self, user: UserId, issuer: &str, subject: &str, actor: &str) -> Result<(), Error> {
        let (identity, actor) = (Identity::checked(issuer, subject)?, ACTOR.check(actor)?);
        retrying(|| self.try_link(user, identity, actor)).await
    }

    async fn try_link(&self, user: UserId, identity: Identity<'_>, actor: &str) -> Result<(), Error> {
        let mut tx = self.begin_with(user).await?;
        let linking = async move {
            active(existing(&mut tx, user).await?)?;
            match store::insert_identity(&mut tx, user, &identity).await {
                Ok(()) => {}
                Err(db::Error::Duplicate(_)) => {
                    let owner = store::user_of_identity(&mut tx, &identity).await?;
                    let is_ours = owner.is_some_and(|owner| owner.id == user);
                    return if is_ours { Ok(()) } else { Err(Error::LinkedElsewhere) };
                }
                Err(error) => return Err(error.into()),
            }
            let identities = store::identities(&mut tx, user).await?.len();
            note(&mut tx, user, actor, LINKED, json!({ "identities": identities })).await?;
            Ok(tx.commit().await?)
        };
        self.bounded(linking).await
    }

    /// Takes an identity from a user. The last one stays: without it nobody could sign in as the user ever again.
    pub async fn unlink(&self, user: UserId, issuer: &str, subject: &str, actor: &str) -> Result<(), Error> {
        let (identity, actor) = (Identity::checked(issuer, subject)?, ACTOR.check(actor)?);
        retrying(|| self.try_unlink(user, identity, actor)).await
    }

    async fn try_unlink(&self, user: UserId, identity: Identity<'_>, actor: &str) -> Result<(), Error> {
        let mut tx = self.begin_with(user).await?;
        let unlinking = async move {
            // An identity of a banned user that were free could sign in as a new one.
            active(existing(&mut tx, user).await?)?;
            let identities = store::identities(&mut tx, user).await?;
            let hash = identity.hash();
            if !identities.iter().any(|known| *known == hash) {
                return Err(Error::UnknownIdentity);
            }
            if identities.len() == 1 {
                return Err(Error::LastIdentity);
            }
            store::delete_identity(&mut tx, user, &identity).await?;
            note(&mut tx, user, actor, UNLINKED, json!({ "identities": identities.len() - 1 })).await?;
            Ok(tx.commit().await?)
        };
        self.bounded(unlinking).await
    }

    /// Whether the account is the user's and the user is not erased, as the caller's transaction sees it. Whoever holds a lock
    /// on the account, or on anything in it, can rely on the answer until the transaction ends.
    pub async fn owns(tx: &mut Tx, user: UserId, account: AccountId) -> Result<bool, Error> {
        Ok(store::has_account(tx, user, account).await?)
    }

    /// The same as [`owns`](Self::owns), as a column for a `SELECT` that reads other things on the same way. It takes the id of the
    /// user and that of the account.
    pub const OWNS: &str = store::HAS_ACCOUNT;

    /// Does something with the store, and gives up when it takes too long.
    pub(crate) async fn bounded<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.db.bounded(work).await
    }

    /// Begins a transaction that has the user to itself. Bounded by what locks and connections are bounded by.
    pub(crate) async fn begin_with(&self, user: UserId) -> Result<Tx, Error> {
        let user = user.to_string();
        Ok(self.db.begin_locked(&self.locks, &[Target::user(&user).map_err(locking)?]).await?)
    }

    /// Has an event leave with the transaction: its commit writes it.
    pub(crate) fn tell(&self, tx: &mut Tx, user: UserId, data: &impl Data) -> Result<(), Error> {
        let event = event::about(user, self.clock.now(), data)?;
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

pub(crate) async fn existing(from: &mut impl store::Ask, user: UserId) -> Result<UserView, Error> {
    store::user(from, user).await?.ok_or(Error::NotFound(user))
}

/// Writes down what is done, by whom. The detail has nothing personal in it.
pub(crate) async fn note(
    tx: &mut Tx,
    user: UserId,
    actor: &str,
    action: &str,
    detail: Value,
) -> Result<(), Error> {
    Ok(store::insert_audit(tx, user, actor, action, &detail).await?)
}

/// The user, unless banned or erased.
fn active(user: UserView) -> Result<UserView, Error> {
    match user.state {
        UserState::Active => Ok(user),
        UserState::Banned => {
            Err(Error::Banned { user: user.id, reason: user.ban_reason.unwrap_or_default() })
        }
        UserState::Erased => Err(Error::Erased(user.id)),
    }
}

fn locking(error: hierlock::EmptyId) -> Error {
    db::Error::from(hierlock::Error::from(error)).into()
}
