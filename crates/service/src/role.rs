//! The roles of a process.

use config::{Choice, Rejected, Setting, Value};

/// A role of a process. They start in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Players and web pages.
    Gateway,
    /// Other services: purchases, game servers.
    ServiceApi,
    /// Open Match clients.
    MatchmakingFrontend,
    /// Makes matches.
    MatchmakingEngine,
    /// Takes events from the outbox to the bus.
    OutboxRelay,
    /// Takes events from the bus to the players.
    Notifier,
}

impl Role {
    pub const ALL: [Self; 6] = [
        Self::Gateway,
        Self::ServiceApi,
        Self::MatchmakingFrontend,
        Self::MatchmakingEngine,
        Self::OutboxRelay,
        Self::Notifier,
    ];
}

impl Choice for Role {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("gateway", Self::Gateway),
        ("service-api", Self::ServiceApi),
        ("matchmaking-frontend", Self::MatchmakingFrontend),
        ("matchmaking-engine", Self::MatchmakingEngine),
        ("outbox-relay", Self::OutboxRelay),
        ("notifier", Self::Notifier),
    ];
}

/// A set of roles, in their order and each once. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles(Vec<Role>);

impl Roles {
    /// How all roles are written.
    const ALL: &'static str = "all";

    pub fn iter(&self) -> impl Iterator<Item = Role> {
        self.0.iter().copied()
    }

    pub fn contains(&self, role: Role) -> bool {
        self.0.contains(&role)
    }

    pub fn is_all(&self) -> bool {
        self.0 == Role::ALL
    }

    /// As a person writes them.
    pub fn words(&self) -> String {
        self.iter().map(Choice::word).collect::<Vec<_>>().join(",")
    }
}

impl Setting for Roles {
    fn expected() -> String {
        format!("a list of roles: {:?}, or {}", Self::ALL, Role::expected())
    }

    fn parse(value: &Value) -> Result<Self, Rejected> {
        let words: Vec<String> = Setting::parse(value)?;
        let mut roles = Vec::new();
        for word in words {
            match word.as_str() {
                Self::ALL => roles.extend(Role::ALL),
                _ => roles.push(Role::parse(&Value::Text(word))?),
            }
        }
        roles.sort();
        roles.dedup();
        if roles.is_empty() { Err(Rejected::because("name at least one")) } else { Ok(Self(roles)) }
    }

    fn show(&self) -> String {
        if self.is_all() { format!("[{:?}]", Self::ALL) } else { self.0.show() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_a_set_with_an_order() {
        let parse = |text: &str| Roles::parse(&Value::Word(text.to_owned()));
        assert!(Role::ALL.is_sorted());
        assert!(
            parse("notifier, outbox-relay, matchmaking-engine, matchmaking-frontend, service-api, gateway")
                .unwrap()
                .is_all()
        );
        assert_eq!(parse("gateway,gateway").unwrap().words(), "gateway");
        assert_eq!(parse("all").unwrap().show(), "[\"all\"]");
        assert!(parse("").is_err() && parse("gatewey").is_err());
    }
}
