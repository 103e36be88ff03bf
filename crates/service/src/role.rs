//! The roles of a process.

use config::{Choice, InvalidValue, Setting, Value};

/// A role of a process. Roles start in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Serves players and web pages.
    Gateway,
    /// Serves other services: shops, game servers.
    ServiceApi,
    /// Serves Open Match clients.
    MatchmakingFrontend,
    /// Creates matches.
    MatchmakingEngine,
    /// Publishes events from the outbox on the bus.
    OutboxRelay,
    /// Delivers events from the bus to players.
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

/// A set of roles in their order. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles(Vec<Role>);

impl Roles {
    /// The word for all roles.
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

    /// Formats the roles as in a configuration, separated by commas.
    pub fn words(&self) -> String {
        self.iter().map(Choice::word).collect::<Vec<_>>().join(",")
    }
}

impl Setting for Roles {
    fn expected() -> String {
        format!("a list of roles: {:?}, or {}", Self::ALL, Role::expected())
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
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
        if roles.is_empty() {
            Err(InvalidValue::with_reason("name at least one role"))
        } else {
            Ok(Self(roles))
        }
    }

    fn show(&self) -> String {
        if self.is_all() { format!("[{:?}]", Self::ALL) } else { self.0.show() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_parsed_as_an_ordered_set() {
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
