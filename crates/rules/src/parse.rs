//! Reads a rule set from a document. All mistakes are reported at once, a line each.

mod rule;
mod schedule;
mod statement;
pub(crate) mod value;

use std::sync::Arc;

use crate::document::{Data, Node};
use crate::fields::{Fields, Report};
use crate::mistake::Mistakes;
use crate::model::{Age, Attribute, AttributeKind, Quality, Role, RuleSet, Slot, Team};

/// The most players of a match.
pub(crate) const MAX_PLAYERS: usize = 1000;
const MAX_NAME: usize = 64;

impl RuleSet {
    /// Reads a rule set from TOML or JSON.
    pub fn parse(text: &str) -> Result<Self, Mistakes> {
        let node = Node::parse(text)?;
        let report = Report::default();
        let rules = read(&report, &node);
        if report.is_empty() { Ok(rules) } else { Err(Mistakes::new(report.into_mistakes())) }
    }
}

fn read(report: &Report, node: &Node) -> RuleSet {
    let fields = Fields::open(report, node, "");
    let mut rules = RuleSet {
        name: fields.text("name").unwrap_or_default().into(),
        version: fields.text("version").map(Arc::from),
        attributes: Vec::new(),
        teams: Vec::new(),
        role_attribute: None,
        rules: Vec::new(),
        quality: Quality::default(),
        max_party: 0,
        slots: Vec::new(),
    };
    fields.required("name");
    for (name, attribute) in fields.tables("attributes") {
        check_name(&attribute, name);
        rules.attributes.push(read_attribute(name, &attribute));
    }
    for (name, team) in fields.tables("teams") {
        check_name(&team, name);
        rules.teams.push(read_team(name, &team));
    }
    add_slots(&fields, &mut rules);
    read_role_attribute(&fields, &mut rules);
    let largest = rules.teams.iter().map(|team| team.max).max().unwrap_or(1);
    rules.max_party = fields.count("max_party", 1, MAX_PLAYERS).unwrap_or(largest);
    if rules.max_party > largest
        && let Some(node) = fields.get("max_party")
    {
        report.add(node.position, format!("max_party: the largest team has room for {largest}"));
    }
    rule::read_all(&fields, &mut rules);
    read_quality(&fields, &mut rules);
    fields.finish();
    rules
}

fn check_name(fields: &Fields<'_>, name: &str) {
    let is_sound = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ');
    if !(1..=MAX_NAME).contains(&name.chars().count()) || !name.chars().all(is_sound) || name.trim() != name {
        fields.add(format!("a name has 1 to {MAX_NAME} letters, digits, spaces, `_`, `-` and `.`"));
    }
}

fn read_attribute(name: &str, fields: &Fields<'_>) -> Attribute {
    fields.required("type");
    let kind = fields.choice("type", AttributeKind::WORDS).unwrap_or(AttributeKind::Number);
    let default = fields.get("default").and_then(|node| match value::read(node) {
        Ok(value) if value.kind() == kind => Some(value),
        // An empty list or table fits both.
        _ if matches!((&node.data, kind), (Data::List(items), AttributeKind::TextList) if items.is_empty()) => {
            Some(crate::model::Value::TextList(Vec::new()))
        }
        _ => {
            fields.add_at(node.position, format!("default: expected a {}, found {}", kind.word(), node.kind()));
            None
        }
    });
    fields.finish();
    Attribute { name: name.into(), kind, default }
}

fn read_team(name: &str, fields: &Fields<'_>) -> Team {
    fields.required("max");
    let max = fields.count("max", 1, MAX_PLAYERS).unwrap_or(1);
    let min = fields.count("min", 0, MAX_PLAYERS).unwrap_or(max);
    if min > max {
        fields.add(format!("min ({min}) is larger than max ({max})"));
    }
    let mut schedules = [("min", crate::model::Schedule::fixed(min as f64))];
    schedule::read(fields, &mut schedules);
    let [(_, schedule)] = schedules;
    for (_, value) in schedule.steps.iter().filter_map(|step| match step.change {
        crate::model::Change::Set(value) => Some((step.after, value)),
        crate::model::Change::Grow { .. } => None,
    }) {
        if value.fract() != 0.0 || !(0.0..=max as f64).contains(&value) {
            fields.add(format!("relax: min must be a whole number from 0 to {max}, found {value}"));
        }
    }
    let team = Team {
        name: name.into(),
        count: fields.count("count", 1, MAX_PLAYERS).unwrap_or(1),
        min: schedule,
        max,
        age: fields.choice("age", Age::WORDS).unwrap_or_default(),
        roles: read_roles(fields, max),
        position: fields.position(),
    };
    fields.finish();
    team
}

fn read_roles(fields: &Fields<'_>, team_max: usize) -> Vec<Role> {
    let Some(node) = fields.get("roles") else { return Vec::new() };
    let Data::Table(entries) = &node.data else {
        fields.add_at(node.position, format!("roles: expected a table, found {}", node.kind()));
        return Vec::new();
    };
    let mut roles = Vec::new();
    for (name, node) in entries {
        let role = |min, max| Role { name: name.as_str().into(), min, max };
        match &node.data {
            Data::Number(count) if count.fract() == 0.0 && *count >= 0.0 => {
                roles.push(role(*count as usize, *count as usize));
            }
            Data::Table(_) => {
                let inner = Fields::open(fields.report(), node, format!("{}.roles.{name}", fields.path()));
                let min = inner.count("min", 0, MAX_PLAYERS).unwrap_or(0);
                let max = inner.count("max", 0, MAX_PLAYERS).unwrap_or(team_max);
                if min > max {
                    inner.add(format!("min ({min}) is larger than max ({max})"));
                }
                inner.finish();
                roles.push(role(min, max));
            }
            _ => fields.add_at(
                node.position,
                format!("roles.{name}: expected a number, or a table with min and max"),
            ),
        }
    }
    roles
}

fn add_slots(fields: &Fields<'_>, rules: &mut RuleSet) {
    for (at, team) in rules.teams.iter().enumerate() {
        let name = |number: usize| match team.count {
            1 => team.name.clone(),
            _ => format!("{}_{number}", team.name).into(),
        };
        rules
            .slots
            .extend((1..=team.count.min(MAX_PLAYERS)).map(|number| Slot { name: name(number), team: at }));
    }
    if rules.slots.is_empty() {
        fields.add_at(fields.position(), "at least one table [teams.NAME] is required");
    }
    let most = rules.max_players();
    if most > MAX_PLAYERS {
        fields.add_at(
            fields.position(),
            format!("a match has at most {MAX_PLAYERS} players; these teams have room for {most}"),
        );
    }
    for (at, slot) in rules.slots.iter().enumerate() {
        if rules.slots[..at].iter().any(|earlier| earlier.name == slot.name) {
            fields.add_at(rules.teams[slot.team].position, format!("two teams are called {}", slot.name));
        }
    }
}

fn read_role_attribute(fields: &Fields<'_>, rules: &mut RuleSet) {
    let has_roles = rules.teams.iter().any(|team| !team.roles.is_empty());
    if let Some(name) = fields.text("role_attribute") {
        rules.role_attribute = find_attribute(
            fields,
            rules,
            "role_attribute",
            name,
            &[AttributeKind::Text, AttributeKind::TextList],
        );
    } else if has_roles {
        fields.add_at(
            fields.position(),
            "teams have roles: role_attribute must name the attribute that lists a player's roles",
        );
    }
}

/// Finds an attribute of one of these kinds. Records a mistake if there is none.
fn find_attribute(
    fields: &Fields<'_>,
    rules: &RuleSet,
    field: &'static str,
    name: &str,
    kinds: &[AttributeKind],
) -> Option<usize> {
    let position = fields.get(field).map_or(fields.position(), |node| node.position);
    let prefix = if fields.path().is_empty() { String::new() } else { format!("{}: ", fields.path()) };
    let Some(at) = rules.attribute(name) else {
        let known: Vec<&str> = rules.attributes.iter().map(|attribute| &*attribute.name).collect();
        fields.report().add_unknown(
            position,
            format!("{prefix}{field}: no such attribute: {name}"),
            name,
            known,
        );
        return None;
    };
    let kind = rules.attributes[at].kind;
    if !kinds.contains(&kind) {
        let words: Vec<&str> = kinds.iter().map(|kind| kind.word()).collect();
        fields.report().add(
            position,
            format!("{prefix}{field}: {name} is a {}; expected a {}", kind.word(), words.join(" or ")),
        );
        return None;
    }
    Some(at)
}

fn read_quality(fields: &Fields<'_>, rules: &mut RuleSet) {
    let Some(node) = fields.get("quality") else { return };
    let quality = Fields::open(fields.report(), node, "quality");
    let weight = |name| {
        let weight = quality.number(name).unwrap_or(0.0);
        if weight < 0.0 {
            quality.add(format!("{name} must not be negative"));
        }
        weight
    };
    rules.quality = Quality {
        attribute: quality
            .text("attribute")
            .and_then(|name| find_attribute(&quality, rules, "attribute", name, &[AttributeKind::Number])),
        balance: weight("balance"),
        spread: weight("spread"),
        latency: weight("latency"),
        wait: weight("wait"),
    };
    if quality.get("attribute").is_none() && (rules.quality.balance > 0.0 || rules.quality.spread > 0.0) {
        quality.add("balance and spread need `attribute`");
    }
    quality.finish();
}
