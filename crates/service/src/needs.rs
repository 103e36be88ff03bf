//! How roles depend on servers.
//!
//! Every service declares its dependencies per role ([`Service::needs`](crate::Service::needs)). `/readyz`, metrics and the table in
//! docs/reference/readiness.md are derived from these declarations.

use runtime::lifecycle::{Impact, PartNeed, RoleNeeds};

use crate::{Role, Service, Services};

/// A server that roles depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependency {
    Sql,
    Redis,
    Nats,
    /// The issuer, after its keys were fetched.
    Issuer,
    /// The keys of the issuer, if it has not answered since the process started.
    IssuerKeys,
}

impl Dependency {
    pub const ALL: [Self; 5] = [Self::Sql, Self::Redis, Self::Nats, Self::Issuer, Self::IssuerKeys];

    /// Returns the part of `/readyz` that reports it.
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

/// How a role is affected while a server is unreachable.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub role: Role,
    pub dependency: Dependency,
    pub impact: Impact,
    /// A sentence: what is missing, and what still works.
    pub effect: &'static str,
}

impl Need {
    /// Declares that the role cannot do its essential work.
    pub const fn essential(role: Role, dependency: Dependency, effect: &'static str) -> Self {
        Self { role, dependency, impact: Impact::NotReady, effect }
    }

    /// Declares that the role continues, but something is missing or late.
    pub const fn degrades(role: Role, dependency: Dependency, effect: &'static str) -> Self {
        Self { role, dependency, impact: Impact::Degraded, effect }
    }
}

impl Services {
    /// Combines the declarations of all services for a role: the worst impact and all effects.
    pub fn needs(self, role: Role) -> Vec<PartNeed> {
        let declared: Vec<Need> =
            self.iter().flat_map(Service::needs).filter(|need| need.role == role).collect();
        let combine = |dependency: Dependency| {
            let own: Vec<Need> =
                declared.iter().filter(|need| need.dependency == dependency).copied().collect();
            PartNeed {
                part: dependency.part(),
                impact: own.iter().map(|need| need.impact).max().unwrap_or(Impact::Unaffected),
                effect: own.iter().map(|need| need.effect).collect::<Vec<_>>().join(" "),
            }
        };
        Dependency::ALL.into_iter().map(combine).collect()
    }

    /// Returns the needs of several roles, in the form that readiness expects.
    pub fn role_needs(
        self,
        roles: impl IntoIterator<Item = Role>,
        takes_requests: impl Fn(Role) -> bool,
    ) -> Vec<RoleNeeds> {
        let role_needs = |role| RoleNeeds {
            role: config::Choice::word(role),
            takes_requests: takes_requests(role),
            needs: self.needs(role),
        };
        roles.into_iter().map(role_needs).collect()
    }
}
