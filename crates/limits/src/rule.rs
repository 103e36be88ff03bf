//! Rules: what a request is limited by.

/// A policy, applied to one kind of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    pub policy: &'static str,
    pub kind: KeyKind,
}

/// What a key identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyKind {
    /// A client address or network.
    Address,
    /// A signed-in user.
    User,
}

impl KeyKind {
    /// Returns the name for metrics and APIs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::User => "user",
        }
    }
}
