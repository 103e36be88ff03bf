//! Plugins controlled by tests.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use matchmaking::engine::{
    Assigner, Evaluator, Fifo, MatchFunction, PluginError, PluginFuture, Pools, Profile,
};
use matchmaking::model::{Assignment, Filter, Match, MatchId, Pool, Proposal};

type Done<T> = BoxFuture<'static, Result<T, PluginError>>;

type Plugin<Given, Made> = Box<dyn Fn(Given) -> Done<Made> + Send + Sync>;

struct Function(Plugin<Pools, Vec<Proposal>>);
struct Choice(Plugin<Vec<Match>, Vec<MatchId>>);
struct Servers(Plugin<Vec<Match>, Vec<(MatchId, Assignment)>>);

impl MatchFunction for Function {
    fn name(&self) -> &'static str {
        "test"
    }

    fn make_matches<'a>(&'a self, pools: &'a Pools) -> PluginFuture<'a, Vec<Proposal>> {
        (self.0)(pools.clone())
    }
}

impl Evaluator for Choice {
    fn evaluate<'a>(&'a self, matches: &'a [Match]) -> PluginFuture<'a, Vec<MatchId>> {
        (self.0)(matches.to_vec())
    }
}

impl Assigner for Servers {
    fn assign<'a>(&'a self, matches: &'a [Match]) -> PluginFuture<'a, Vec<(MatchId, Assignment)>> {
        (self.0)(matches.to_vec())
    }
}

pub(crate) fn function<F>(make: impl Fn(Pools) -> F + Send + Sync + 'static) -> Arc<dyn MatchFunction>
where
    F: Future<Output = Result<Vec<Proposal>, PluginError>> + Send + 'static,
{
    Arc::new(Function(Box::new(move |pools| make(pools).boxed())))
}

pub(crate) fn evaluator<F>(choose: impl Fn(Vec<Match>) -> F + Send + Sync + 'static) -> Arc<dyn Evaluator>
where
    F: Future<Output = Result<Vec<MatchId>, PluginError>> + Send + 'static,
{
    Arc::new(Choice(Box::new(move |matches| choose(matches).boxed())))
}

pub(crate) fn assigner<F>(assign: impl Fn(Vec<Match>) -> F + Send + Sync + 'static) -> Arc<dyn Assigner>
where
    F: Future<Output = Result<Vec<(MatchId, Assignment)>, PluginError>> + Send + 'static,
{
    Arc::new(Servers(Box::new(move |matches| assign(matches).boxed())))
}

/// Returns a separate server for each match.
pub(crate) fn servers(matches: &[Match]) -> Vec<(MatchId, Assignment)> {
    matches.iter().map(|made| (made.id, Assignment::new(format!("{}.test:1", made.id)))).collect()
}

pub(crate) fn each_its_own() -> Arc<dyn Assigner> {
    assigner(async |matches| Ok(servers(&matches)))
}

pub(crate) fn pool(filters: Vec<Filter>) -> Arc<Pool> {
    Arc::new(Pool { name: "pool".to_owned(), filters })
}

pub(crate) fn tagged(tag: &str) -> Arc<Pool> {
    pool(vec![Filter::Tag(tag.to_owned())])
}

/// Pairs all tickets.
pub(crate) fn duels() -> Profile {
    Profile {
        name: "duels".into(),
        pools: vec![pool(Vec::new())],
        function: Arc::new(Fifo::new(2)),
        assigner: each_its_own(),
        version: 0,
        max_wait: None,
        ready_check: None,
        backfill: false,
    }
}

/// Pairs the tickets with this tag, in a profile of the same name.
pub(crate) fn duels_of(tag: &str) -> Profile {
    Profile { name: tag.into(), pools: vec![tagged(tag)], ..duels() }
}

/// The ways in which a plugin can fail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Error,
    Panic,
    /// Never returns.
    Hang,
    /// Blocks its thread until after the deadline.
    Block,
}

impl Fault {
    pub(crate) const ALL: [Self; 4] = [Self::Error, Self::Panic, Self::Hang, Self::Block];
    pub(crate) const BLOCK: Duration = Duration::from_millis(800);

    pub(crate) async fn happen<T>(self) -> Result<T, PluginError> {
        match self {
            Self::Error => Err("no luck".into()),
            // Without a message on stderr.
            Self::Panic => std::panic::resume_unwind(Box::new("a plugin of the test")),
            Self::Hang => std::future::pending().await,
            Self::Block => {
                std::thread::sleep(Self::BLOCK);
                Err("too late".into())
            }
        }
    }
}
