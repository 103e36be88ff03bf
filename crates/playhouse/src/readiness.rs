//! What each role can do without each of its dependencies.

use runtime::lifecycle::RoleNeeds;
use service::Role;

use crate::listeners::Listener;
use crate::services::SERVICES;

/// Returns what each role can do without each dependency, as the services declare it. The table in docs/reference/readiness.md shows it.
pub fn role_needs() -> Vec<RoleNeeds> {
    SERVICES.role_needs(Role::ALL, Listener::takes_requests)
}

#[cfg(test)]
mod tests {
    use runtime::lifecycle::Impact;
    use service::Dependency;

    use super::*;

    const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/readiness.md");
    const BEGIN: &str =
        "<!-- The tables up to the next comment are written by a test: INSTA_UPDATE=always. -->\n\n";
    const END: &str = "<!-- End of the tables. -->";

    fn word(impact: Impact) -> &'static str {
        match impact {
            Impact::Unaffected => "ready",
            Impact::Degraded => "degraded",
            Impact::NotReady => "**not ready**",
        }
    }

    fn title(dependency: Dependency) -> &'static str {
        match dependency {
            Dependency::Sql => "SQL",
            Dependency::Redis => "Redis",
            Dependency::Nats => "NATS",
            Dependency::Issuer => "the issuer",
            Dependency::IssuerKeys => "the issuer, since the start",
        }
    }

    /// Returns two tables: the state of each role without each dependency, and what is missing and what works then.
    fn tables() -> String {
        let titles = Dependency::ALL.map(title).join(" | ");
        let mut lines = vec![
            format!("| role | without {titles} |"),
            format!("|---|{}", "---|".repeat(Dependency::ALL.len())),
        ];
        for RoleNeeds { role, needs, .. } in role_needs() {
            let words: Vec<&str> = needs.iter().map(|need| word(need.impact)).collect();
            lines.push(format!("| `{role}` | {} |", words.join(" | ")));
        }
        lines.push("\n| role | without | what is missing, what still works |\n|---|---|---|".to_owned());
        for RoleNeeds { role, needs, .. } in role_needs() {
            for (dependency, need) in Dependency::ALL.into_iter().zip(needs) {
                if need.impact > Impact::Unaffected {
                    lines.push(format!("| `{role}` | {} | {} |", title(dependency), need.effect));
                }
            }
        }
        lines.join("\n") + "\n\n"
    }

    #[test]
    fn documented_tables_match_the_declarations() {
        let document = std::fs::read_to_string(DOCUMENT).unwrap();
        let (before, rest) = document.split_once(BEGIN).unwrap();
        let (written, after) = rest.split_once(END).unwrap();
        if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
            std::fs::write(DOCUMENT, format!("{before}{BEGIN}{}{END}{after}", tables())).unwrap();
        } else {
            assert_eq!(written, tables(), "run this again with INSTA_UPDATE=always, and review the change");
        }
    }

    #[test]
    fn every_role_declares_an_essential_dependency() {
        for RoleNeeds { role, needs, .. } in role_needs() {
            assert!(
                needs.iter().any(|need| need.impact == Impact::NotReady),
                "{role} declares nothing essential"
            );
            assert!(needs.iter().all(|need| need.effect.is_empty() == (need.impact == Impact::Unaffected)));
        }
    }
}
