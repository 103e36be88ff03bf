//! The connection to NATS.

use std::time::Duration;

use base::Clock;
use base::error::Coded;
use base::finding::Verdict;
use bus::{Bus, Config, Error};
use testkit::{FaultProxy, Nats, eventually, need};

use super::{PATIENCE, config, config_on};

async fn answers(bus: &Bus) -> Result<(), String> {
    bus.ping().await.map_err(|error| base::error::chain(&error))
}

#[tokio::test(flavor = "multi_thread")]
async fn bus_reconnects_after_the_server_was_killed() {
    let mut nats = need!(Nats::private().await);
    let bus = Bus::open(&config(&nats.url())).await.unwrap();
    nats.kill().await.unwrap();
    let error = eventually("the loss is noticed", PATIENCE, async || bus.ping().await.err()).await;
    assert!(matches!(error, Error::Unreachable(_)) && error.is_transient(), "{error:?}");
    nats.start_again().await.unwrap();
    let back = std::time::Instant::now();
    eventually("the bus answers again", PATIENCE, || answers(&bus)).await;
    // The client's default would wait up to 4 s.
    assert!(back.elapsed() < Duration::from_secs(2), "{:?}", back.elapsed());
    bus.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bus_detects_and_survives_a_silent_network() {
    let nats = need!(Nats::private().await);
    let proxy = FaultProxy::to(nats.addr()).await;
    let bus = Bus::open(&config(&proxy.url(&nats.url()))).await.unwrap();
    proxy.half_open().await;
    let started = std::time::Instant::now();
    let error = bus.ping().await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    proxy.pass().await;
    eventually("the bus answers again", PATIENCE, || answers(&bus)).await;
}

#[tokio::test]
async fn refused_connection_differs_from_an_unreachable_server() {
    let nats = need!(Nats::builder().arg("--user").arg("game").arg("--pass").arg("r/ght").start().await);
    let port = nats.addr().port();
    let open =
        async |user: &str, port: u16| Bus::open(&config(&format!("nats://{user}127.0.0.1:{port}"))).await;
    open("game:r%2Fght@", port).await.unwrap();
    for wrong in ["", "game:wrong@"] {
        let error = open(wrong, port).await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)) && !error.is_transient(), "{error:?}");
    }
    assert!(open("", 1).await.unwrap_err().is_transient());
}

#[tokio::test]
async fn doctor_finds_settings_that_endanger_data() {
    let nats = need!(Nats::shared().await);
    let streams = nats.namespace();
    let config = config_on(&streams);
    let unmonitored = bus::examine(&config, &Clock::system()).await;
    assert!(unmonitored[0].what.contains("with JetStream"), "{unmonitored:#?}");
    // An old server cannot sync before it acknowledges; a client cannot see the setting of a new one.
    assert!(unmonitored[1].what.contains("does not exist yet"), "{unmonitored:#?}");
    assert_eq!(unmonitored[2].verdict, Verdict::Warning, "{unmonitored:#?}");
    assert_eq!(unmonitored.len(), 3);
    let again = bus::examine(&config, &Clock::system()).await;
    assert_eq!(again, unmonitored, "an examination changes nothing");

    if let Some(monitor) = nats.monitor_url() {
        let monitored = Config { monitor_url: Some(monitor.parse().unwrap()), ..config.clone() };
        let findings = bus::examine(&monitored, &Clock::system()).await;
        assert!(findings[2].what.starts_with("acknowledges events"), "{findings:#?}");
        assert!(findings[3].what.starts_with("clock "), "{findings:#?}");
    }
    Bus::open(&config).await.unwrap();
    let opened = bus::examine(&config, &Clock::system()).await;
    assert!(opened[1].what.ends_with("has 0 events"), "{opened:#?}");
    let other_age = Config { max_age: Duration::from_secs(86_400), ..config.clone() };
    let differs = bus::examine(&other_age, &Clock::system()).await;
    assert_eq!(differs[2].verdict, Verdict::Warning, "{differs:#?}");
    assert!(differs[2].what.contains("max_age is 604800s, not 86400s"), "{differs:#?}");
    let other_subjects = Config { subjects: streams.subject("other"), ..config };
    let unusable = bus::examine(&other_subjects, &Clock::system()).await;
    assert_eq!(unusable[1].verdict, Verdict::Failure, "{unusable:#?}");

    let unreachable = bus::examine(&super::config("nats://127.0.0.1:1"), &Clock::system()).await;
    assert_eq!(unreachable[0].verdict, Verdict::Failure, "{unreachable:#?}");
}

#[tokio::test]
async fn doctor_warns_of_a_small_max_payload() {
    let nats = need!(Nats::builder().max_payload(64 * 1024).start().await);
    let streams = nats.namespace();
    let findings = bus::examine(&config_on(&streams), &Clock::system()).await;
    assert_eq!(findings[1].verdict, Verdict::Warning, "{findings:#?}");
    assert!(findings[1].what.starts_with("accepts messages of at most 65536 bytes"), "{findings:#?}");
    assert!(
        findings[1].advice.as_deref().unwrap_or_default().contains("max_payload: 1048576"),
        "{findings:#?}"
    );
}
