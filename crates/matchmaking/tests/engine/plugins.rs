//! Plugins that do what a test tells them to.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use matchmaking::engine::{Answer, Assigner, Evaluator, Fifo, MatchFunction, PluginError, Pools, Profile};
use matchmaking::model::{Assignment, Filter, Match, MatchId, Pool, Proposal};

type Done<T> = BoxFuture<'static, Result<T, PluginError>>;

struct Function(Box<dyn Fn(Pools) -> Done<Vec<Proposal>> + Send + Sync>);
struct Choice(Box<dyn Fn(Vec<Match>) -> Done<Vec<MatchId>> + Send + Sync>);
struct Servers(Box<dyn Fn(Vec<Match>) -> Done<Vec<(MatchId, Assignment)>> + Send + Sync>);

impl MatchFunction for Function {
    fn name(&self) -> &'static str {
        "test"
    }

    fn make_matches<'a>(&'a self, pools: &'a Pools) -> Answer<'a, Vec<Proposal>> {
        (self.0)(pools.clone())
    }
}

impl Evaluator for Choice {
    fn evaluate<'a>(&'a self, matches: &'a [Match]) -> Answer<'a, Vec<MatchId>> {
        (self.0)(matches.to_vec())
    }
}

impl Assigner for Servers {
    fn assign<'a>(&'a self, matches: &'a [Match]) -> Answer<'a, Vec<(MatchId, Assignment)>> {
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

/// A server of its own for each match.
pub(crate) fn servers(matches: &[Match]) -> Vec<(MatchId, Assignment)> {
    matches.iter().map(|made| (made.id, Assignment::to(format!("{}.test:1", made.id)))).collect()
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

/// Pairs of everybody.
pub(crate) fn duels() -> Profile {
    Profile {
        name: "duels".into(),
        pools: vec![pool(Vec::new())],
        function: Arc::new(Fifo::new(2)),
        assigner: each_its_own(),
    }
}

/// Pairs of those with this tag; the profile goes by its name.
pub(crate) fn duels_of(tag: &str) -> Profile {
    Profile { name: tag.into(), pools: vec![tagged(tag)], ..duels() }
}

/// The ways in which a plugin can fail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Error,
    Panic,
    /// Never answers.
    Hang,
    /// Never gives its thread back, or only after the deadline.
    Block,
}

impl Fault {
    pub(crate) const ALL: [Self; 4] = [Self::Error, Self::Panic, Self::Hang, Self::Block];
    pub(crate) const BLOCK: Duration = Duration::from_millis(800);

    pub(crate) async fn happen<T>(self) -> Result<T, PluginError> {
        match self {
            Self::Error => Err("no luck".into()),
            Self::Panic => panic!("a plugin of the test"),
            Self::Hang => std::future::pending().await,
            Self::Block => {
                std::thread::sleep(Self::BLOCK);
                Err("too late".into())
            }
        }
    }
}
