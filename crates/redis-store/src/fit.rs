//! Checks whether a server is suitable: it evicts no keys, is not a cluster, and runs all scripts.

use std::collections::{BTreeSet, HashMap};

use base::finding::{Finding, Verdict};
use base::id::Uuid;
use redis::{RedisError, Value};

use crate::{Error, Key, Redis, Script};

/// The start of the names of scratch keys.
const SCRATCH: &str = "playhouse-trial:";

/// A trial call of a script on scratch keys.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    pub script: &'static Script,
    /// The service and the file: `matchmaking/create.lua`.
    pub name: &'static str,
    /// The names of scratch keys, passed as `KEYS`. The trials of a service share them, so one trial can use what another has written.
    /// An empty name is the stem of all of them.
    pub keys: &'static [&'static str],
    pub args: &'static [&'static str],
}

impl Redis {
    /// Fails with [`Error::Unfit`] on a server that evicts keys, is a cluster, or rejects one of the scripts.
    pub async fn require_fit(&self, trials: &[Trial]) -> Result<(), Error> {
        match self.info().await {
            Ok(info) => {
                let failure = check_settings(&parse(&info))
                    .into_iter()
                    .find(|finding| finding.verdict == Verdict::Failure);
                if let Some(Finding { what, advice, .. }) = failure {
                    return Err(Error::Unfit(format!("it {what}; {}", advice.unwrap_or_default())));
                }
            }
            Err(Error::Refused(error)) => {
                tracing::warn!(%error, "cannot read the settings of Redis; evictions and cluster mode are not checked");
            }
            Err(error) => return Err(error),
        }
        match self.try_scripts(trials).await? {
            None => Ok(()),
            Some(RejectedScript { name, message }) => {
                Err(Error::Unfit(format!("it rejects the script {name}: {message}")))
            }
        }
    }

    pub(crate) async fn info(&self) -> Result<String, Error> {
        Ok(redis::cmd("INFO").query_async(&mut self.connection.clone()).await?)
    }

    /// Runs every script once on scratch keys, which are removed afterwards. Returns the first script that the server rejects. Fails if
    /// the server is unreachable.
    pub(crate) async fn try_scripts(&self, trials: &[Trial]) -> Result<Option<RejectedScript>, Error> {
        let prefix = format!("{SCRATCH}{}:", Uuid::now_v7());
        // With hash tags, all scratch keys are in one slot.
        let space = self.key_space("trial", &prefix);
        let mut used = BTreeSet::new();
        let mut rejected = None;
        for Trial { script, name, keys, args } in trials {
            // Scratch keys of different services are separate.
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
                let message = server_message(&error);
                match Error::from(error) {
                    unreachable @ Error::Unreachable(_) => return Err(unreachable),
                    _ => rejected = Some(RejectedScript { name, message }),
                }
                break;
            }
        }
        if !used.is_empty() {
            let () = redis::cmd("DEL").arg(used).query_async(&mut self.connection.clone()).await.or_else(
                |error| {
                    // A user without the right to run scripts may also lack the right to delete. Then nothing was written.
                    if rejected.is_some() { Ok(()) } else { Err(error) }
                },
            )?;
        }
        Ok(rejected)
    }
}

/// A script that a server rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RejectedScript {
    pub(crate) name: &'static str,
    /// The server's error message.
    pub(crate) message: String,
}

fn server_message(error: &RedisError) -> String {
    [error.code(), error.detail()].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Parses the reply to `INFO`.
pub(crate) fn parse(info: &str) -> HashMap<&str, &str> {
    info.lines().filter_map(|line| line.trim_end().split_once(':')).collect()
}

/// Checks the settings that make a server lose or reject keys. Each finding reads as the rest of a sentence that starts with "it".
pub(crate) fn check_settings(info: &HashMap<&str, &str>) -> Vec<Finding> {
    let get = |name| info.get(name).copied().unwrap_or_default();
    let policy = get("maxmemory_policy");
    let eviction = match (get("maxmemory"), policy) {
        (_, "noeviction") => Finding::good("evicts no keys"),
        ("" | "0", "") => Finding::warning(
            "does not report whether it evicts keys (no maxmemory_policy in INFO)",
            "make sure that it evicts no keys: an evicted key is a lost ticket or session",
        ),
        ("0", _) => Finding::warning(
            format!("would evict keys if maxmemory were set (maxmemory-policy {policy})"),
            "set maxmemory-policy noeviction: an evicted key is a lost ticket or session",
        ),
        // Sessions and tickets expire, so policies that evict only expiring keys lose them too.
        _ => Finding::failure(
            format!("evicts keys when memory is short (maxmemory-policy {policy})"),
            "set maxmemory-policy noeviction: an evicted key is a lost ticket or session",
        ),
    };
    let cluster = Finding::check(get("cluster_enabled") != "1", "is not a cluster", || {
        Finding::failure(
            "is a Redis Cluster (cluster_enabled:1), which is not supported",
            "use a server with `cluster-enabled no`; use Sentinel or a managed primary for failover",
        )
    });
    vec![eviction, cluster]
}
