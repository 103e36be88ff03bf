//! The hierarchy of lock targets.

use std::fmt;

use crate::Row;

/// A level of the hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    User = 0,
    Account = 1,
    Resource = 2,
}

impl Level {
    pub const ALL: [Self; 3] = [Self::User, Self::Account, Self::Resource];

    /// Returns the name for metrics and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Account => "account",
            Self::Resource => "resource",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A user, an account of a user, or a resource of an account. Ids are non-empty and may contain any character.
///
/// ```
/// use hierlock::Target;
///
/// let sword = Target::resource("u1", "a1", "sword")?;
/// assert_eq!(sword.to_string(), "u1/a1/sword");
/// assert!(Target::account("u1", "").is_err());
/// # Ok::<_, hierlock::EmptyId>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target<'a> {
    user: &'a str,
    account: Option<&'a str>,
    /// Some only if `account` is.
    resource: Option<&'a str>,
}

/// A target with its own copy of the ids.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnedTarget {
    user: String,
    account: Option<String>,
    /// Some only if `account` is.
    resource: Option<String>,
}

impl OwnedTarget {
    pub fn as_target(&self) -> Target<'_> {
        Target { user: &self.user, account: self.account.as_deref(), resource: self.resource.as_deref() }
    }
}

impl From<Target<'_>> for OwnedTarget {
    fn from(target: Target<'_>) -> Self {
        Self {
            user: target.user.to_owned(),
            account: target.account.map(str::to_owned),
            resource: target.resource.map(str::to_owned),
        }
    }
}

/// An empty id. Rejected, because it is more likely a bug of the caller than an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of the {0} is empty")]
pub struct EmptyId(pub Level);

impl<'a> Target<'a> {
    pub fn user(user: &'a str) -> Result<Self, EmptyId> {
        Ok(Self { user: id(Level::User, user)?, account: None, resource: None })
    }

    pub fn account(user: &'a str, account: &'a str) -> Result<Self, EmptyId> {
        let user = Self::user(user)?;
        Ok(Self { account: Some(id(Level::Account, account)?), ..user })
    }

    pub fn resource(user: &'a str, account: &'a str, resource: &'a str) -> Result<Self, EmptyId> {
        let account = Self::account(user, account)?;
        Ok(Self { resource: Some(id(Level::Resource, resource)?), ..account })
    }

    /// Returns the id of the user that this is or belongs to.
    pub const fn user_id(&self) -> &'a str {
        self.user
    }

    pub const fn level(&self) -> Level {
        match (self.account, self.resource) {
            (None, _) => Level::User,
            (Some(_), None) => Level::Account,
            (Some(_), Some(_)) => Level::Resource,
        }
    }

    /// Returns the ancestors from the user down, then the target itself.
    pub(crate) fn path(self) -> impl Iterator<Item = Self> {
        let user = Self { account: None, resource: None, ..self };
        let account = self.account.map(|_| Self { resource: None, ..self });
        let resource = self.resource.map(|_| self);
        [Some(user), account, resource].into_iter().flatten()
    }

    /// Returns the ids from the user down.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &'a str> {
        [Some(self.user), self.account, self.resource].into_iter().flatten()
    }

    /// Returns the bucket of this target among `buckets`.
    pub fn bucket(&self, buckets: u32) -> u32 {
        crate::bucket_space::bucket(self, buckets)
    }

    /// Returns whether a lock on this target needs the row, for itself or for an ancestor.
    pub(crate) fn needs(&self, row: Row, buckets: u32) -> bool {
        self.path().any(|step| step.level() == row.level && step.bucket(buckets) == row.bucket)
    }

    /// Returns whether locks on the two targets exclude each other: if and only if one is the other or an ancestor of it.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        self.ids().zip(other.ids()).all(|(ours, theirs)| ours == theirs)
    }

    /// Returns whether a lock on this target also locks the other one: it is the same target or an ancestor of it.
    pub fn covers(&self, other: &Self) -> bool {
        self.level() <= other.level() && self.conflicts_with(other)
    }
}

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, id) in self.ids().enumerate() {
            let slash = if depth == 0 { "" } else { "/" };
            write!(f, "{slash}{id}")?;
        }
        Ok(())
    }
}

fn id(level: Level, id: &str) -> Result<&str, EmptyId> {
    if id.is_empty() { Err(EmptyId(level)) } else { Ok(id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_id_is_rejected_with_its_level() {
        assert_eq!(Target::user(""), Err(EmptyId(Level::User)));
        assert_eq!(Target::account("", ""), Err(EmptyId(Level::User)));
        assert_eq!(Target::account("u", ""), Err(EmptyId(Level::Account)));
        assert_eq!(Target::resource("u", "a", ""), Err(EmptyId(Level::Resource)));
        assert_eq!(EmptyId(Level::Account).to_string(), "the id of the account is empty");
    }

    #[test]
    fn path_leads_from_the_user_to_the_target() {
        let levels = |target: Target<'_>| target.path().map(|step| step.level()).collect::<Vec<_>>();
        assert_eq!(levels(Target::resource("u", "a", "r").unwrap()), Level::ALL);
        assert_eq!(levels(Target::account("u", "a").unwrap()), Level::ALL[..2]);
        assert_eq!(levels(Target::user("u").unwrap()), Level::ALL[..1]);
    }

    #[test]
    fn targets_conflict_with_ancestors_and_descendants() {
        let user = Target::user("u").unwrap();
        let account = Target::account("u", "a").unwrap();
        let (sword, shield) =
            (Target::resource("u", "a", "sword").unwrap(), Target::resource("u", "a", "shield").unwrap());
        assert!(user.conflicts_with(&sword) && sword.conflicts_with(&user));
        assert!(account.conflicts_with(&shield) && account.conflicts_with(&account));
        assert!(!sword.conflicts_with(&shield));
        assert!(!sword.conflicts_with(&Target::user("a").unwrap()));
    }

    #[test]
    fn target_covers_itself_and_its_descendants() {
        let (user, account) = (Target::user("u").unwrap(), Target::account("u", "a").unwrap());
        let sword = Target::resource("u", "a", "sword").unwrap();
        for above in [user, account, sword] {
            assert!(above.covers(&sword), "{above}");
        }
        for other in ["v/a/sword", "u/b/sword", "u/a/shield"] {
            let ids: Vec<&str> = other.split('/').collect();
            assert!(!Target::resource(ids[0], ids[1], ids[2]).unwrap().covers(&sword), "{other}");
        }
        assert!(!sword.covers(&account) && !account.covers(&user));
    }

    #[test]
    fn owned_target_equals_its_source() {
        for target in [
            Target::user("u").unwrap(),
            Target::account("u", "a").unwrap(),
            Target::resource("u", "a", "sword").unwrap(),
        ] {
            assert_eq!(OwnedTarget::from(target).as_target(), target);
        }
    }
}
