//! A cluster of three servers, some of which are away.

use base::Clock;
use base::finding::Verdict;
use testkit::{NatsCluster, eventually, need};

use super::*;

/// Settings for a stream on all three, found by these seeds.
fn replicated(url: &str) -> Config {
    Config { replicas: 3, timeout: Duration::from_secs(2), ..config(url) }
}

async fn published(bus: &Bus, n: usize) -> Result<(), String> {
    let result = bus.publish(&[event(n)]).await.remove(0);
    result.map_err(|error| base::error::chain(&error))
}

#[tokio::test(flavor = "multi_thread")]
async fn first_seed_down_does_not_stop_the_start() {
    let mut cluster = need!(NatsCluster::start().await);
    let config = replicated(&cluster.url());
    // Makes the stream, for which all servers have to be there.
    Bus::open(&config).await.unwrap();
    cluster.node(0).kill().await.unwrap();
    eventually("the others have a leader", PATIENCE, async || cluster.leader_of(&config.stream).await).await;
    let bus =
        eventually("the bus opens", PATIENCE, async || Bus::open(&config).await.map_err(|e| e.to_string()))
            .await;
    published(&bus, 1).await.unwrap();

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

    let all_wrong = replicated(&cluster.url().replace("s3cret", "wrong"));
    assert!(matches!(Bus::open(&all_wrong).await, Err(Error::Refused(_))));
}

/// Of the other servers it has learned from the one that it is connected to.
#[tokio::test(flavor = "multi_thread")]
async fn connected_server_dies_or_falls_silent_and_the_bus_goes_on() {
    let mut cluster = need!(NatsCluster::start().await);
    let config = replicated(&cluster.url_of(0));
    let bus = Bus::open(&config).await.unwrap();
    published(&bus, 0).await.unwrap();
    cluster.node(0).kill().await.unwrap();
    eventually("another server takes events", PATIENCE, async || published(&bus, 1).await).await;
    cluster.node(0).start_again().await.unwrap();
    cluster.healthy().await;

    // Connected to this one alone, which then keeps the connection and says nothing.
    let config = replicated(&cluster.url_of(1));
    let bus = Bus::open(&config).await.unwrap();
    cluster.node(1).pause().await.unwrap();
    eventually("another server takes events", PATIENCE, async || published(&bus, 2).await).await;
    cluster.node(1).resume().unwrap();
}
