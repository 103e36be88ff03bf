//! Users, identities, roles and accounts: what they are, and what a text of a caller's may be.

use base::{Timestamp, typed_id};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::Error;

typed_id!(
    /// A person or a service, whatever they sign in with.
    UserId
);

typed_id!(
    /// What a user has in one title, or on one platform. What is owned hangs off an account.
    AccountId
);

typed_id!(
    /// One record of what was done to a user.
    AuditId
);

/// The account that every user has from the start.
pub const DEFAULT_ACCOUNT: &str = "default";

pub(crate) const ISSUER: Field = Field { name: "issuer", most: 500 };
pub(crate) const SUBJECT: Field = Field { name: "subject", most: 255 };
pub(crate) const DISPLAY_NAME: Field = Field { name: "display_name", most: 100 };
pub(crate) const ACCOUNT_NAME: Field = Field { name: "name", most: 100 };
pub(crate) const REASON: Field = Field { name: "reason", most: 500 };
pub(crate) const ACTOR: Field = Field { name: "actor", most: 255 };

/// What a user may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum UserState {
    Active,
    /// May not sign in.
    Banned,
    /// Nothing personal is left, and nothing will be again.
    Erased,
}

/// What a user may do, by the claims of whoever vouches for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Player,
    Operator,
    Service,
}

/// A user as others see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserView {
    pub id: UserId,
    pub state: UserState,
    pub display_name: Option<String>,
    /// In order, each once. None once the user is erased.
    pub roles: Vec<Role>,
    /// Some just while the user is banned.
    pub ban_reason: Option<String>,
    pub created_at: Timestamp,
}

/// By what a user signs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedIdentity {
    pub issuer: String,
    pub subject: String,
    pub linked_at: Timestamp,
}

/// An account of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub id: AccountId,
    pub user: UserId,
    pub name: String,
    pub created_at: Timestamp,
}

/// Something that was done to a user. Names nothing personal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    pub id: AuditId,
    pub user: UserId,
    pub at: Timestamp,
    /// Who did it: `service/NAME`.
    pub actor: String,
    pub action: String,
    pub detail: serde_json::Value,
}

/// What an identity provider says of somebody who has just signed in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignIn {
    pub issuer: String,
    pub subject: String,
    /// None, or nothing in it, leaves the name as it is.
    pub display_name: Option<String>,
    /// Those that the claims give. None at all makes a player.
    pub roles: Vec<Role>,
}

/// What came of a sign-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedIn {
    pub user: UserView,
    /// Whether it was the first one.
    pub created: bool,
}

/// By what somebody signs in; its texts are sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity<'a> {
    pub(crate) issuer: &'a str,
    pub(crate) subject: &'a str,
}

/// A sign-in whose texts are sound.
#[derive(Clone, Debug)]
pub(crate) struct Claims<'a> {
    pub(crate) identity: Identity<'a>,
    pub(crate) display_name: Option<&'a str>,
    pub(crate) roles: Vec<Role>,
}

/// A text of a caller's, and how many characters it may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    name: &'static str,
    most: usize,
}

impl UserState {
    const ALL: [Self; 3] = [Self::Active, Self::Banned, Self::Erased];

    /// As it is stored.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "ACTIVE",
            Self::Banned => "BANNED",
            Self::Erased => "ERASED",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

impl Role {
    pub const ALL: [Self; 3] = [Self::Player, Self::Operator, Self::Service];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Player => "player",
            Self::Operator => "operator",
            Self::Service => "service",
        }
    }

    /// As they are stored with the user.
    pub(crate) fn join(roles: &[Self]) -> String {
        roles.iter().map(|role| role.word()).collect::<Vec<_>>().join(",")
    }

    /// The reverse. A word that only a newer program knows gives no right here.
    pub(crate) fn split(text: &str) -> Vec<Self> {
        let known = |word: &str| Self::ALL.into_iter().find(|role| role.word() == word);
        text.split(',').filter_map(known).collect()
    }
}

impl<'a> Identity<'a> {
    pub(crate) fn checked(issuer: &'a str, subject: &'a str) -> Result<Self, Error> {
        Ok(Self { issuer: ISSUER.check(issuer)?, subject: SUBJECT.check(subject)? })
    }

    /// What stands for it as a key.
    pub(crate) fn hash(&self) -> [u8; 32] {
        // With the length in front, no end of an issuer passes for the beginning of a subject.
        let length = (self.issuer.len() as u64).to_be_bytes();
        Sha256::new()
            .chain_update(length)
            .chain_update(self.issuer)
            .chain_update(self.subject)
            .finalize()
            .into()
    }
}

impl<'a> Claims<'a> {
    pub(crate) fn checked(sign_in: &'a SignIn) -> Result<Self, Error> {
        let identity = Identity::checked(&sign_in.issuer, &sign_in.subject)?;
        // Providers send an empty name for somebody who has none, who is to get in all the same.
        let name = sign_in.display_name.as_deref().filter(|name| !name.trim().is_empty());
        let mut roles = sign_in.roles.clone();
        if roles.is_empty() {
            roles.push(Role::Player);
        }
        roles.sort_unstable();
        roles.dedup();
        Ok(Self { identity, display_name: name.map(|name| DISPLAY_NAME.check(name)).transpose()?, roles })
    }

    /// Whether the user is stored with another name or other roles than these.
    pub(crate) fn differ_from(&self, user: &UserView) -> bool {
        self.roles != user.roles
            || self.display_name.is_some_and(|name| user.display_name.as_deref() != Some(name))
    }
}

impl Field {
    pub(crate) fn check(self, text: &str) -> Result<&str, Error> {
        let invalid = |rule| Err(Error::Invalid { field: self.name, rule });
        if text.is_empty() || text.chars().count() > self.most {
            return invalid(format!("must have 1 to {} characters", self.most));
        }
        if text.chars().any(char::is_control) {
            return invalid("must not hold control characters".to_owned());
        }
        Ok(text)
    }

    /// Also refuses spaces around the text: for MySQL two texts are equal that differ in nothing but spaces at the end.
    pub(crate) fn check_name(self, text: &str) -> Result<&str, Error> {
        if text.trim() != text {
            let rule = "must not begin or end with a space".to_owned();
            return Err(Error::Invalid { field: self.name, rule });
        }
        self.check(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_states_are_read_as_they_are_written() {
        assert_eq!(Role::split(&Role::join(&Role::ALL)), Role::ALL);
        assert_eq!(Role::join(&[]), "");
        assert_eq!(Role::split(""), []);
        assert_eq!(Role::split("player,emperor"), [Role::Player]);
        for state in UserState::ALL {
            assert_eq!(UserState::of_word(state.word()), Some(state));
        }
        assert_eq!(UserState::of_word("active"), None);
    }

    #[test]
    fn identities_that_read_alike_are_not_taken_for_each_other() {
        let hash = |issuer, subject| Identity { issuer, subject }.hash();
        assert_eq!(hash("ab", "c"), hash("ab", "c"));
        assert_ne!(hash("ab", "c"), hash("a", "bc"));
        assert_ne!(hash("ab", "c"), hash("ab", "c "));
        assert_ne!(hash("ab", "c"), hash("AB", "c"));
    }

    #[test]
    fn a_text_has_its_limit_in_characters() {
        for field in [ISSUER, SUBJECT, DISPLAY_NAME, ACCOUNT_NAME, REASON, ACTOR] {
            assert!(field.check(&"ä".repeat(field.most)).is_ok());
            for wrong in ["", "a\nb", "\u{0}", &"a".repeat(field.most + 1)] {
                let error = field.check(wrong).unwrap_err();
                assert!(matches!(error, Error::Invalid { field: name, .. } if name == field.name));
            }
        }
        let error = SUBJECT.check(&"a".repeat(256)).unwrap_err();
        assert_eq!(error.to_string(), "subject must have 1 to 255 characters");
        for wrong in [" a", "a ", "\u{3000}a", " "] {
            assert!(ACCOUNT_NAME.check_name(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn claims_are_brought_into_one_form() {
        let with = |roles: &[Role], name: Option<&str>| SignIn {
            issuer: "i".to_owned(),
            subject: "s".to_owned(),
            display_name: name.map(ToOwned::to_owned),
            roles: roles.to_vec(),
        };
        let sign_in = with(&[Role::Service, Role::Player, Role::Service], Some(" "));
        let claims = Claims::checked(&sign_in).unwrap();
        assert_eq!((claims.roles, claims.display_name), (vec![Role::Player, Role::Service], None));
        let nothing = with(&[], None);
        assert_eq!(Claims::checked(&nothing).unwrap().roles, [Role::Player]);
    }
}
