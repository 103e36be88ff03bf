//! Checks the server's settings for `playhouse doctor`.

use std::collections::HashMap;

use base::finding::{Finding, version};
use base::{Clock, Timestamp};

use crate::fit::{self, RejectedScript};
use crate::{Config, Error, Redis, RedisStore, Trial};

/// The oldest Redis version that has all commands we use.
const MIN_VERSION: (u32, u32) = (6, 2);

/// Checks the store and its settings, and runs every script once on scratch keys.
pub async fn examine(config: &Config, trials: &[Trial], clock: &Clock) -> Vec<Finding> {
    match check(config, trials, clock).await {
        Ok(findings) => findings,
        Err(error) => {
            let advice =
                "start Redis, or correct redis.url; `memory:` needs no server and serves one process";
            vec![Finding::failure(base::error::chain(&error), advice)]
        }
    }
}

async fn check(config: &Config, trials: &[Trial], clock: &Clock) -> Result<Vec<Finding>, Error> {
    let RedisStore::Redis(redis) = RedisStore::open(config).await? else {
        return Ok(vec![Finding::good("in process; serves this process only")]);
    };
    let text = redis.info().await?;
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(&mut redis.connection.clone()).await?;
    let now = Timestamp::from_millis(seconds * 1000 + micros / 1000);
    let info = fit::parse(&text);
    let mut findings = check_settings(&info);
    // A cluster rejects scripts, and its finding already says why.
    if info.get("cluster_enabled") != Some(&"1") {
        findings.push(check_scripts(&redis, trials).await?);
    }
    findings.push(Finding::clock(now.distance(clock.now())));
    Ok(findings)
}

async fn check_scripts(redis: &Redis, trials: &[Trial]) -> Result<Finding, Error> {
    Ok(match redis.try_scripts(trials).await? {
        None => Finding::good(format!("runs all {} scripts", trials.len())),
        Some(RejectedScript { name, message }) => Finding::failure(
            format!("rejects the script {name}: {message}"),
            "allow the user of redis.url to run scripts and their commands on any key; or use Redis 6.2 or newer, or Valkey",
        ),
    })
}

fn check_settings(info: &HashMap<&str, &str>) -> Vec<Finding> {
    let get = |name| info.get(name).copied().unwrap_or_default();
    let (program, number) = match get("valkey_version") {
        "" => ("Redis", get("redis_version")),
        valkey => ("Valkey", valkey),
    };
    let is_durable = get("aof_enabled") == "1";
    let mut findings = vec![
        Finding::check(
            program == "Valkey" || version(number) >= MIN_VERSION,
            format!("{program} {number}"),
            || Finding::failure(format!("Redis {number} is too old"), "use Redis 6.2 or newer, or Valkey"),
        ),
        Finding::check(get("role") == "master", "is a primary", || {
            Finding::failure("is a replica: nothing can be written", "point redis.url at the primary")
        }),
    ];
    findings.extend(fit::check_settings(info));
    findings.push(Finding::check(is_durable, "keeps its data across a restart (appendonly)", || {
        Finding::warning(
            "loses recent data when it restarts (appendonly no)",
            "set appendonly yes, or accept that waiting players must queue again after a restart of Redis",
        )
    }));
    findings
}

#[cfg(test)]
mod tests {
    use base::finding::Verdict::{self, Failure, Good, Warning};

    use super::*;

    fn verdicts(changed: &[(&'static str, &'static str)]) -> Vec<Verdict> {
        let mut info = HashMap::from([
            ("redis_version", "7.0.15"),
            ("role", "master"),
            ("maxmemory", "0"),
            ("maxmemory_policy", "noeviction"),
            ("aof_enabled", "1"),
        ]);
        info.extend(changed.iter().copied());
        check_settings(&info).into_iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn each_dangerous_setting_is_found() {
        assert_eq!(verdicts(&[]), [Good; 5]);
        assert_eq!(verdicts(&[("redis_version", "5.0.1")]), [Failure, Good, Good, Good, Good]);
        assert_eq!(verdicts(&[("role", "slave")]), [Good, Failure, Good, Good, Good]);
        for policy in ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"] {
            let evicts = [("maxmemory", "1000"), ("maxmemory_policy", policy)];
            assert_eq!(verdicts(&evicts), [Good, Good, Failure, Good, Good], "{policy}");
            let unlimited = [("maxmemory_policy", policy)];
            assert_eq!(verdicts(&unlimited), [Good, Good, Warning, Good, Good], "{policy}");
        }
        assert_eq!(verdicts(&[("maxmemory", "1000")]), [Good; 5]);
        assert_eq!(verdicts(&[("maxmemory_policy", "")]), [Good, Good, Warning, Good, Good]);
        assert_eq!(verdicts(&[("cluster_enabled", "1")]), [Good, Good, Good, Failure, Good]);
        assert_eq!(verdicts(&[("aof_enabled", "0")]), [Good, Good, Good, Good, Warning]);
    }
}
