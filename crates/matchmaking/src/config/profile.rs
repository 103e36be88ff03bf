//! Settings of profiles and their pools.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::config::{Choice, Reader, Section};
use rules::RuleSet;

use crate::model::{Filter, Pool};

#[derive(Clone, Debug)]
pub(super) struct ProfileConfig {
    pub(super) function: FunctionConfig,
    pub(super) players: u32,
    pub(super) assigner: String,
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
    Rules(Arc<RuleSet>),
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

impl Section for ProfileConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        let kind = reader.get("function");
        let rules: Option<String> = reader.optional("rules");
        Self {
            function: read_function(reader, kind, rules),
            players: reader.get_within("players", 1..=1000),
            assigner: reader.required("assigner"),
            pools: reader.tables("pools"),
        }
    }
}

/// Reads the rule set of a profile: from a file, or from the setting itself if that has several lines.
fn read_function(reader: &mut Reader<'_>, kind: FunctionKind, rules: Option<String>) -> FunctionConfig {
    if kind == FunctionKind::Fifo {
        return FunctionConfig::Fifo;
    }
    let parsed = rules.ok_or_else(|| "is required if function is \"rules\"".to_owned()).and_then(|rules| {
        let text = if rules.contains('\n') {
            rules
        } else {
            let file = std::fs::read_to_string(&rules);
            file.map_err(|error| format!("cannot read the rule set {rules}: {error}"))?
        };
        RuleSet::parse(&text).map_err(|mistakes| format!("the rule set has mistakes:\n{mistakes}"))
    });
    match parsed {
        Ok(rules) => FunctionConfig::Rules(Arc::new(rules)),
        Err(cause) => {
            reader.check(&["rules", "function"], false, || cause);
            FunctionConfig::Fifo
        }
    }
}

impl Section for PoolConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self { filters: reader.get("filters") }
    }
}
