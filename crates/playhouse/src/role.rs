//! What a process can be.

use config::Choice;

/// A role of a process. They start in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Players, web pages and other services.
    Gateway,
    /// Open Match clients.
    MatchmakingFrontend,
}

impl Role {
    pub const ALL: [Self; 2] = [Self::Gateway, Self::MatchmakingFrontend];
}

impl Choice for Role {
    const WORDS: &'static [(&'static str, Self)] =
        &[("gateway", Self::Gateway), ("matchmaking-frontend", Self::MatchmakingFrontend)];
}

/// As it is written in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoleWord {
    All,
    One(Role),
}

impl Choice for RoleWord {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("all", Self::All),
        ("gateway", Self::One(Role::Gateway)),
        ("matchmaking-frontend", Self::One(Role::MatchmakingFrontend)),
    ];
}

/// The roles that the words mean, in their order and each once.
pub(crate) fn roles(words: &[RoleWord]) -> Vec<Role> {
    let wanted = |role: &Role| words.contains(&RoleWord::All) || words.contains(&RoleWord::One(*role));
    Role::ALL.into_iter().filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_have_one_order_and_one_spelling() {
        assert!(Role::ALL.is_sorted());
        let reversed =
            [RoleWord::One(Role::MatchmakingFrontend), RoleWord::One(Role::Gateway), RoleWord::All];
        assert_eq!(roles(&reversed), Role::ALL);
        for role in Role::ALL {
            assert!(RoleWord::WORDS.contains(&(role.word(), RoleWord::One(role))), "{role:?}");
        }
    }
}
