//! What roles can do while a server is away.
//!
//! Every service declares its share ([`Service::needs`](crate::Service::needs)), role by role. `/readyz`, metrics and the table in
//! docs/operations.md all come from these declarations.

use runtime::lifecycle::{Impact, PartNeed, RoleNeeds};

use crate::{Role, Service, Services};

/// A server that roles depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependency {
    Sql,
    Redis,
    Nats,
    /// The issuer does not answer. Its keys are known.
    Issuer,
    /// The issuer has not answered since the process started, so its keys are not known.
    IssuerKeys,
}

impl Dependency {
    pub const ALL: [Self; 5] = [Self::Sql, Self::Redis, Self::Nats, Self::Issuer, Self::IssuerKeys];

    /// The part of `/readyz` that reports it.
    pub const fn part(self) -> &'static str {
        match self {
            Self::Sql => "db",
            Self::Redis => "redis",
            Self::Nats => "bus",
            Self::Issuer => "issuer",
            Self::IssuerKeys => "identity",
        }
    }
}

/// What a service lacks in processes with a role while a server is away.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub role: Role,
    pub dependency: Dependency,
    pub impact: Impact,
    /// What is missing, and what still works: a sentence.
    pub effect: &'static str,
}

impl Need {
    /// Declares that the role cannot do its essential work.
    pub const fn essential(role: Role, dependency: Dependency, effect: &'static str) -> Self {
        Self { role, dependency, impact: Impact::NotReady, effect }
    }

    /// Declares that the role goes on, and something is missing or late.
    pub const fn degrades(role: Role, dependency: Dependency, effect: &'static str) -> Self {
        Self { role, dependency, impact: Impact::Degraded, effect }
    }
}

impl Services {
    /// Puts together what all services declare for a role: the worst impact, and all effects.
    pub fn needs(self, role: Role) -> Vec<PartNeed> {
        let declared: Vec<Need> =
            self.iter().flat_map(Service::needs).filter(|need| need.role == role).collect();
        let of = |dependency: Dependency| {
            let own: Vec<Need> =
                declared.iter().filter(|need| need.dependency == dependency).copied().collect();
            PartNeed {
                part: dependency.part(),
                impact: own.iter().map(|need| need.impact).max().unwrap_or(Impact::Unaffected),
                effect: own.iter().map(|need| need.effect).collect::<Vec<_>>().join(" "),
            }
        };
        Dependency::ALL.into_iter().map(of).collect()
    }

    /// The same for several roles, as readiness takes it.
    pub fn role_needs(
        self,
        roles: impl IntoIterator<Item = Role>,
        takes_requests: impl Fn(Role) -> bool,
    ) -> Vec<RoleNeeds> {
        let of = |role| RoleNeeds {
            role: config::Choice::word(role),
            takes_requests: takes_requests(role),
            needs: self.needs(role),
        };
        roles.into_iter().map(of).collect()
    }
}
