//! Whether a server that answers like Redis does what services rely on.

use std::collections::{BTreeSet, HashMap};

use base::finding::{Finding, Verdict};
use base::id::Uuid;
use redis::{RedisError, Value};

use crate::{Error, Key, Redis, Script};

/// Begins the names of scratch keys.
const SCRATCH: &str = "playhouse-trial:";

/// A call of a script on scratch keys, which shows whether a server runs it.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    pub script: &'static Script,
    /// The service and the file: `matchmaking/create.lua`.
    pub name: &'static str,
    /// The names of scratch keys, as `KEYS`. The trials of a service share them, so one can work on what another has written.
    /// An empty name is the stem of all of them.
    pub keys: &'static [&'static str],
    pub args: &'static [&'static str],
}

impl Redis {
    /// Fails with [`Error::Unfit`] on a server that loses keys, is a cluster, or does not run one of the scripts.
    pub async fn require_fit(&self, trials: &[Trial]) -> Result<(), Error> {
        match self.info().await {
            Ok(info) => {
                let refused =
                    judge(&parse(&info)).into_iter().find(|finding| finding.verdict == Verdict::Failure);
                if let Some(Finding { what, advice, .. }) = refused {
                    return Err(Error::Unfit(format!("it {what}; {}", advice.unwrap_or_default())));
                }
            }
            Err(Error::Refused(error)) => {
                tracing::warn!(%error, "the settings of Redis cannot be seen; evictions and cluster mode are not checked");
            }
            Err(error) => return Err(error),
        }
        match self.try_scripts(trials).await? {
            None => Ok(()),
            Some(RefusedScript { name, said }) => {
                Err(Error::Unfit(format!("it does not run the script {name}: {said}")))
            }
        }
    }

    pub(crate) async fn info(&self) -> Result<String, Error> {
        Ok(redis::cmd("INFO").query_async(&mut self.connection.clone()).await?)
    }

    /// Runs every script once on scratch keys, which are removed afterwards. Returns the first that the server does not run. Fails if
    /// the server is away.
    pub(crate) async fn try_scripts(&self, trials: &[Trial]) -> Result<Option<RefusedScript>, Error> {
        let prefix = format!("{SCRATCH}{}:", Uuid::now_v7());
        // Behind a hash tag where there are some: all are in one slot.
        let space = self.key_space("trial", &prefix);
        let mut used = BTreeSet::new();
        let mut refused = None;
        for Trial { script, name, keys, args } in trials {
            // Services do not share names with each other.
            let service = name.split('/').next().unwrap_or_default();
            let key = |key: &&str| match *key {
                "" => space.stem(&format!("{service}:")),
                key => space.key(&format!("{service}:{key}")),
            };
            let keys: Vec<Key> = keys.iter().map(key).collect();
            used.extend(keys.iter().map(ToString::to_string));
            let mut call = script.call(&keys);
            call.arg(*args);
            if let Err(error) = call.run::<Value>(self.connection.clone()).await {
                let said = words(&error);
                match Error::from(error) {
                    away @ Error::Unreachable(_) => return Err(away),
                    _ => refused = Some(RefusedScript { name, said }),
                }
                break;
            }
        }
        if !used.is_empty() {
            let () = redis::cmd("DEL").arg(used).query_async(&mut self.connection.clone()).await.or_else(
                |error| {
                    // Who may run no script may perhaps not delete either; nothing was written then.
                    if refused.is_some() { Ok(()) } else { Err(error) }
                },
            )?;
        }
        Ok(refused)
    }
}

/// A script that a server does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedScript {
    pub(crate) name: &'static str,
    /// The server's words.
    pub(crate) said: String,
}

fn words(error: &RedisError) -> String {
    [error.code(), error.detail()].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Reads the answer to `INFO`.
pub(crate) fn parse(info: &str) -> HashMap<&str, &str> {
    info.lines().filter_map(|line| line.trim_end().split_once(':')).collect()
}

/// Judges what makes a server lose keys or refuse ours. Each finding can be read behind "it".
pub(crate) fn judge(info: &HashMap<&str, &str>) -> Vec<Finding> {
    let get = |name| info.get(name).copied().unwrap_or_default();
    let policy = get("maxmemory_policy");
    let eviction = match (get("maxmemory"), policy) {
        (_, "noeviction") => Finding::good("evicts nothing"),
        ("" | "0", "") => Finding::warning(
            "does not say whether it evicts keys (no maxmemory_policy in INFO)",
            "see to it that it evicts nothing: an evicted key is a lost ticket or session",
        ),
        ("0", _) => Finding::warning(
            format!("would evict keys if maxmemory were set (maxmemory-policy {policy})"),
            "set maxmemory-policy noeviction: an evicted key is a lost ticket or session",
        ),
        // Sessions and tickets expire, so the policies that evict only what expires lose them too.
        _ => Finding::failure(
            format!("evicts keys when memory is short (maxmemory-policy {policy})"),
            "set maxmemory-policy noeviction: an evicted key is a lost ticket or session",
        ),
    };
    let cluster = Finding::when(get("cluster_enabled") != "1", "is no cluster", || {
        Finding::failure(
            "is a Redis Cluster (cluster_enabled:1), which this version does not speak",
            "use a server with `cluster-enabled no`; a replica with Sentinel or a managed primary gives fail-over",
        )
    });
    vec![eviction, cluster]
}
