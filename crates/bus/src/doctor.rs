//! Checks whether the server's settings support our guarantees.

use std::time::{Duration, UNIX_EPOCH};

use async_nats::jetstream::stream;
use base::finding::{Finding, version};
use base::{Clock, Timestamp};
use serde::Deserialize;

use crate::memory::MAX_SIZE;
use crate::{Config, Error, Nats};

/// The first NATS version that can write to disk before it acknowledges.
const SYNC_ALWAYS_SINCE: (u32, u32) = (2, 10);

/// The part of `/jsz` that we read.
#[derive(Debug, Deserialize)]
struct JetStreamInfo {
    config: JetStreamConfig,
}

#[derive(Debug, Default, Deserialize)]
struct JetStreamConfig {
    /// Nanoseconds.
    #[serde(default)]
    sync_interval: u64,
    #[serde(default)]
    sync_always: bool,
}

/// Examines the bus and its settings.
pub async fn examine(config: &Config, clock: &Clock) -> Vec<Finding> {
    if config.url.is_embedded() {
        return vec![Finding::good("in process; serves this process only")];
    }
    // Does not open the bus: that would create the stream, and an examination must change nothing.
    let nats = match Nats::connect(config, config.url.servers()).await {
        Ok(nats) => nats,
        Err(Error::NoJetStream) => {
            return vec![Finding::failure(
                "JetStream is not enabled",
                "start nats-server with -js, or enable it for the account",
            )];
        }
        Err(error) => {
            let advice = "start NATS, or correct bus.url; `memory:` needs no server and serves one process";
            return vec![Finding::failure(base::error::chain(&error), advice)];
        }
    };
    let number = nats.client.server_info().version;
    let mut findings = vec![Finding::good(format!("NATS {number} with JetStream"))];
    findings.extend(examine_max_payload(&nats));
    findings.extend(examine_seeds(config, &nats).await);
    findings.extend(examine_stream(&nats).await);
    let can_sync_always = version(&number) >= SYNC_ALWAYS_SINCE;
    if !can_sync_always {
        findings.push(Finding::warning(
            "acknowledges events up to 2 minutes before they are on disk, and this version cannot be configured otherwise",
            "use NATS 2.10 or newer with jetstream { sync_interval: always }; until then a power failure of the server may \
             lose events that were acknowledged",
        ));
    }
    let Some(monitor) = &config.monitor_url else {
        if can_sync_always {
            findings.push(Finding::warning(
                "whether an acknowledged event is on disk cannot be seen by a client",
                "set bus.monitor_url to the server's monitoring address (for example http://127.0.0.1:8222), or make \
                 sure that its configuration has jetstream { sync_interval: always }",
            ));
        }
        return findings;
    };
    match query_monitor(monitor, config.timeout).await {
        Ok((info, now)) => {
            if can_sync_always {
                findings.push(judge_sync(&info.config));
            }
            findings.extend(now.map(|now| Finding::clock(now.distance(clock.now()))));
        }
        Err(error) => findings.push(Finding::warning(
            format!("bus.monitor_url does not answer: {}", base::error::chain(&error)),
            "start the server with a monitoring port (-m 8222), or correct bus.monitor_url",
        )),
    }
    findings
}

/// Returns a warning if the server accepts smaller messages than the bus in process. NATS accepts 1 MiB unless it is configured otherwise.
pub(crate) fn examine_max_payload(nats: &Nats) -> Option<Finding> {
    let max_payload = nats.client.server_info().max_payload;
    (max_payload < MAX_SIZE).then(|| {
        Finding::warning(
            format!("accepts messages of at most {max_payload} bytes: larger events fail, and later ones of their key wait"),
            format!("set max_payload: {MAX_SIZE} in the configuration of every nats-server, reload it, and restart playhouse"),
        )
    })
}

/// Examines each server of `bus.url` if there are several.
async fn examine_seeds(config: &Config, nats: &Nats) -> Vec<Finding> {
    let seeds = config.url.servers();
    if seeds.len() == 1 {
        return Vec::new();
    }
    let cluster = nats.client.server_info().cluster;
    let examinations = seeds.iter().map(async |seed| {
        let name = ::config::redact_url(seed);
        match Nats::connect(config, std::slice::from_ref(seed)).await {
            Ok(found) if found.client.server_info().cluster != cluster => Finding::failure(
                format!("{name} is not in the same cluster as the others"),
                "list only servers of one cluster in bus.url: otherwise events go to different clusters",
            ),
            Ok(_) => Finding::good(format!("{name} answers")),
            Err(error) => Finding::warning(
                format!("{name} does not answer: {}", base::error::chain(&error)),
                "start it, or correct bus.url; until then the other servers carry the load",
            ),
        }
    });
    futures::future::join_all(examinations).await
}

async fn examine_stream(nats: &Nats) -> Vec<Finding> {
    let name = &nats.stream.name;
    let found = match nats.find_stream().await {
        Ok(Some(found)) => found,
        Ok(None) => {
            return vec![Finding::good(format!(
                "the stream {name} does not exist yet; the first start creates it"
            ))];
        }
        Err(error) => return vec![cannot_use(&error)],
    };
    if let Err(error) = nats.stream.check(&found.config) {
        return vec![cannot_use(&error)];
    }
    let differences = nats.stream.differences(&found.config).into_iter().map(|difference| {
        let advice =
            format!("if that is not intended, run `nats stream edit {name}`, or change the bus.* settings");
        Finding::warning(format!("the stream {name} differs from the settings: {difference}"), advice)
    });
    let events = base::counted(found.state.messages, "event");
    std::iter::once(Finding::good(format!("the stream {name} has {events}")))
        .chain(differences)
        .chain(examine_replicas(nats, &found))
        .collect()
}

/// Checks whether the stream survives the loss of a server of a cluster.
fn examine_replicas(nats: &Nats, found: &stream::Info) -> Vec<Finding> {
    let name = &nats.stream.name;
    if nats.client.server_info().cluster.is_some() && found.config.num_replicas == 1 {
        return vec![Finding::warning(
            format!("the stream {name} is on one server of the cluster: without it no event is published"),
            format!("`nats stream edit {name} --replicas 3`, and set bus.replicas = 3"),
        )];
    }
    let replicas = found.cluster.iter().flat_map(|cluster| &cluster.replicas);
    let unhealthy = replicas.filter(|replica| replica.offline || !replica.current).map(|replica| {
        let what = if replica.offline { "is offline" } else { "has not caught up" };
        let what = format!("the replica of the stream {name} on {} {what}", replica.name);
        Finding::warning(what, "repair that server: the loss of one more may stop the stream")
    });
    unhealthy.collect()
}

fn cannot_use(error: &Error) -> Finding {
    Finding::failure(base::error::chain(error), "the bus stores no events without its stream")
}

/// Returns JetStream's settings, and the server's time to the second.
async fn query_monitor(
    monitor: &url::Url,
    timeout: Duration,
) -> Result<(JetStreamInfo, Option<Timestamp>), reqwest::Error> {
    let address = format!("{}/jsz?config=true", monitor.as_str().trim_end_matches('/'));
    let response = reqwest::Client::new().get(address).timeout(timeout).send().await?.error_for_status()?;
    let date = response.headers().get("date").and_then(|date| date.to_str().ok());
    let now = date.and_then(|date| httpdate::parse_http_date(date).ok()).and_then(|now| {
        let millis = now.duration_since(UNIX_EPOCH).ok()?.as_millis();
        Some(Timestamp::from_millis(millis.try_into().ok()?))
    });
    Ok((response.json().await?, now))
}

fn judge_sync(config: &JetStreamConfig) -> Finding {
    let interval = Duration::from_nanos(config.sync_interval);
    Finding::check(
        config.sync_always,
        "writes to disk before it acknowledges (sync_interval: always)",
        || {
            Finding::warning(
                format!("acknowledges events before they are on disk (sync_interval: {interval:?})"),
                "set jetstream { sync_interval: always } on a single server; in a cluster of three, put the servers on separate \
             power",
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use base::finding::Verdict;

    use super::*;

    #[test]
    fn only_sync_always_is_good() {
        // From NATS 2.12, shortened.
        let parse = |text: &str| serde_json::from_str::<JetStreamInfo>(text).unwrap().config;
        let always = parse(
            r#"{"server_id":"N","config":{"store_dir":"/d","sync_interval":120000000000,"sync_always":true}}"#,
        );
        let default = parse(r#"{"server_id":"N","config":{"store_dir":"/d","sync_interval":120000000000}}"#);
        assert_eq!(judge_sync(&always).verdict, Verdict::Good);
        let found = judge_sync(&default);
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(found.what.contains("sync_interval: 120s"), "{found:?}");
    }
}
