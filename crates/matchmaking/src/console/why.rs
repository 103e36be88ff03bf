//! Why a ticket waits, on its screen.

use std::time::Duration;

use rules::{Limit, Miss, Near, RuleWhy};
use screens::{Cell, Section, Table, Tone};

use super::tickets;
use crate::model::TicketId;
use crate::why::{ObstacleCode, PoolWhy, ProfileWhy, RuleSetWhy, WhyReport};

/// Says everything in sentences, as `playhouse tickets why` does.
pub(super) fn summary(report: &WhyReport) -> Section {
    let section = Section::new("why", "Why it waits");
    if report.lines.is_empty() {
        return section.text("It does not wait.");
    }
    let is_normal = |code: ObstacleCode| matches!(code, ObstacleCode::Fetched | ObstacleCode::ReadyCheck);
    let problems = report.obstacles.iter().filter(|obstacle| !is_normal(obstacle.code));
    let details: Vec<&String> = problems.map(|obstacle| &obstacle.detail).collect();
    report.lines.iter().fold(section, |section, line| match details.contains(&line) {
        true => section.notice(Tone::Warning, line.clone()),
        false => section.text(line.clone()),
    })
}

/// Shows the rules of each pool that has a rule set, and the nearest candidates.
pub(super) fn rule_sections(report: &WhyReport) -> Option<Section> {
    let pools: Vec<(&ProfileWhy, &PoolWhy, &RuleSetWhy)> = report
        .profiles
        .iter()
        .flat_map(|profile| profile.pools.iter().map(move |pool| (profile, pool)))
        .filter_map(|(profile, pool)| Some((profile, pool, pool.rules.as_ref()?)))
        .collect();
    if pools.is_empty() {
        return None;
    }
    let section = Section::new("rules", "Rules");
    Some(pools.into_iter().fold(section, |section, (profile, pool, rules)| {
        let version = rules.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
        let place =
            format!("Profile {}, pool {}: rule set {}{version}", profile.profile, pool.pool, rules.rule_set);
        section.text(place).block(rule_table(&rules.why.rules)).block(nearest_table(&rules.why.nearest))
    }))
}

fn rule_table(rules: &[RuleWhy]) -> Table {
    let titles = ["Rule", "Type", "Needs now", "Changes in", "#Pass", "#Fail", "Nearest miss"];
    let mut table = Table::new(&titles, "The ticket cannot be compared with others.");
    for rule in rules {
        let needs = match (rule.is_off, &*rule.limits) {
            (true, _) => Cell::text("off"),
            (false, []) => Cell::None,
            (false, limits) => Cell::text(limits.iter().map(Limit::to_string).collect::<Vec<_>>().join(", ")),
        };
        let cells = [
            Cell::text(&*rule.rule),
            Cell::text(rule.kind),
            needs,
            Cell::optional(rule.changes_in, seconds),
            Cell::optional(rule.passed, Cell::number),
            Cell::optional(rule.failed, Cell::number),
            Cell::optional(rule.nearest_miss.as_ref().map(Miss::to_string), Cell::text),
        ];
        table.push(cells, []);
    }
    table
}

fn nearest_table(nearest: &[Near]) -> Table {
    let titles = ["Nearest candidate", "Separated by", "Admitted in"];
    let mut table = Table::new(&titles, "There are no other tickets.");
    for near in nearest {
        let id = TicketId::parse(&near.ticket);
        let ticket = id.map_or_else(|| Cell::text(&*near.ticket), |id| tickets::link(&id));
        let admitted = near.admitted_in.map_or_else(|| Cell::text("never"), seconds);
        table.push([ticket, Cell::text(near.broken.join(", ")), admitted], []);
    }
    table
}

fn seconds(seconds: f64) -> Cell {
    Duration::try_from_secs_f64(seconds).map_or(Cell::None, Cell::Duration)
}
