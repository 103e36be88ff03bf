//! The built-in match function that follows a rule set.

mod joining;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use rules::model::AttributeKind;
use rules::{Options, Pass, Player, RuleSet, Unsent, Value};
use serde_json::json;

use super::plugins::{MatchFunction, PluginError, PluginFuture, Pools, ProposedJoin};
use crate::metrics::Metrics;
use crate::model::{Any, Assignment, Lineup, Match, Moment, Proposal, SearchFields, Team, Ticket, TicketId};
use crate::store::{OpenRoom, Seat};
use crate::why::RuleSetWhy;
use crate::wire;

/// The extension of a ticket with several players: a JSON list of them, as a text or as a `google.protobuf.Value`.
pub const PLAYERS_EXTENSION: &str = "players";
/// The prefix of the number fields that hold latencies: `latency.eu`.
const LATENCY: &str = "latency.";
/// After this time a ticket without a match is compared with all others, unless `max_wait` is short.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes matches that follow a rule set.
#[derive(Clone, Debug)]
pub struct RuleFunction {
    profile: Arc<str>,
    rules: Arc<RuleSet>,
    /// The definition of the rule set and its version, which matches carry.
    definition: Option<(Arc<str>, i64)>,
    metrics: Metrics,
    patience: Duration,
    /// The number of the next pass.
    turn: Arc<AtomicU64>,
}

impl RuleFunction {
    pub fn new(profile: Arc<str>, rules: Arc<RuleSet>, metrics: Metrics) -> Self {
        Self { profile, rules, definition: None, metrics, patience: PATIENCE, turn: Arc::default() }
    }

    /// Sets the definition that the rule set comes from, with its version.
    pub fn with_definition(self, name: &str, version: i64) -> Self {
        Self { definition: Some((name.into(), version)), ..self }
    }

    /// Sets the waiting time that should not be exceeded. A ticket without a match is compared with all others from half of
    /// it on, and after 30 s at the latest.
    #[must_use]
    pub fn with_max_wait(self, max_wait: Option<Duration>) -> Self {
        let patience = max_wait.map_or(PATIENCE, |max_wait| PATIENCE.min(max_wait / 2));
        Self { patience, ..self }
    }

    /// Finds matches in one pool after the other. A ticket that is in two pools is used once.
    fn find(&self, pools: &Pools) -> Vec<Proposal> {
        let (mut proposals, mut taken) = (Vec::new(), HashSet::new());
        for (pool, tickets) in &pools.pools {
            let free: Vec<&Arc<Ticket>> =
                tickets.iter().filter(|ticket| !taken.contains(&ticket.id)).collect();
            let prepared: Vec<rules::Ticket> = free.iter().map(|ticket| self.prepare(ticket)).collect();
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let options = Options { patience: self.patience, turn, ..Options::default() };
            let pass = self.rules.find_matches(&prepared, millis(pools.now), options);
            self.metrics.note_rule_pass(&self.profile, &self.rules, &pass);
            for made in &pass.matches {
                let chosen = made.tickets().map(|at| free[at].clone()).collect();
                let lineup = self.lineup(&pool.name, made, &free, &prepared);
                proposals.push(Proposal {
                    tickets: chosen,
                    score: made.quality,
                    lineup: Some(Arc::new(lineup)),
                });
            }
            let matched: HashSet<usize> = pass.matches.iter().flat_map(rules::Match::tickets).collect();
            taken.extend(matched.iter().map(|at| free[*at].id.clone()));
        }
        proposals
    }

    fn lineup(
        &self,
        pool: &str,
        made: &rules::Match,
        free: &[&Arc<Ticket>],
        prepared: &[rules::Ticket],
    ) -> Lineup {
        let mut roles = HashMap::new();
        let teams = made.teams.iter().map(|team| {
            let mut of_players = team.roles.iter();
            for at in &team.tickets {
                let own: Vec<Arc<str>> =
                    of_players.by_ref().take(prepared[*at].players.len()).cloned().collect();
                if !own.is_empty() {
                    roles.insert(free[*at].id.clone(), own);
                }
            }
            let tickets = team.tickets.iter().map(|at| free[*at].id.clone()).collect();
            Team { name: team.name.clone(), tickets, open: team.open }
        });
        Lineup {
            rule_set: self.rules.name.clone(),
            pool: pool.into(),
            version: self.rules.version.clone(),
            definition: self.definition.clone(),
            teams: teams.collect(),
            roles,
            regions: made.regions.clone(),
        }
    }

    /// Reads the attributes of the rule set from a ticket's fields.
    fn prepare(&self, ticket: &Ticket) -> rules::Ticket {
        let of_all = self.player(ticket);
        let players = match ticket.extensions.get(PLAYERS_EXTENSION).map(wire::any_to_json) {
            None => vec![of_all],
            // An unreadable list is a ticket without players, which the rule set refuses.
            Some(list) => match list.as_ref().and_then(serde_json::Value::as_array) {
                Some(list) => list
                    .iter()
                    .enumerate()
                    .map(|(at, player)| match own_fields(player) {
                        Some(own) => self.player(&own),
                        None => party_member(ticket, at, player, &of_all),
                    })
                    .collect(),
                None => Vec::new(),
            },
        };
        rules::Ticket { id: ticket.id.as_str().into(), created: millis(ticket.created), players }
    }

    /// Returns what the rule set reads and a player with these fields lacks. A field of the wrong type is none.
    pub(crate) fn unsent(&self, fields: SearchFields) -> Vec<Unsent> {
        let mut player = self.player(&Ticket { fields, ..Ticket::default() });
        player.attributes.retain(|name, value| {
            self.rules.attributes.iter().any(|known| known.name == *name && known.kind == value.kind())
        });
        self.rules.unsent(&[rules::Ticket { players: vec![player], ..rules::Ticket::default() }])
    }

    fn player(&self, ticket: &Ticket) -> Player {
        let fields = &ticket.fields;
        let mut attributes = BTreeMap::new();
        for attribute in &self.rules.attributes {
            let name = &*attribute.name;
            let prefix = format!("{name}.");
            let value = match attribute.kind {
                AttributeKind::Number => fields.doubles.get(name).copied().map(Value::Number),
                AttributeKind::Text => fields.strings.get(name).map(|text| Value::Text(text.as_str().into())),
                AttributeKind::TextList => text_list(ticket, name).map(Value::TextList),
                AttributeKind::NumberMap => {
                    let entries = fields
                        .doubles
                        .iter()
                        .filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?.into(), *value)));
                    Some(entries.collect::<BTreeMap<Arc<str>, f64>>())
                        .filter(|map| !map.is_empty())
                        .map(Value::NumberMap)
                }
            };
            // A number in place of a text, or the reverse, is refused by name and not taken as missing.
            let wrong = || match attribute.kind {
                AttributeKind::Number => {
                    fields.strings.get(name).map(|text| Value::Text(text.as_str().into()))
                }
                _ => fields.doubles.get(name).copied().map(Value::Number),
            };
            if let Some(value) = value.or_else(wrong) {
                attributes.insert(attribute.name.clone(), value);
            }
        }
        let latency = fields
            .doubles
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(LATENCY)?.into(), *value)));
        let id = ticket.user.map_or_else(|| ticket.id.as_str().into(), |user| user.to_string().into());
        Player { id, attributes, latency: latency.collect() }
    }
}

impl MatchFunction for RuleFunction {
    fn name(&self) -> &'static str {
        "rules"
    }

    fn make_matches<'a>(&'a self, pools: &'a Pools) -> PluginFuture<'a, Vec<Proposal>> {
        let (function, pools) = (self.clone(), pools.clone());
        // A pass over many tickets takes longer than a task may keep a thread of the runtime.
        let finding = async move {
            tokio::task::spawn_blocking(move || function.find(&pools)).await.map_err(PluginError::from)
        };
        finding.boxed()
    }

    fn meets_all(&self) -> bool {
        true
    }

    fn refuse(&self, ticket: &Ticket) -> Option<String> {
        let refusal = self.prepare(ticket).check(&self.rules).err()?;
        Some(format!("rule set {}: {}", self.rules.name, refusal.reason))
    }

    fn seats(&self, match_: &Match, region: Option<&str>, now: Moment) -> Option<BTreeMap<TicketId, Seat>> {
        Some(self.seats_of(match_, region, now))
    }

    fn fill<'a>(&'a self, rooms: &'a [OpenRoom], pools: &'a Pools) -> PluginFuture<'a, Vec<ProposedJoin>> {
        let (function, rooms, pools) = (self.clone(), rooms.to_vec(), pools.clone());
        let filling = async move {
            tokio::task::spawn_blocking(move || function.find_joins(&rooms, &pools))
                .await
                .map_err(PluginError::from)
        };
        filling.boxed()
    }

    fn why(&self, ticket: &Ticket, others: &[Arc<Ticket>], now: Moment) -> Option<RuleSetWhy> {
        let mut pool: Vec<rules::Ticket> = others.iter().map(|other| self.prepare(other)).collect();
        if !others.iter().any(|other| other.id == ticket.id) {
            pool.push(self.prepare(ticket));
        }
        Some(RuleSetWhy {
            rule_set: self.rules.name.clone(),
            version: self.rules.version.clone(),
            why: self.rules.why(ticket.id.as_str(), &pool, millis(now))?,
        })
    }

    fn warnings(&self, waiting: &[Arc<Ticket>]) -> Vec<String> {
        let tickets: Vec<rules::Ticket> = waiting.iter().map(|ticket| self.prepare(ticket)).collect();
        self.rules.lint_with(&tickets).iter().map(ToString::to_string).collect()
    }
}

fn millis(moment: Moment) -> i64 {
    moment.micros() / 1000
}

/// Reads a list from tags `NAME=VALUE`, or from a text with commas.
fn text_list(ticket: &Ticket, name: &str) -> Option<Vec<Arc<str>>> {
    let prefix = format!("{name}=");
    let tagged: Vec<Arc<str>> =
        ticket.fields.tags.iter().filter_map(|tag| tag.strip_prefix(&prefix)).map(Arc::from).collect();
    if !tagged.is_empty() {
        return Some(tagged);
    }
    let text = ticket.fields.strings.get(name)?;
    Some(text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(Arc::from).collect())
}

/// Reads a player who has search fields, as the members of our parties have: a ticket of that player alone.
fn own_fields(player: &serde_json::Value) -> Option<Ticket> {
    let entries = |name: &str| player[name].as_object().into_iter().flatten();
    let is_ours = ["numbers", "strings", "tags"].iter().any(|name| player.get(name).is_some());
    let user = player["id"].as_str()?.parse().ok().filter(|_| is_ours)?;
    let numbers = entries("numbers").filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)));
    let strings =
        entries("strings").filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
    let tags = player["tags"].as_array().into_iter().flatten();
    let fields = SearchFields {
        doubles: numbers.collect(),
        strings: strings.collect(),
        tags: tags.filter_map(|tag| tag.as_str().map(str::to_owned)).collect(),
    };
    Some(Ticket { user: Some(user), fields, ..Ticket::default() })
}

/// Reads one player of a party. What the player does not have comes from the ticket's fields.
fn party_member(ticket: &Ticket, at: usize, player: &serde_json::Value, of_all: &Player) -> Player {
    let id = player["id"].as_str().map_or_else(|| format!("{}/{}", ticket.id, at + 1).into(), Arc::from);
    let mut member = Player { id, ..of_all.clone() };
    for (name, value) in player["attributes"].as_object().into_iter().flatten() {
        if let Some(value) = attribute(value) {
            member.attributes.insert(name.as_str().into(), value);
        }
    }
    if let Some(latency) = player["latency"].as_object() {
        member.latency = latency
            .iter()
            .filter_map(|(region, value)| Some((region.as_str().into(), value.as_f64()?)))
            .collect();
    }
    member
}

fn attribute(value: &serde_json::Value) -> Option<Value> {
    Some(match value {
        serde_json::Value::Number(number) => Value::Number(number.as_f64()?),
        serde_json::Value::String(text) => Value::Text(text.as_str().into()),
        serde_json::Value::Array(items) => {
            Value::TextList(items.iter().map(|item| item.as_str().map(Arc::from)).collect::<Option<_>>()?)
        }
        serde_json::Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| Some((Arc::from(key.as_str()), value.as_f64()?)));
            Value::NumberMap(entries.collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

impl Metrics {
    fn note_rule_pass(&self, profile: &str, rules: &RuleSet, pass: &Pass) {
        for (rule, count) in rules.rules.iter().zip(&pass.evaluations) {
            self.add_rule_evaluations(profile, &rule.name, count.passed, count.failed);
        }
        self.add_rule_searches(profile, pass.refused.len() as u64, pass.cut_short as u64);
    }
}

impl Assignment {
    /// Adds the team, the roles and the rule set to the assignment, as extensions. Keeps the values that the assigner has set.
    pub(super) fn add_lineup(&mut self, lineup: &Lineup) {
        let regions: Vec<&str> = lineup.regions.iter().map(|(name, _)| &**name).collect();
        let mut rules = json!({ "rule_set": &*lineup.rule_set, "version": lineup.version.as_deref(), "regions": regions });
        if let Some((name, version)) = &lineup.definition {
            rules["definition"] = json!({ "name": &**name, "version": version });
        }
        add(&mut self.extensions, "rules", &rules);
        for team in &lineup.teams {
            for ticket in &team.tickets {
                let own = self.of_ticket.entry(ticket.clone()).or_default();
                add(own, "team", &json!(&*team.name));
                if let Some(roles) = lineup.roles.get(ticket) {
                    add(own, "roles", &json!(roles.iter().map(|role| &**role).collect::<Vec<_>>()));
                }
            }
        }
    }
}

pub(super) fn add(extensions: &mut BTreeMap<String, Any>, name: &str, value: &serde_json::Value) {
    if !extensions.contains_key(name)
        && let Some(any) = wire::any_from_json(value)
    {
        extensions.insert(name.to_owned(), any);
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::model::Pool;

    const RULES: &str = "name = \"ranked\"\nversion = \"7\"\nrole_attribute = \"roles\"\n[attributes.skill]\ntype = \"number\"\n\
        [attributes.roles]\ntype = \"string-list\"\ndefault = []\n[teams.red]\nmax = 2\nroles = { tank = 1, healer = 1 }\n\
        [teams.blue]\nmax = 2\nroles = { tank = 1, healer = 1 }\n\
        [rules.skill]\ntype = \"batch-distance\"\nattribute = \"skill\"\nmax = 50\nrelax = [{ after = 10, max = 100 }]\n\
        [rules.region]\ntype = \"latency\"\nmax = 60\n";

    fn function(metrics: &Metrics) -> RuleFunction {
        RuleFunction::new("ranked".into(), Arc::new(RuleSet::parse(RULES).unwrap()), metrics.clone())
    }

    fn ticket(id: &str, skill: f64) -> Ticket {
        let doubles = [("skill".to_owned(), skill), ("latency.eu".to_owned(), 30.0)].into();
        let fields = SearchFields { doubles, ..SearchFields::default() };
        Ticket { id: TicketId::parse(id).unwrap(), fields, ..Ticket::default() }
    }

    fn party(id: &str, players: &str) -> Ticket {
        let list = wire::any_from_json(&json!(players)).unwrap();
        Ticket { extensions: [(PLAYERS_EXTENSION.to_owned(), list)].into(), ..ticket(id, 1000.0) }
    }

    async fn matches(function: &RuleFunction, tickets: Vec<Ticket>) -> Vec<Proposal> {
        let tickets = tickets.into_iter().map(Arc::new).collect();
        let pools = Pools {
            profile: "ranked".into(),
            now: Moment::from_micros(5_000_000),
            pools: vec![(Arc::new(Pool::default()), tickets)],
        };
        function.make_matches(&pools).await.unwrap()
    }

    #[tokio::test]
    async fn match_names_its_rule_set_teams_roles_and_regions() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let mut healer = ticket("healer", 1010.0);
        healer.fields.tags = vec!["roles=healer".to_owned(), "other".to_owned()];
        let mut tank = ticket("tank", 1020.0);
        tank.fields.strings.insert("roles".to_owned(), "tank, bard".to_owned());
        let pair = party("pair", r#"[{"id": "p1"}, {"id": "p2", "attributes": {"skill": 1030}}]"#);
        let found = matches(&function(&metrics), vec![healer, tank, pair, ticket("far", 3000.0)]).await;
        assert_eq!(found.len(), 1);
        let lineup = found[0].lineup.clone().unwrap();
        assert_eq!((&*lineup.rule_set, lineup.version.as_deref()), ("ranked", Some("7")));
        assert_eq!(lineup.regions, [("eu".into(), 30.0)]);
        let pair_team = lineup.teams.iter().find(|team| team.tickets.len() == 1).unwrap();
        assert_eq!(pair_team.tickets[0].as_str(), "pair");
        assert_eq!(lineup.roles[&TicketId::parse("healer").unwrap()], [Arc::<str>::from("healer")]);
        assert_eq!(lineup.roles[&pair_team.tickets[0]].len(), 2);

        let mut assignment = Assignment::new("h:1");
        assignment.extensions.insert("rules".to_owned(), wire::any_from_json(&json!("mine")).unwrap());
        assignment.add_lineup(&lineup);
        let own = &assignment.of_ticket[&pair_team.tickets[0]];
        assert_eq!(wire::any_to_text(&own["team"]).as_deref(), Some(&*pair_team.name));
        assert_eq!(wire::any_to_text(&assignment.extensions["rules"]).as_deref(), Some("mine"));

        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(
            text.contains("rule_evaluations_total{profile=\"ranked\",rule=\"skill\",outcome=\"failed\"}"),
            "{text}"
        );
    }

    fn explain(metrics: &Metrics, ticket: &Ticket, others: &[Arc<Ticket>], now: Moment) -> String {
        function(metrics).why(ticket, others, now).unwrap().why.lines().join("\n")
    }

    #[tokio::test]
    async fn members_of_a_party_have_their_own_fields() {
        let metrics = Metrics::new(&mut Registry::default());
        let own = |user: u128, skill: f64, role: &str| {
            json!({
                "id": base::id::Uuid::from_u128(user).to_string(),
                "numbers": { "skill": skill, "latency.eu": 20 },
                "strings": {},
                "tags": [format!("roles={role}")],
            })
        };
        let members = json!([own(1, 1000.0, "tank"), own(2, 1020.0, "healer")]);
        let list = wire::any_from_json(&members).unwrap();
        // The fields of the ticket are for pools only.
        let pair =
            Ticket { extensions: [(PLAYERS_EXTENSION.to_owned(), list)].into(), ..ticket("pair", 9.0) };
        let prepared = function(&metrics).prepare(&pair);
        assert_eq!(prepared.players.len(), 2);
        let second = &prepared.players[1];
        assert_eq!(*second.id, *base::id::Uuid::from_u128(2).to_string());
        assert_eq!(second.attributes["skill"], Value::Number(1020.0));
        assert_eq!(second.attributes["roles"], Value::TextList(vec!["healer".into()]));
        assert_eq!(second.latency["eu"], 20.0);
        let others = vec![pair, party("other", r#"[{"id": "p1"}, {"id": "p2"}]"#)];
        let found = matches(&function(&metrics), others).await;
        let lineup = found[0].lineup.clone().unwrap();
        let roles = &lineup.roles[&TicketId::parse("pair").unwrap()];
        assert_eq!(roles[..], [Arc::<str>::from("tank"), Arc::from("healer")]);
    }

    #[tokio::test]
    async fn explanation_names_the_rule_and_the_time_of_admission() {
        let metrics = Metrics::new(&mut Registry::default());
        let others: Vec<Arc<Ticket>> = [("a", 1000.0), ("b", 1080.0), ("c", 1080.0), ("d", 1085.0)]
            .map(|(id, skill)| Arc::new(ticket(id, skill)))
            .into();
        let why = explain(&metrics, &others[0], &others, Moment::from_micros(4_000_000));
        assert!(why.contains("blocked by rule skill"), "{why}");
        assert!(
            why.contains("rule skill: 0 of 3 candidates pass") && why.contains("rule region: 3 of 3"),
            "{why}"
        );
        assert!(why.contains("max 50 (100 in 6 s); nearest miss: 80 with ticket b, 30 off"), "{why}");
        assert!(why.contains("separated by skill, admitted in 6 s"), "{why}");
    }

    #[tokio::test]
    async fn ticket_with_an_attribute_of_the_wrong_type_is_refused_by_name() {
        let metrics = Metrics::new(&mut Registry::default());
        let mut wrong = ticket("wrong", 0.0);
        wrong.fields.doubles.remove("skill");
        wrong.fields.strings.insert("skill".to_owned(), "40".to_owned());
        let why = explain(&metrics, &wrong, &[], Moment::default());
        assert!(why.contains("skill must be a number, and is a string"), "{why}");
        let unreadable = party("odd", "not json");
        assert!(explain(&metrics, &unreadable, &[], Moment::default()).contains("has no players"));
        assert!(matches(&function(&metrics), vec![wrong, unreadable]).await.is_empty());
    }
}
