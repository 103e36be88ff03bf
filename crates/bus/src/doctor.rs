//! Whether the server's settings keep what we promise.

use std::time::{Duration, UNIX_EPOCH};

use async_nats::jetstream::stream;
use base::finding::{Finding, version};
use base::{Clock, Timestamp};
use serde::Deserialize;

use crate::{Config, Error, Nats};

/// The first NATS that can be told to write before it acknowledges.
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

/// Looks at the bus and its settings.
pub async fn examine(config: &Config, clock: &Clock) -> Vec<Finding> {
    if config.url.is_embedded() {
        return vec![Finding::good("in process; serves this process only")];
    }
    // Not by opening the bus: that makes the stream, and looking changes nothing.
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
    findings.extend(examine_seeds(config, &nats).await);
    findings.extend(examine_stream(&nats).await);
    let can_write_first = version(&number) >= SYNC_ALWAYS_SINCE;
    if !can_write_first {
        findings.push(Finding::warning(
            "acknowledges events up to 2 minutes before they are on disk, and this version cannot be told otherwise",
            "use NATS 2.10 or newer with jetstream { sync_interval: always }; until then a power failure of the server may \
             lose events that were acknowledged",
        ));
    }
    let Some(monitor) = &config.monitor_url else {
        if can_write_first {
            findings.push(Finding::warning(
                "whether an acknowledged event is on disk cannot be seen by a client",
                "set bus.monitor_url to the server's monitoring address (for example http://127.0.0.1:8222), or see to it \
                 that its configuration has jetstream { sync_interval: always }",
            ));
        }
        return findings;
    };
    match ask_monitor(monitor, config.timeout).await {
        Ok((info, now)) => {
            if can_write_first {
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

/// Looks at each server of `bus.url`, where there are several.
async fn examine_seeds(config: &Config, nats: &Nats) -> Vec<Finding> {
    let seeds = config.url.servers();
    if seeds.len() == 1 {
        return Vec::new();
    }
    let cluster = nats.client.server_info().cluster;
    let looks = seeds.iter().map(async |seed| {
        let name = ::config::redacted(seed);
        match Nats::connect(config, std::slice::from_ref(seed)).await {
            Ok(found) if found.client.server_info().cluster != cluster => Finding::failure(
                format!("{name} is not in the same cluster as the others"),
                "every server in bus.url has to be of one cluster: events would go now here, now there",
            ),
            Ok(_) => Finding::good(format!("{name} answers")),
            Err(error) => Finding::warning(
                format!("{name} does not answer: {}", base::error::chain(&error)),
                "start it, or correct bus.url; until then the other servers carry the load",
            ),
        }
    });
    futures::future::join_all(looks).await
}

async fn examine_stream(nats: &Nats) -> Vec<Finding> {
    let name = &nats.stream.name;
    let found = match nats.find_stream().await {
        Ok(Some(found)) => found,
        Ok(None) => {
            return vec![Finding::good(format!(
                "the stream {name} does not exist yet; the first start makes it"
            ))];
        }
        Err(error) => return vec![cannot_use(&error)],
    };
    if let Err(error) = nats.stream.check(&found.config) {
        return vec![cannot_use(&error)];
    }
    let differences = nats.stream.differences(&found.config).into_iter().map(|difference| {
        let advice = format!("if that is not meant: `nats stream edit {name}`, or change bus.* to it");
        Finding::warning(format!("the stream {name} has limits of its own: {difference}"), advice)
    });
    let events = found.state.messages;
    std::iter::once(Finding::good(format!("the stream {name} has {events} events")))
        .chain(differences)
        .chain(examine_replicas(nats, &found))
        .collect()
}

/// Whether the stream survives the loss of a server, where there are several.
fn examine_replicas(nats: &Nats, found: &stream::Info) -> Vec<Finding> {
    let name = &nats.stream.name;
    if nats.client.server_info().cluster.is_some() && found.config.num_replicas == 1 {
        return vec![Finding::warning(
            format!("the stream {name} is on one server of the cluster: without it no event is published"),
            format!("`nats stream edit {name} --replicas 3`, and set bus.replicas = 3"),
        )];
    }
    let replicas = found.cluster.iter().flat_map(|cluster| &cluster.replicas);
    let away = replicas.filter(|replica| replica.offline || !replica.current).map(|replica| {
        let what = if replica.offline { "is away" } else { "has not caught up" };
        let what = format!("the replica of the stream {name} on {} {what}", replica.name);
        Finding::warning(what, "see to that server: the loss of one more may stop the stream")
    });
    away.collect()
}

fn cannot_use(error: &Error) -> Finding {
    Finding::failure(base::error::chain(error), "without its stream the bus takes no events")
}

/// JetStream's settings, and the server's time to the second.
async fn ask_monitor(
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
    Finding::when(config.sync_always, "writes to disk before it acknowledges (sync_interval: always)", || {
        Finding::warning(
            format!("acknowledges events before they are on disk (sync_interval: {interval:?})"),
            "set jetstream { sync_interval: always } on a single server; in a cluster of three, put the servers on separate \
             power",
        )
    })
}

#[cfg(test)]
mod tests {
    use base::finding::Verdict;

    use super::*;

    #[test]
    fn only_always_is_good() {
        // As NATS 2.12 writes it, shortened.
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
