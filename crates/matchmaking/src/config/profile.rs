//! Settings of profiles and their pools.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::config::{Choice, Reader, Section, check_table_name};
use rules::RuleSet;

use super::definitions::RuleSetText;
use crate::model::{Filter, Pool};

#[derive(Clone, Debug)]
pub(super) struct ProfileConfig {
    pub(super) function: FunctionConfig,
    pub(super) players: u32,
    pub(super) assigner: String,
    /// A ticket that has waited for longer counts as starving.
    pub(super) max_wait: Option<Duration>,
    /// How long the players of a match have to accept it. `None` does not ask them.
    pub(super) ready_check: Option<Duration>,
    /// Whether a match with open places gets a backfill.
    pub(super) backfill: bool,
    pub(super) pools: BTreeMap<String, PoolConfig>,
}

#[derive(Clone, Debug)]
pub(super) struct PoolConfig {
    filters: Vec<Filter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FunctionKind {
    Fifo,
    Rules,
}

/// A match function with its settings.
#[derive(Clone, Debug)]
pub(super) enum FunctionConfig {
    Fifo,
    Rules(RuleSetSource),
}

/// Where the rule set of a profile is.
#[derive(Clone, Debug)]
pub(super) enum RuleSetSource {
    /// The name of a definition.
    Name(String),
    /// The rule set itself.
    Text(String),
    /// The path of a file.
    File(String),
}

impl Choice for FunctionKind {
    const WORDS: &'static [(&'static str, Self)] = &[("fifo", Self::Fifo), ("rules", Self::Rules)];
}

impl ProfileConfig {
    /// Returns the pools. Without any, one pool admits all tickets.
    pub(super) fn pools(&self) -> Vec<Arc<Pool>> {
        if self.pools.is_empty() {
            return vec![Arc::new(Pool { name: "all".to_owned(), filters: Vec::new() })];
        }
        let pool =
            |(name, pool): (&String, &PoolConfig)| Pool { name: name.clone(), filters: pool.filters.clone() };
        self.pools.iter().map(pool).map(Arc::new).collect()
    }
}

impl ProfileConfig {
    /// Returns the name of its rule set, if it has one.
    pub(super) fn rule_set(&self) -> Option<&String> {
        match &self.function {
            FunctionConfig::Rules(RuleSetSource::Name(name)) => Some(name),
            _ => None,
        }
    }

    /// Replaces the rule set in the text of the profile by its name.
    pub(super) fn name_rules_in(&self, text: &str) -> String {
        let Some(name) = self.rule_set() else { return text.to_owned() };
        let line = |line: &str| match line.starts_with("rules = ") {
            true => format!("rules = {name:?}\n"),
            false => format!("{line}\n"),
        };
        text.lines().map(line).collect()
    }
}

impl Section for ProfileConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        let kind = reader.get("function");
        let rules: Option<String> = reader.optional("rules");
        let max_wait: Option<Duration> = reader.optional("max_wait");
        let ready_check: Option<Duration> = reader.optional("ready_check");
        let backfill: bool = reader.get("backfill");
        reader.check(&["backfill", "function"], !backfill || kind == FunctionKind::Rules, || {
            "needs function = \"rules\": other functions make no teams".to_owned()
        });
        let range = Duration::from_secs(1)..=Duration::from_secs(86_400);
        for (key, time) in [("max_wait", max_wait), ("ready_check", ready_check)] {
            let fits = time.is_none_or(|time| range.contains(&time));
            reader.check(&[key], fits, || "must be from 1s to 1d".to_owned());
        }
        Self {
            function: read_function(reader, kind, rules),
            players: reader.get_within("players", 1..=1000),
            assigner: reader.required("assigner"),
            max_wait,
            ready_check,
            backfill,
            pools: reader.tables("pools"),
        }
    }
}

fn read_function(reader: &mut Reader<'_>, kind: FunctionKind, rules: Option<String>) -> FunctionConfig {
    if kind == FunctionKind::Fifo {
        return FunctionConfig::Fifo;
    }
    reader
        .check(&["rules", "function"], rules.is_some(), || "is required if function is \"rules\"".to_owned());
    match rules {
        None => FunctionConfig::Fifo,
        Some(text) if text.contains('\n') => FunctionConfig::Rules(RuleSetSource::Text(text)),
        Some(name) if check_table_name(&name).is_ok() => FunctionConfig::Rules(RuleSetSource::Name(name)),
        Some(path) => FunctionConfig::Rules(RuleSetSource::File(path)),
    }
}

/// Reads the rule set of a profile in the configuration. Returns none if the profile names a definition.
pub(super) fn read_rules(source: &RuleSetSource) -> Result<Option<RuleSetText>, String> {
    let text = match source {
        RuleSetSource::Name(_) => return Ok(None),
        RuleSetSource::Text(text) => text.clone(),
        RuleSetSource::File(path) => {
            let file = std::fs::read_to_string(path);
            file.map_err(|error| format!("cannot read the rule set {path}: {error}"))?
        }
    };
    let rules =
        RuleSet::parse(&text).map_err(|mistakes| format!("the rule set has mistakes:\n{mistakes}"))?;
    Ok(Some(RuleSetText { text, rules: Arc::new(rules) }))
}

impl Section for PoolConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self { filters: reader.get("filters") }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ::config::{Layers, Loaded, load};

    use super::*;

    /// A section with profiles only.
    #[derive(Debug)]
    struct Profiles(BTreeMap<String, ProfileConfig>);

    impl Section for Profiles {
        fn read(reader: &mut Reader<'_>) -> Self {
            Self(reader.tables("profiles"))
        }
    }

    fn ready_check(text: &str) -> Result<Option<Duration>, String> {
        let reference = "[profiles.NAME]\nfunction = \"fifo\"\nplayers = 2\n# rules = \"x\"\n# assigner = \"x\"\n\
            # max_wait = \"60s\"\n# ready_check = \"20s\"\nbackfill = false\n[profiles.NAME.pools.NAME]\nfilters = []\n";
        let text = format!("[profiles.duel]\nassigner = \"fleet\"\n{text}");
        let loaded = load(Layers::new(reference).with_file_text(Path::new("play.toml"), &text));
        let profiles = loaded.map(|Loaded { config: Profiles(profiles), .. }| profiles);
        profiles.map(|profiles| profiles["duel"].ready_check).map_err(|problems| problems.to_string())
    }

    #[test]
    fn players_are_asked_only_if_configured() {
        assert_eq!(ready_check(""), Ok(None));
        assert_eq!(ready_check("ready_check = \"20s\""), Ok(Some(Duration::from_secs(20))));
        for bad in ["500ms", "2d"] {
            let problem = ready_check(&format!("ready_check = {bad:?}")).unwrap_err();
            assert!(problem.contains("profiles.duel.ready_check: must be from 1s to 1d"), "{problem}");
        }
    }
}
