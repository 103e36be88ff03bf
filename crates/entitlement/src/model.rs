//! Entitlements, changes, and the rules by which a change is applied. No I/O.

use account::{AccountId, UserId};
use base::Timestamp;

use crate::Error;

/// The longest name of a resource, in characters.
pub(crate) const MAX_RESOURCE: usize = 255;
/// The longest reference, in characters.
pub(crate) const MAX_REFERENCE: usize = 255;
/// The largest quantity of one change. Their sums cannot overflow in practice.
pub(crate) const MAX_QUANTITY: i64 = 1_000_000_000_000;

/// The key of an entitlement: the owner and the resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holding {
    pub user: UserId,
    pub account: AccountId,
    pub resource: String,
}

/// Whether the account owns the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Active,
    Revoked,
}

impl State {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "ACTIVE",
            Self::Revoked => "REVOKED",
        }
    }
}

/// The current state of an entitlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entitlement {
    pub state: State,
    /// Counts the applied changes, from 1. Each has one event with this number.
    pub version: i64,
    /// The quantity, if counted. Negative if more was revoked than the grants that have arrived.
    pub quantity: Option<i64>,
    pub valid_until: Option<Timestamp>,
    /// The `occurred_at` of the newest change.
    pub as_of: Timestamp,
    /// The `occurred_at` of the newest change that revoked everything.
    pub revoked_as_of: Option<Timestamp>,
    /// The `occurred_at` of the newest grant since then. That grant decides `valid_until`.
    pub granted_as_of: Option<Timestamp>,
    /// The number of entries in its history.
    pub entries: i64,
}

/// A grant or revoke that happened at a shop and is to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub holding: Holding,
    pub action: Action,
    /// When it happened there. If two changes arrive out of order, the newer one wins.
    pub occurred_at: Timestamp,
    /// The shop's name for it, so that people can find it.
    pub reference: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Grant {
        quantity: Option<i64>,
        valid_until: Option<Timestamp>,
    },
    /// Revokes this quantity, or everything.
    Revoke {
        quantity: Option<i64>,
    },
}

impl Action {
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Grant { .. } => "grant",
            Self::Revoke { .. } => "revoke",
        }
    }

    pub const fn quantity(&self) -> Option<i64> {
        match self {
            Self::Grant { quantity, .. } | Self::Revoke { quantity } => *quantity,
        }
    }
}

/// The effect of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The entitlement has a new version.
    Applied,
    /// A newer change was already known. Only the history records this one.
    Superseded,
}

impl Effect {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Superseded => "superseded",
        }
    }
}

impl Change {
    /// Validates the change. Fails with [`Error::Invalid`].
    pub fn check(&self, now: Timestamp) -> Result<(), Error> {
        /// How far the clock of a shop may be ahead of ours.
        const MAX_AHEAD: std::time::Duration = std::time::Duration::from_secs(3600);
        let refuse = |field, what: String| Err(Error::Invalid { field, what });
        let length = self.holding.resource.chars().count();
        if !(1..=MAX_RESOURCE).contains(&length) {
            return refuse("resource", format!("must have 1 to {MAX_RESOURCE} characters, not {length}"));
        }
        // MySQL ignores trailing spaces when it compares names.
        if self.holding.resource.trim() != self.holding.resource {
            return refuse("resource", "must not begin or end with a space".to_owned());
        }
        let length = self.reference.as_ref().map_or(0, |reference| reference.chars().count());
        if length > MAX_REFERENCE {
            return refuse(
                "reference",
                format!("must have at most {MAX_REFERENCE} characters, not {length}"),
            );
        }
        if let Some(quantity) =
            self.action.quantity().filter(|quantity| !(1..=MAX_QUANTITY).contains(quantity))
        {
            return refuse("quantity", format!("must be 1 to {MAX_QUANTITY}, not {quantity}"));
        }
        // A change in the future would supersede all changes until then.
        if self.occurred_at > now.after(MAX_AHEAD) {
            return refuse(
                "occurred_at",
                "is in the future; send the time at which the change happened".to_owned(),
            );
        }
        match self.action {
            Action::Grant { valid_until: Some(until), .. } if until <= self.occurred_at => {
                refuse("valid_until", "must be later than occurred_at".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Applies the change to the current state, if there is one. The history grows by one entry in any case.
    ///
    /// Not counted: the newest change wins; of two at the same time, the revoke. Counted: every change adds or subtracts, in any order
    /// of arrival, unless it is older than a revoke of everything.
    pub fn apply(&self, before: Option<&Entitlement>) -> Result<(Entitlement, Effect), Error> {
        let Some(before) = before else { return Ok((self.first(), Effect::Applied)) };
        let entries = before.entries + 1;
        let superseded = Ok((Entitlement { entries, ..before.clone() }, Effect::Superseded));
        let is_newest = self.occurred_at > before.as_of;
        let is_revoked_since = before.revoked_as_of.is_some_and(|revoked| self.occurred_at <= revoked);
        let counted = before.quantity;
        if !is_revoked_since && before.revoked_as_of.is_none_or(|revoked| revoked < before.as_of) {
            self.check_kind(counted)?;
        }
        let next = match self.action {
            Action::Grant { quantity: Some(more), valid_until } if !is_revoked_since => {
                self.with_quantity(&self.with_grant(before, valid_until), counted.unwrap_or_default() + more)
            }
            Action::Revoke { quantity: Some(fewer) } if !is_revoked_since => {
                self.with_quantity(before, counted.unwrap_or_default() - fewer)
            }
            Action::Grant { quantity: None, valid_until } if is_newest => {
                Entitlement { state: State::Active, quantity: None, ..self.with_grant(before, valid_until) }
            }
            Action::Revoke { quantity: None }
                if is_newest || (self.occurred_at == before.as_of && !is_revoked_since) =>
            {
                Entitlement {
                    state: State::Revoked,
                    quantity: counted.map(|_| 0),
                    valid_until: None,
                    revoked_as_of: Some(self.occurred_at),
                    granted_as_of: None,
                    ..before.clone()
                }
            }
            _ => return superseded,
        };
        let as_of = before.as_of.max(self.occurred_at);
        Ok((Entitlement { version: before.version + 1, entries, as_of, ..next }, Effect::Applied))
    }

    fn first(&self) -> Entitlement {
        let at = Some(self.occurred_at);
        let empty = Entitlement {
            state: State::Revoked,
            version: 1,
            quantity: None,
            valid_until: None,
            as_of: self.occurred_at,
            revoked_as_of: None,
            granted_as_of: None,
            entries: 1,
        };
        match self.action {
            Action::Grant { quantity, valid_until } => {
                Entitlement { state: State::Active, quantity, valid_until, granted_as_of: at, ..empty }
            }
            Action::Revoke { quantity: Some(fewer) } => Entitlement { quantity: Some(-fewer), ..empty },
            Action::Revoke { quantity: None } => Entitlement { revoked_as_of: at, ..empty },
        }
    }

    /// Returns the state with the end that the newest grant sets. Of two grants at the same time, the later end wins.
    fn with_grant(&self, before: &Entitlement, valid_until: Option<Timestamp>) -> Entitlement {
        let valid_until = match before.granted_as_of {
            Some(granted) if granted > self.occurred_at => before.valid_until,
            Some(granted) if granted == self.occurred_at => {
                before.valid_until.zip(valid_until).map(|(one, other)| one.max(other))
            }
            _ => valid_until,
        };
        let granted_as_of = before.granted_as_of.max(Some(self.occurred_at));
        Entitlement { valid_until, granted_as_of, ..before.clone() }
    }

    fn with_quantity(&self, before: &Entitlement, quantity: i64) -> Entitlement {
        let state = if quantity > 0 { State::Active } else { State::Revoked };
        Entitlement { state, quantity: Some(quantity), ..before.clone() }
    }

    /// Fails if counted and uncounted changes mix. The first change decides, until everything is revoked.
    fn check_kind(&self, counted: Option<i64>) -> Result<(), Error> {
        match (&self.action, counted) {
            (Action::Grant { quantity: None, .. }, Some(_)) => Err(Error::Counted),
            (action, None) if action.quantity().is_some() => Err(Error::NotCounted),
            _ => Ok(()),
        }
    }
}

impl Entitlement {
    /// Returns whether the account owns the resource at this time.
    pub fn is_in_force(&self, now: Timestamp) -> bool {
        self.state == State::Active && self.valid_until.is_none_or(|until| now < until)
    }

    /// Returns the usable quantity, if counted.
    pub fn balance(&self) -> Option<i64> {
        self.quantity.map(|quantity| quantity.max(0))
    }
}

#[cfg(test)]
mod tests;
