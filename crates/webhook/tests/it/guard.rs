//! Forbidden addresses and untrusted certificates.

use axum::http::StatusCode;
use testkit::{TlsProxy, need};
use webhook::{Config, Error, SendOutcome};

use crate::fixture::{Fixture, config, refusal, send};
use crate::receiver::Receiver;

fn strict(url: &str) -> Config {
    Config { allow_networks: Vec::new(), ..config(url) }
}

#[tokio::test]
async fn name_that_resolves_to_loopback_is_refused() {
    let (receiver, fixture) = (Receiver::start(|| StatusCode::OK).await, Fixture::new());
    for name in ["localhost", "LOCALHOST"] {
        let url = format!("http://{name}:{}/hook", receiver.port);
        let cause = refusal(&fixture.with(strict(&url))).await;
        assert!(cause.contains("is loopback") && cause.contains("`allow_networks`"), "{cause}");
        let allowed = vec!["127.0.0.0/8".parse().unwrap()];
        let lax = fixture.with(Config { allow_networks: allowed, ..config(&url) });
        assert_eq!(send(&lax).await, SendOutcome::Delivered, "{name} where it is allowed");
    }
    assert_eq!(receiver.count(), 2);
    fixture.assert_measured(
        "playhouse_webhook_request_duration_seconds_count{destination=\"shop\",outcome=\"forbidden\"} 2",
    );
}

#[tokio::test]
async fn destination_with_a_non_public_address_is_refused() {
    let fixture = Fixture::new();
    for url in [
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://0.0.0.0/",
        "http://10.0.0.1/",
        "http://169.254.169.254/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
    ] {
        let refused = fixture.try_with("shop", strict(url)).unwrap_err();
        assert!(matches!(refused, Error::ForbiddenAddress(_)), "{url}: {refused}");
        assert!(refused.to_string().contains("`allow_networks`"), "{refused}");
    }
    assert!(matches!(fixture.try_with("shop", strict("ftp://example.org/")), Err(Error::NotHttp)));
}

#[tokio::test]
async fn server_with_an_untrusted_certificate_gets_no_request() {
    let (receiver, fixture) = (Receiver::start(|| StatusCode::OK).await, Fixture::new());
    let tls = need!(TlsProxy::to(([127, 0, 0, 1], receiver.port).into()).await);
    let cause = refusal(&fixture.destination(&format!("https://localhost:{}/hook", tls.addr().port()))).await;
    assert!(cause.contains("certificate"), "{cause}");
    assert_eq!(receiver.count(), 0);
}
