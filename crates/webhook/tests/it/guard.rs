//! Where no request goes.

use axum::http::StatusCode;
use testkit::{TlsProxy, need};
use webhook::{Config, Error, Sent};

use crate::receiver::Receiver;
use crate::world::{World, config, refusal, send};

fn strict(url: &str) -> Config {
    Config { allow_networks: Vec::new(), ..config(url) }
}

#[tokio::test]
async fn a_name_that_leads_to_this_machine_is_refused_when_it_is_looked_up() {
    let (receiver, world) = (Receiver::start(|| StatusCode::OK).await, World::new());
    for name in ["localhost", "LOCALHOST"] {
        let url = format!("http://{name}:{}/hook", receiver.port);
        let cause = refusal(&world.with(strict(&url))).await;
        assert!(cause.contains("is loopback") && cause.contains("`allow_networks`"), "{cause}");
        let allowed = vec!["127.0.0.0/8".parse().unwrap()];
        let lax = world.with(Config { allow_networks: allowed, ..config(&url) });
        assert_eq!(send(&lax).await, Sent::Delivered, "{name} where it is allowed");
    }
    assert_eq!(receiver.count(), 2);
    world.assert_measured(
        "playhouse_webhook_request_duration_seconds_count{destination=\"shop\",outcome=\"forbidden\"} 2",
    );
}

#[tokio::test]
async fn there_is_no_destination_at_an_address_that_is_not_public() {
    let world = World::new();
    for url in [
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://0.0.0.0/",
        "http://10.0.0.1/",
        "http://169.254.169.254/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
    ] {
        let refused = world.try_with("shop", strict(url)).unwrap_err();
        assert!(matches!(refused, Error::Forbidden(_)), "{url}: {refused}");
        assert!(refused.to_string().contains("`allow_networks`"), "{refused}");
    }
    assert!(matches!(world.try_with("shop", strict("ftp://example.org/")), Err(Error::NotHttp)));
}

#[tokio::test]
async fn a_server_whose_certificate_nobody_vouches_for_is_told_nothing() {
    let (receiver, world) = (Receiver::start(|| StatusCode::OK).await, World::new());
    let tls = need!(TlsProxy::to(([127, 0, 0, 1], receiver.port).into()).await);
    let cause = refusal(&world.destination(&format!("https://localhost:{}/hook", tls.addr().port()))).await;
    assert!(cause.contains("certificate"), "{cause}");
    assert_eq!(receiver.count(), 0);
}
