//! A cluster of three servers, some of them down.

use base::Clock;
use base::finding::Verdict;
use testkit::{NatsCluster, eventually, need};

use super::*;

/// Settings for a stream on all three servers, with these seeds.
fn replicated(url: &str) -> Config {
    Config { replicas: 3, timeout: Duration::from_secs(2), ..config(url) }
}

async fn publish(bus: &Bus, n: usize) -> Result<(), String> {
    let result = bus.publish(&[event(n)]).await.remove(0);
    result.map_err(|error| base::error::chain(&error))
}

#[tokio::test(flavor = "multi_thread")]
async fn first_seed_down_does_not_stop_the_start() {
    let mut cluster = need!(NatsCluster::start().await);
    let config = replicated(&cluster.url());
    // Creates the stream, for which all servers must be up.
    Bus::open(&config).await.unwrap();
    cluster.node(0).kill().await.unwrap();
    eventually("the others have a leader", PATIENCE, async || cluster.leader_of(&config.stream).await).await;
    let bus =
        eventually("the bus opens", PATIENCE, async || Bus::open(&config).await.map_err(|e| e.to_string()))
            .await;
    publish(&bus, 1).await.unwrap();

    let findings = bus::examine(&config, &Clock::system()).await;
    let [one, two, three] = [0, 1, 2].map(|n| format!("nats://{}", cluster.node(n).addr()));
    let one = one.replace("//", "//game:***@");
    let found = |verdict, what: &str| {
        let found =
            findings.iter().any(|finding| finding.verdict == verdict && finding.what.starts_with(what));
        assert!(found, "{what}: {findings:#?}");
    };
    found(Verdict::Warning, &format!("{one} does not answer: NATS cannot be reached"));
    found(Verdict::Good, &format!("{two} answers"));
    found(Verdict::Good, &format!("{three} answers"));
    found(Verdict::Warning, "the replica of the stream PLAYHOUSE on ");

    let wrong_password = replicated(&cluster.url().replace("s3cret", "wrong"));
    assert!(matches!(Bus::open(&wrong_password).await, Err(Error::Refused(_))));
}

/// The client has discovered the other servers through the first.
#[tokio::test(flavor = "multi_thread")]
async fn bus_fails_over_when_its_server_dies_or_falls_silent() {
    let mut cluster = need!(NatsCluster::start().await);
    let config = replicated(&cluster.url_of(0));
    let bus = Bus::open(&config).await.unwrap();
    publish(&bus, 0).await.unwrap();
    cluster.node(0).kill().await.unwrap();
    eventually("another server stores events", PATIENCE, async || publish(&bus, 1).await).await;
    cluster.node(0).start_again().await.unwrap();
    cluster.wait_until_healthy().await;

    // Connected to this server only, which then keeps the connection but is silent.
    let config = replicated(&cluster.url_of(1));
    let bus = Bus::open(&config).await.unwrap();
    cluster.node(1).pause().await.unwrap();
    eventually("another server stores events", PATIENCE, async || publish(&bus, 2).await).await;
    cluster.node(1).resume().unwrap();
}
