//! Settings of profiles and their pools.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::config::{Choice, Reader, Section};

use crate::model::{Filter, Pool};

#[derive(Clone, Debug)]
pub(super) struct ProfileConfig {
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
}

impl Choice for FunctionKind {
    const WORDS: &'static [(&'static str, Self)] = &[("fifo", Self::Fifo)];
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
        let FunctionKind::Fifo = reader.get("function");
        Self {
            players: reader.get_within("players", 1..=1000),
            assigner: reader.required("assigner"),
            pools: reader.tables("pools"),
        }
    }
}

impl Section for PoolConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        Self { filters: reader.get("filters") }
    }
}
