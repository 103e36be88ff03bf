//! The settings of matchmaking.

mod assigner;
mod definitions;
mod demo;
mod director;
mod filter;
mod lint;
mod party;
mod profile;
mod queue;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::config::{ByteSize, Reader, Section, TableReader};
use base::Clock;
use redis_store::RedisUrl;

use crate::backend::BackendConfig;
use crate::engine::{Assigner, EngineConfig, PluginError};
use crate::frontend::FrontendConfig;
use crate::parties::PartyConfig;
use crate::players::Queue;
use crate::query::QueryConfig;
use crate::store::Rules;

use self::assigner::{AssignerConfig, AssignerKind};
use self::definitions::{RuleSetText, check_assigner, is_ready_check_within};
use self::profile::{FunctionConfig, ProfileConfig, RuleSetSource, read_rules};

pub(crate) use self::definitions::{ConfiguredDefinitions, DefinitionMistake};

/// The settings of matchmaking.
#[derive(Clone, Debug)]
pub struct Config {
    pub rules: Rules,
    pub frontend: FrontendConfig,
    pub engine: EngineConfig,
    director: BackendConfig,
    /// Whether `playhouse dev` adds a profile if there is none.
    demo: bool,
    pub query: QueryConfig,
    /// A separate Redis for assignments.
    pub assignments_url: Option<RedisUrl>,
    /// A Redis replica that tickets are read from first.
    pub replica_url: Option<RedisUrl>,
    /// How long after its request an unsettled allocation is given back.
    pub abandon_after: Duration,
    /// The work queue of give-back calls.
    pub abandoned: work_queue::Config,
    pub parties: PartyConfig,
    /// The queues that players can join, by name.
    pub queues: BTreeMap<String, Queue>,
    profiles: BTreeMap<String, ProfileConfig>,
    assigners: BTreeMap<String, AssignerConfig>,
    /// The rule sets of profiles that have a file or a text, by the name of the profile.
    rule_sets: BTreeMap<String, RuleSetText>,
    profile_reader: TableReader,
    queue_reader: TableReader,
}

impl Section for Config {
    fn read(reader: &mut Reader<'_>) -> Self {
        let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
        let number = |reader: &mut Reader<'_>, name, max| reader.get_within(name, 1..=max) as usize;
        let mut config = Self {
            rules: Rules {
                key_prefix: reader.get("key_prefix"),
                coordination: reader.get("coordination"),
                pending_timeout: reader.get_within("pending_timeout", second..=day),
                assigned_ttl: reader.get_within("assigned_ttl", second..=day),
                check_tickets: reader.get("check_tickets"),
                max_unrecorded: reader.get::<ByteSize>("max_unrecorded").0,
            },
            assignments_url: reader.optional("assignments_url"),
            replica_url: reader.optional("replica_url"),
            frontend: FrontendConfig {
                ticket_ttl: reader.get_within("ticket_ttl", second..=day),
                max_ticket_ttl: reader.get_within("max_ticket_ttl", second..=day),
                max_ticket_size: reader.get::<ByteSize>("max_ticket_size").0.try_into().unwrap_or(usize::MAX),
                max_fields: number(reader, "max_fields", 10_000),
                max_watchers: number(reader, "max_watchers", 1_000_000),
                ttl_field: reader.get("ttl_field"),
                cors_origins: reader.get("cors_origins"),
                watch_check: reader
                    .get_within("watch_check", Duration::from_millis(100)..=Duration::from_secs(60)),
            },
            engine: EngineConfig {
                tick: reader.get_within("tick", Duration::from_millis(1)..=Duration::from_secs(60)),
                gather: reader.get_within("gather", Duration::ZERO..=second),
                fetch_limit: number(reader, "fetch_limit", 100_000),
                function_timeout: reader.get_within("function_timeout", Duration::from_millis(1)..=day),
                evaluator_timeout: reader.get_within("evaluator_timeout", Duration::from_millis(1)..=day),
                assigner_timeout: reader.get_within("assigner_timeout", Duration::from_millis(1)..=day),
            },
            director: reader.section("director"),
            demo: reader.get("demo"),
            query: QueryConfig {
                page_size: reader.get_within("query_page_size", 10..=10_000) as usize,
                max_memory: reader.get::<ByteSize>("query_max_memory").0,
                max_age: reader.get_within("query_max_age", Duration::ZERO..=day),
                idle_timeout: reader.get_within("query_idle_timeout", second..=day),
            },
            abandon_after: reader.get_within("abandon_after", Duration::from_millis(100)..=day),
            abandoned: reader.section("abandoned"),
            parties: reader.section("parties"),
            queues: reader.tables("queues"),
            profiles: reader.tables("profiles"),
            assigners: reader.tables("assigners"),
            rule_sets: BTreeMap::new(),
            profile_reader: reader.table_reader("profiles"),
            queue_reader: reader.table_reader("queues"),
        };
        config.rule_sets = read_rule_sets(reader, &mut config.profiles);
        config.check(reader);
        config
    }
}

impl Config {
    fn check(&self, reader: &mut Reader<'_>) {
        let frontend = &self.frontend;
        reader.check(
            &["ticket_ttl", "max_ticket_ttl"],
            frontend.ticket_ttl <= frontend.max_ticket_ttl,
            || "ticket_ttl must not be longer than max_ticket_ttl".to_owned(),
        );
        let engine = &self.engine;
        let tick = engine.function_timeout + engine.evaluator_timeout + engine.assigner_timeout;
        let keys = ["pending_timeout", "function_timeout", "evaluator_timeout", "assigner_timeout"];
        reader.check(&keys, tick < self.rules.pending_timeout, || {
            "pending_timeout must be longer than function_timeout, evaluator_timeout and assigner_timeout together, or a \
             tick that takes its time loses its tickets to another engine"
                .to_owned()
        });
        let allocates = self.assigners.values().any(|assigner| assigner.kind == AssignerKind::Webhook);
        reader.check(
            &["abandon_after", "assigner_timeout"],
            !allocates || engine.assigner_timeout < self.abandon_after,
            || {
                "abandon_after must be longer than assigner_timeout, or matches still being assigned are given back"
                    .to_owned()
            },
        );
        for (name, assigner) in &self.assigners {
            let key = format!("assigners.{name}.timeout");
            let fits = assigner.timeout.is_none_or(|timeout| timeout <= engine.assigner_timeout);
            reader.check(&[&key, "assigner_timeout"], fits, || {
                format!("assigners.{name}.timeout must not be longer than assigner_timeout, which covers all attempts")
            });
        }
        reader.check(&["gather", "tick"], engine.gather <= engine.tick, || {
            "gather must not be longer than tick".to_owned()
        });
        for (name, url) in [("assignments_url", &self.assignments_url), ("replica_url", &self.replica_url)] {
            reader.check(&[name], url.as_ref().is_none_or(|url| !url.is_embedded()), || {
                "must be the URL of a Redis server; leave it out to use redis.url".to_owned()
            });
        }
        reader.check(&["parties.ttl", "max_ticket_ttl"], frontend.max_ticket_ttl <= self.parties.ttl, || {
            "parties.ttl must not be shorter than max_ticket_ttl, or a party ends before its ticket"
                .to_owned()
        });
        for (name, queue) in &self.queues {
            let key = format!("queues.{name}.ticket_ttl");
            let fits = queue.ticket_ttl.is_none_or(|ttl| ttl <= frontend.max_ticket_ttl);
            reader.check(&[&key, "max_ticket_ttl"], fits, || {
                format!("queues.{name}.ticket_ttl must not be longer than max_ticket_ttl")
            });
        }
        for (name, profile) in &self.profiles {
            let key = format!("profiles.{name}.assigner");
            check_assigner(reader, &key, profile, |name| self.assigners.contains_key(name));
            let key = format!("profiles.{name}.ready_check");
            let fits = is_ready_check_within(profile, self.rules.pending_timeout);
            reader.check(&[&key, "pending_timeout"], fits, || {
                format!("profiles.{name}.ready_check must not be longer than pending_timeout")
            });
        }
    }

    /// Returns the settings for Directors. A match function never runs for longer than the claims on its first matches last.
    pub fn director(&self) -> BackendConfig {
        let proposal_window = self.director.proposal_window.min(self.rules.pending_timeout);
        BackendConfig { proposal_window, ..self.director.clone() }
    }

    /// Builds the assigners, by name.
    pub fn assigners(&self, clock: &Clock) -> Result<BTreeMap<String, Arc<dyn Assigner>>, PluginError> {
        let build = |(name, assigner): (&String, &AssignerConfig)| {
            Ok((name.clone(), assigner.build(name, self.engine.assigner_timeout, clock)?))
        };
        self.assigners.iter().map(build).collect()
    }

    /// Returns the definitions that stored ones may replace.
    pub(crate) fn definitions(&self) -> ConfiguredDefinitions {
        ConfiguredDefinitions {
            profiles: self.profiles.clone(),
            queues: self.queues.clone(),
            rule_sets: self.rule_sets.clone(),
            assigners: self.assigners.keys().cloned().collect(),
            profile_reader: self.profile_reader.clone(),
            queue_reader: self.queue_reader.clone(),
            max_ticket_ttl: self.frontend.max_ticket_ttl,
            pending_timeout: self.rules.pending_timeout,
        }
    }
}

/// Reads the rule sets of profiles that have a file or a text. Each gets the name of its profile.
fn read_rule_sets(
    reader: &mut Reader<'_>,
    profiles: &mut BTreeMap<String, ProfileConfig>,
) -> BTreeMap<String, RuleSetText> {
    let mut rule_sets = BTreeMap::new();
    for (name, profile) in profiles {
        let FunctionConfig::Rules(source) = &mut profile.function else { continue };
        match read_rules(source) {
            Ok(None) => {}
            Ok(Some(rules)) => {
                rule_sets.insert(name.clone(), rules);
                *source = RuleSetSource::Name(name.clone());
            }
            Err(cause) => {
                let [rules, function] = ["rules", "function"].map(|key| format!("profiles.{name}.{key}"));
                reader.check(&[&rules, &function], false, || cause);
            }
        }
    }
    rule_sets
}
