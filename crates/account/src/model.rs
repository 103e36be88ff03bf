//! Users, identities, roles and accounts, and the validation of text fields.

use base::{Timestamp, typed_id};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::Error;

typed_id!(
    /// A person or a service. One user can have several identities.
    UserId
);

typed_id!(
    /// An account of a user, for one title or platform. Entitlements belong to accounts.
    AccountId
);

typed_id!(
    /// An audit record about a user.
    AuditId
);

typed_id!(
    /// A note of an operator about a user.
    NoteId
);

/// The name of the account that is created with each user.
pub const DEFAULT_ACCOUNT: &str = "default";

pub(crate) const ISSUER: Field = Field { name: "issuer", max: 500 };
pub(crate) const SUBJECT: Field = Field { name: "subject", max: 255 };
pub(crate) const DISPLAY_NAME: Field = Field { name: "display_name", max: 100 };
pub(crate) const ACCOUNT_NAME: Field = Field { name: "name", max: 100 };
pub(crate) const REASON: Field = Field { name: "reason", max: 500 };
pub(crate) const NOTE: Field = Field { name: "note", max: 2_000 };
pub(crate) const ACTOR: Field = Field { name: "actor", max: 255 };

/// The state of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum UserState {
    Active,
    /// Cannot sign in.
    Banned,
    /// All personal data is removed, permanently.
    Erased,
}

/// A role of a user, taken from the issuer's claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Player,
    Operator,
    Service,
}

/// A user, as callers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserView {
    pub id: UserId,
    pub state: UserState,
    pub display_name: Option<String>,
    /// Sorted, without duplicates. Empty if the user is erased.
    pub roles: Vec<Role>,
    /// Set if and only if the user is banned.
    pub ban_reason: Option<String>,
    pub created_at: Timestamp,
}

/// An identity with which a user signs in.
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

/// A change of a user, for the audit log. Contains no personal data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    pub id: AuditId,
    pub user: UserId,
    pub at: Timestamp,
    /// The caller that made the change: `service/NAME`.
    pub actor: String,
    pub action: String,
    pub detail: serde_json::Value,
}

/// A note of an operator about a user. Removed when the user is erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub id: NoteId,
    pub at: Timestamp,
    /// The operator who wrote it: `operator/NAME`.
    pub author: String,
    pub text: String,
}

/// The claims of an identity provider about a user who has signed in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignIn {
    pub issuer: String,
    pub subject: String,
    /// If absent or blank, the user's name does not change.
    pub display_name: Option<String>,
    /// The roles in the claims. An empty list means [`Role::Player`].
    pub roles: Vec<Role>,
}

/// The result of a sign-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignInResult {
    pub user: UserView,
    /// Whether this was the first sign-in, which created the user.
    pub created: bool,
}

/// A validated identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity<'a> {
    pub(crate) issuer: &'a str,
    pub(crate) subject: &'a str,
}

/// The validated claims of a sign-in.
#[derive(Clone, Debug)]
pub(crate) struct Claims<'a> {
    pub(crate) identity: Identity<'a>,
    pub(crate) display_name: Option<&'a str>,
    pub(crate) roles: Vec<Role>,
}

/// A text field of requests, with its maximum length in characters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    name: &'static str,
    max: usize,
}

impl UserState {
    const ALL: [Self; 3] = [Self::Active, Self::Banned, Self::Erased];

    /// Returns the word that is stored and sent.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "ACTIVE",
            Self::Banned => "BANNED",
            Self::Erased => "ERASED",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<Self> {
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

    /// Encodes roles as they are stored.
    pub(crate) fn join(roles: &[Self]) -> String {
        roles.iter().map(|role| role.word()).collect::<Vec<_>>().join(",")
    }

    /// Decodes stored roles. Ignores unknown words, which a newer version may have written.
    pub(crate) fn split(text: &str) -> Vec<Self> {
        let known = |word: &str| Self::ALL.into_iter().find(|role| role.word() == word);
        text.split(',').filter_map(known).collect()
    }
}

impl<'a> Identity<'a> {
    pub(crate) fn validate(issuer: &'a str, subject: &'a str) -> Result<Self, Error> {
        Ok(Self { issuer: ISSUER.check(issuer)?, subject: SUBJECT.check(subject)? })
    }

    /// Returns the hash that is the identity's key in the database.
    pub(crate) fn hash(&self) -> [u8; 32] {
        // The length prefix makes the hash unambiguous: ("ab", "c") and ("a", "bc") differ.
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
    pub(crate) fn validate(sign_in: &'a SignIn) -> Result<Self, Error> {
        let identity = Identity::validate(&sign_in.issuer, &sign_in.subject)?;
        // Some providers send an empty name for users who have none. That must not refuse the sign-in.
        let name = sign_in.display_name.as_deref().filter(|name| !name.trim().is_empty());
        let mut roles = sign_in.roles.clone();
        if roles.is_empty() {
            roles.push(Role::Player);
        }
        roles.sort_unstable();
        roles.dedup();
        Ok(Self { identity, display_name: name.map(|name| DISPLAY_NAME.check(name)).transpose()?, roles })
    }

    /// Returns whether the stored name or roles differ from these claims.
    pub(crate) fn differ_from(&self, user: &UserView) -> bool {
        self.roles != user.roles
            || self.display_name.is_some_and(|name| user.display_name.as_deref() != Some(name))
    }
}

impl Field {
    pub(crate) fn check(self, text: &str) -> Result<&str, Error> {
        let invalid = |rule| Err(Error::Invalid { field: self.name, rule });
        if text.is_empty() || text.chars().count() > self.max {
            return invalid(format!("must have 1 to {} characters", self.max));
        }
        if text.chars().any(char::is_control) {
            return invalid("must not contain control characters".to_owned());
        }
        Ok(text)
    }

    /// Allows line breaks and tabs.
    pub(crate) fn check_lines(self, text: &str) -> Result<&str, Error> {
        let text = text.trim();
        self.check(&text.replace(['\n', '\r', '\t'], " "))?;
        Ok(text)
    }

    /// Also refuses leading and trailing spaces: MySQL ignores trailing spaces when it compares texts.
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
    fn roles_and_states_round_trip() {
        assert_eq!(Role::split(&Role::join(&Role::ALL)), Role::ALL);
        assert_eq!(Role::join(&[]), "");
        assert_eq!(Role::split(""), []);
        assert_eq!(Role::split("player,emperor"), [Role::Player]);
        for state in UserState::ALL {
            assert_eq!(UserState::from_word(state.word()), Some(state));
        }
        assert_eq!(UserState::from_word("active"), None);
    }

    #[test]
    fn similar_identities_have_different_hashes() {
        let hash = |issuer, subject| Identity { issuer, subject }.hash();
        assert_eq!(hash("ab", "c"), hash("ab", "c"));
        assert_ne!(hash("ab", "c"), hash("a", "bc"));
        assert_ne!(hash("ab", "c"), hash("ab", "c "));
        assert_ne!(hash("ab", "c"), hash("AB", "c"));
    }

    #[test]
    fn text_limits_count_characters() {
        for field in [ISSUER, SUBJECT, DISPLAY_NAME, ACCOUNT_NAME, REASON, NOTE, ACTOR] {
            assert!(field.check(&"ä".repeat(field.max)).is_ok());
            for wrong in ["", "a\nb", "\u{0}", &"a".repeat(field.max + 1)] {
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
    fn claims_are_normalised() {
        let with = |roles: &[Role], name: Option<&str>| SignIn {
            issuer: "i".to_owned(),
            subject: "s".to_owned(),
            display_name: name.map(ToOwned::to_owned),
            roles: roles.to_vec(),
        };
        let sign_in = with(&[Role::Service, Role::Player, Role::Service], Some(" "));
        let claims = Claims::validate(&sign_in).unwrap();
        assert_eq!((claims.roles, claims.display_name), (vec![Role::Player, Role::Service], None));
        let empty = with(&[], None);
        assert_eq!(Claims::validate(&empty).unwrap().roles, [Role::Player]);
    }
}
