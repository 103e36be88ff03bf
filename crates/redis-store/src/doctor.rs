//! Whether the server's settings keep what we promise.

use std::collections::HashMap;

use base::finding::{Finding, version};
use base::{Clock, Timestamp};

use crate::{Config, Error, RedisStore};

/// The oldest Redis whose commands and scripts are enough.
const OLDEST: (u32, u32) = (6, 2);

/// Looks at the store and its settings.
pub async fn examine(config: &Config, clock: &Clock) -> Vec<Finding> {
    match look(config, clock).await {
        Ok(findings) => findings,
        Err(error) => {
            let advice = "start Redis, or correct hot.url; `memory:` needs no server and serves one process";
            vec![Finding::failure(base::error::chain(&error), advice)]
        }
    }
}

async fn look(config: &Config, clock: &Clock) -> Result<Vec<Finding>, Error> {
    let RedisStore::Redis(redis) = RedisStore::open(config).await? else {
        return Ok(vec![Finding::good("in process; serves this process only")]);
    };
    let mut connection = redis.connection;
    let text: String = redis::cmd("INFO").query_async(&mut connection).await?;
    let info: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once(':')).collect();
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await?;
    let now = Timestamp::from_millis(seconds * 1000 + micros / 1000);
    let mut findings = judge(&info);
    findings.push(Finding::clock(now.distance(clock.now())));
    Ok(findings)
}

fn judge(info: &HashMap<&str, &str>) -> Vec<Finding> {
    let get = |name| info.get(name).copied().unwrap_or_default();
    let (program, number) = match get("valkey_version") {
        "" => ("Redis", get("redis_version")),
        valkey => ("Valkey", valkey),
    };
    let evicts = get("maxmemory") != "0" && get("maxmemory_policy") != "noeviction";
    let keeps = get("aof_enabled") == "1";
    vec![
        Finding::when(
            program == "Valkey" || version(number) >= OLDEST,
            format!("{program} {number}"),
            || Finding::failure(format!("Redis {number} is too old"), "use Redis 6.2 or newer, or Valkey"),
        ),
        Finding::when(get("role") == "master", "is a primary", || {
            Finding::failure("is a replica: nothing can be written", "point hot.url at the primary")
        }),
        Finding::when(!evicts, "evicts nothing", || {
            Finding::failure(
                format!("evicts keys when memory is short (maxmemory-policy {})", get("maxmemory_policy")),
                "set maxmemory-policy noeviction: an evicted key is a lost ticket or session",
            )
        }),
        Finding::when(keeps, "keeps its data over a restart (appendonly)", || {
            Finding::warning(
                "forgets recent data when it restarts (appendonly no)",
                "set appendonly yes, or accept that waiting players ask again after a restart of Redis",
            )
        }),
    ]
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
        judge(&info).into_iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn each_dangerous_setting_is_found() {
        assert_eq!(verdicts(&[]), [Good; 4]);
        assert_eq!(verdicts(&[("redis_version", "5.0.1")]), [Failure, Good, Good, Good]);
        assert_eq!(verdicts(&[("role", "slave")]), [Good, Failure, Good, Good]);
        assert_eq!(
            verdicts(&[("maxmemory", "1000"), ("maxmemory_policy", "allkeys-lru")]),
            [Good, Good, Failure, Good]
        );
        assert_eq!(verdicts(&[("aof_enabled", "0")]), [Good, Good, Good, Warning]);
    }
}
