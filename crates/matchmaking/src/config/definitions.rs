//! Rule sets, profiles and queues: those of the configuration, those that are stored, and what they are together.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::config::{Problems, Reader, Section, TableReader, check_table_name};
use rules::RuleSet;

use super::profile::{FunctionConfig, ProfileConfig, RuleSetSource};
use crate::definitions::{Content, Definition, DefinitionKey, DefinitionKind};
use crate::engine::{Assigner, Fifo, Profile, RuleFunction};
use crate::metrics::Metrics;
use crate::players::Queue;

/// The definitions of the configuration, and how stored ones are read.
#[derive(Clone, Debug)]
pub(crate) struct ConfiguredDefinitions {
    pub(super) profiles: BTreeMap<String, ProfileConfig>,
    pub(super) queues: BTreeMap<String, Queue>,
    pub(super) rule_sets: BTreeMap<String, RuleSetText>,
    pub(super) assigners: BTreeSet<String>,
    pub(super) profile_reader: TableReader,
    pub(super) queue_reader: TableReader,
    pub(super) max_ticket_ttl: Duration,
    pub(super) pending_timeout: Duration,
}

/// A rule set with its text.
#[derive(Clone, Debug)]
pub(super) struct RuleSetText {
    pub(super) text: String,
    pub(super) rules: Arc<RuleSet>,
}

/// All definitions that count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResolvedDefinitions {
    /// The rule sets with the version of their definition, which is 0 for those of the configuration.
    rule_sets: BTreeMap<String, (Arc<RuleSet>, i64)>,
    profiles: BTreeMap<String, ProfileConfig>,
    /// The versions of the stored profiles.
    profile_versions: BTreeMap<String, i64>,
    pub(crate) queues: BTreeMap<String, Queue>,
}

/// A mistake in a definition. Displays with its definition, line and column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DefinitionMistake {
    pub(crate) key: DefinitionKey,
    text: String,
}

impl fmt::Display for DefinitionMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl DefinitionMistake {
    fn of(key: &DefinitionKey, text: impl fmt::Display) -> Self {
        Self { key: key.clone(), text: format!("{key}: {text}") }
    }

    fn all(key: &DefinitionKey, Problems(problems): &Problems) -> impl Iterator<Item = Self> {
        problems.iter().map(|problem| Self { key: key.clone(), text: problem.to_string() })
    }
}

impl ConfiguredDefinitions {
    /// Returns the text of a definition of the configuration.
    pub(crate) fn text(&self, key: &DefinitionKey) -> Option<String> {
        match key.kind {
            DefinitionKind::RuleSet => self.rule_sets.get(&key.name).map(|found| found.text.clone()),
            DefinitionKind::Profile => {
                let profile = self.profiles.get(&key.name)?;
                self.profile_reader.texts().get(&key.name).map(|text| profile.name_rules_in(text))
            }
            DefinitionKind::Queue => {
                self.queues.get(&key.name)?;
                Some(self.queue_reader.texts().get(&key.name).cloned().unwrap_or_default())
            }
        }
    }

    /// Returns the keys of all definitions of the configuration.
    pub(crate) fn keys(&self) -> impl Iterator<Item = DefinitionKey> {
        let of = |kind| move |name: &String| DefinitionKey::new(kind, name);
        let rule_sets = self.rule_sets.keys().map(of(DefinitionKind::RuleSet));
        let profiles = self.profiles.keys().map(of(DefinitionKind::Profile));
        rule_sets.chain(profiles).chain(self.queues.keys().map(of(DefinitionKind::Queue)))
    }

    /// Combines the definitions of the configuration with the stored ones, which replace those of the same kind and name. Leaves
    /// out what cannot be used, and returns every mistake.
    pub(crate) fn resolve(&self, stored: &[Definition]) -> (ResolvedDefinitions, Vec<DefinitionMistake>) {
        let mut mistakes = Vec::new();
        let mut resolved = ResolvedDefinitions {
            rule_sets: self
                .rule_sets
                .iter()
                .map(|(name, set)| (name.clone(), (set.rules.clone(), 0)))
                .collect(),
            profiles: self.profiles.clone(),
            profile_versions: BTreeMap::new(),
            queues: self.queues.clone(),
        };
        // A profile that names one of these is left out without a mistake of its own.
        let mut broken_rule_sets = BTreeSet::new();
        for definition in stored.iter().filter(|definition| definition.key.kind == DefinitionKind::RuleSet) {
            let name = &definition.key.name;
            match &definition.content {
                Content::File => continue,
                Content::Removed => drop(resolved.rule_sets.remove(name)),
                Content::Text(text) => match read_rule_set(&definition.key, text) {
                    Ok(rules) => {
                        resolved.rule_sets.insert(name.clone(), (Arc::new(rules), definition.version));
                    }
                    Err(found) => {
                        mistakes.extend(found);
                        resolved.rule_sets.remove(name);
                        broken_rule_sets.insert(name.clone());
                    }
                },
            }
        }
        let known: BTreeSet<&String> = resolved.rule_sets.keys().chain(&broken_rule_sets).collect();
        for (name, profile) in &self.profiles {
            let key = DefinitionKey::new(DefinitionKind::Profile, name);
            let is_replaced =
                stored.iter().any(|definition| definition.key == key && definition.content != Content::File);
            if let Some(missing) = profile.rule_set().filter(|set| !is_replaced && !known.contains(*set)) {
                mistakes.push(DefinitionMistake::of(&key, no_rule_set(missing)));
            }
        }
        for Definition { key, content, version, .. } in stored {
            let text = match content {
                Content::File => continue,
                Content::Removed => None,
                Content::Text(text) => Some(text),
            };
            match (key.kind, text) {
                (DefinitionKind::RuleSet, _) => {}
                (DefinitionKind::Profile, None) => drop(resolved.profiles.remove(&key.name)),
                (DefinitionKind::Queue, None) => drop(resolved.queues.remove(&key.name)),
                (DefinitionKind::Profile, Some(text)) => {
                    let read = |reader: &mut Reader<'_>| self.read_profile(reader, &known);
                    match self.profile_reader.read_with(&key.name, &key.to_string(), text, read) {
                        Ok(profile) => {
                            resolved.profiles.insert(key.name.clone(), profile);
                            resolved.profile_versions.insert(key.name.clone(), *version);
                        }
                        Err(problems) => {
                            mistakes.extend(DefinitionMistake::all(key, &problems));
                            resolved.profiles.remove(&key.name);
                        }
                    }
                }
                (DefinitionKind::Queue, Some(text)) => {
                    let read = |reader: &mut Reader<'_>| self.read_queue(reader);
                    match self.queue_reader.read_with(&key.name, &key.to_string(), text, read) {
                        Ok(queue) => drop(resolved.queues.insert(key.name.clone(), queue)),
                        Err(problems) => {
                            mistakes.extend(DefinitionMistake::all(key, &problems));
                            resolved.queues.remove(&key.name);
                        }
                    }
                }
            }
        }
        let ResolvedDefinitions { rule_sets, profiles, .. } = &mut resolved;
        profiles.retain(|_, profile| profile.rule_set().is_none_or(|set| rule_sets.contains_key(set)));
        (resolved, mistakes)
    }

    fn read_profile(&self, reader: &mut Reader<'_>, rule_sets: &BTreeSet<&String>) -> ProfileConfig {
        let profile = ProfileConfig::read(reader);
        check_assigner(reader, "assigner", &profile, |name| self.assigners.contains(name));
        let fits = is_ready_check_within(&profile, self.pending_timeout);
        reader.check(&["ready_check"], fits, || {
            "must not be longer than matchmaking.pending_timeout".to_owned()
        });
        if let FunctionConfig::Rules(source) = &profile.function {
            match source {
                RuleSetSource::Name(name) => {
                    reader.check(&["rules"], rule_sets.contains(name), || no_rule_set(name));
                }
                RuleSetSource::Text(_) | RuleSetSource::File(_) => reader.check(&["rules"], false, || {
                    "a stored profile names a stored rule set: store it with `playhouse rules set NAME FILE`, then write \
                     rules = \"NAME\""
                        .to_owned()
                }),
            }
        }
        profile
    }

    fn read_queue(&self, reader: &mut Reader<'_>) -> Queue {
        let queue = Queue::read(reader);
        reader.check(&["ticket_ttl"], queue.ticket_ttl.is_none_or(|ttl| ttl <= self.max_ticket_ttl), || {
            "must not be longer than matchmaking.max_ticket_ttl".to_owned()
        });
        queue
    }
}

impl ResolvedDefinitions {
    /// Builds the profiles with their assigners.
    pub(crate) fn profiles(
        &self,
        assigners: &BTreeMap<String, Arc<dyn Assigner>>,
        metrics: &Metrics,
    ) -> Vec<Profile> {
        let build = |(name, profile): (&String, &ProfileConfig)| {
            Some(Profile {
                name: name.as_str().into(),
                version: self.profile_versions.get(name).copied().unwrap_or_default(),
                pools: profile.pools(),
                function: match profile.rule_set() {
                    None => Arc::new(Fifo::new(profile.players as usize)),
                    Some(set) => {
                        let (rules, version) = self.rule_sets.get(set)?;
                        let function =
                            RuleFunction::new(name.as_str().into(), rules.clone(), metrics.clone());
                        let function = function.with_max_wait(profile.max_wait);
                        Arc::new(function.with_definition(set, *version))
                    }
                },
                max_wait: profile.max_wait,
                ready_check: profile.ready_check,
                backfill: profile.backfill,
                assigner: assigners.get(&profile.assigner)?.clone(),
            })
        };
        self.profiles.iter().filter_map(build).collect()
    }

    /// Returns a rule set.
    pub(crate) fn rule_set(&self, name: &str) -> Option<&RuleSet> {
        self.rule_sets.get(name).map(|(rules, _)| &**rules)
    }
}

/// Checks that the assigner of a profile exists.
pub(super) fn check_assigner(
    reader: &mut Reader<'_>,
    key: &str,
    profile: &ProfileConfig,
    exists: impl Fn(&str) -> bool,
) {
    reader.check(&[key], exists(&profile.assigner), || {
        format!("there is no [matchmaking.assigners.{}]", profile.assigner)
    });
}

/// Returns whether a claim on the tickets of a match lasts while their players are asked.
pub(super) fn is_ready_check_within(profile: &ProfileConfig, pending_timeout: Duration) -> bool {
    profile.ready_check.is_none_or(|time| time <= pending_timeout)
}

fn no_rule_set(name: &str) -> String {
    format!(
        "there is no rule set {name}: store it with `playhouse rules set {name} FILE`, or name another one"
    )
}

fn read_rule_set(key: &DefinitionKey, text: &str) -> Result<RuleSet, Vec<DefinitionMistake>> {
    check_table_name(&key.name).map_err(|expected| vec![DefinitionMistake::of(key, expected)])?;
    RuleSet::parse(text).map_err(|mistakes| {
        // Positions follow the name without a space, as in the messages of compilers.
        let text = |mistake: &rules::Mistake| format!("{key}:{mistake}");
        mistakes.iter().map(|mistake| DefinitionMistake { key: key.clone(), text: text(mistake) }).collect()
    })
}
