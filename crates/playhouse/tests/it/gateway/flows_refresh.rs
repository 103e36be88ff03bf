//! Expiring access tokens are refreshed once, despite concurrent requests and failures.

use std::time::Instant;

use futures::future::join_all;
use testkit::{FaultProxy, eventually, need};

use super::flows::{Gateway, Player, Setup};
use crate::crashes::assert_killed;
use crate::*;

/// Sends concurrent requests to all processes in turn. Returns the responses that were not 200.
async fn failed_requests(player: &Player, gateways: &[Gateway], times: usize) -> Vec<(u16, Value)> {
    let requests = (0..times).map(|n| {
        let (player, at) = (player.clone(), gateways[n % gateways.len()].at.clone());
        tokio::spawn(async move { player.me(&at).await })
    });
    let responses = join_all(requests).await.into_iter().map(Result::unwrap);
    responses.filter(|(status, _)| *status != 200).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_requests_to_three_processes_refresh_once() {
    let setup = need!(Setup::with_tokens_for(Duration::from_secs(12)).await);
    let gateways = setup.start_gateways(3).await;
    let ada = setup.sign_in("ada").await;
    assert_eq!(failed_requests(&ada, &gateways, 30).await, []);
    assert_eq!(setup.provider.refreshes().await, 0);

    // The first token expires on its own, later ones are made due.
    let sessions = setup.sessions().await;
    eventually("the token is about to expire", PATIENCE, async || {
        let due = sessions.read(&ada.session()).await.unwrap().unwrap().session.refresh_after.unwrap();
        due <= base::Clock::system().now().as_millis()
    })
    .await;
    for round in 1..=6 {
        let before = setup.session_tokens(&ada).await.refresh;
        assert_eq!(failed_requests(&ada, &gateways, 100).await, [], "round {round}");
        let refreshed = (setup.provider.refreshes().await, setup.provider.refused_refreshes().await);
        assert_eq!(refreshed, (round, 0), "round {round}");
        assert_ne!(
            setup.session_tokens(&ada).await.refresh,
            before,
            "the issuer did not rotate the refresh token"
        );
        setup.make_refresh_due(&ada).await;
    }
}

/// The delay is longer than an unrenewed lease, so another process could start a refresh. It is shorter than the time after which
/// callers get a response without a refresh.
#[tokio::test(flavor = "multi_thread")]
async fn slow_issuer_gets_one_refresh_request() {
    const SLOW: Duration = Duration::from_secs(7);
    let setup = need!(Setup::start().await);
    let patient = |program: Program| program.env("PLAYHOUSE_IDENTITY_TIMEOUT", "30s");
    let programs =
        [setup.first(), setup.program("gateway,service-api"), setup.program("gateway,service-api")]
            .map(patient);
    let mut gateways = Vec::new();
    for program in programs {
        gateways.push(Gateway::start(&program).await);
    }
    let ada = setup.sign_in("ada").await;
    setup.make_refresh_due(&ada).await;
    setup.provider.set_delay(SLOW).await;
    let started = Instant::now();
    assert_eq!(failed_requests(&ada, &gateways, 100).await, []);
    assert!(started.elapsed() >= SLOW, "{:?}", started.elapsed());
    assert_eq!((setup.provider.refreshes().await, setup.provider.refused_refreshes().await), (1, 0));
    setup.provider.set_delay(Duration::ZERO).await;
    setup.make_refresh_due(&ada).await;
    assert_eq!(failed_requests(&ada, &gateways, 100).await, []);
    assert_eq!((setup.provider.refreshes().await, setup.provider.refused_refreshes().await), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_before_the_refresh_request_keeps_the_session() {
    let setup = need!(Setup::start().await);
    let first = Gateway::start(&setup.first()).await;
    let doomed =
        Gateway::start(&setup.program("gateway,service-api").env("TESTKIT_FAULT", "gateway.refresh")).await;
    let ada = setup.sign_in("ada").await;
    assert_eq!(ada.me(&doomed.at).await.0, 200);
    setup.make_refresh_due(&ada).await;
    let lost = ada.request(reqwest::Method::GET, &doomed.at, "/v1/me").send().await;
    assert!(lost.is_err(), "{lost:?}");
    assert_killed(&doomed.running).await;

    // Requests wait until the lease of the killed process ends.
    assert_eq!(failed_requests(&ada, &[first], 10).await, []);
    assert_eq!((setup.provider.refreshes().await, setup.provider.refused_refreshes().await), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_outlast_a_short_issuer_outage() {
    let setup = need!(Setup::start().await);
    let gateways = setup.start_gateways(3).await;
    let ada = setup.sign_in("ada").await;

    // The issuer returns errors.
    setup.provider.set_failing(true).await;
    setup.make_refresh_due(&ada).await;
    assert_eq!(failed_requests(&ada, &gateways, 100).await, []);

    // The issuer does not respond. One request waits for it, later ones do not.
    setup.provider.set_failing(false).await;
    setup.provider.set_delay(Duration::from_secs(3600)).await;
    setup.make_refresh_due(&ada).await;
    assert_eq!(failed_requests(&ada, &gateways, 30).await, []);
    let started = Instant::now();
    assert_eq!(failed_requests(&ada, &gateways, 30).await, []);
    // A request to the issuer would time out after five seconds.
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());

    // The session survives and is refreshed when the issuer is back.
    assert_eq!(setup.provider.refreshes().await, 0);
    setup.provider.set_delay(Duration::ZERO).await;
    eventually("the session is refreshed", PATIENCE, async || {
        assert_eq!(failed_requests(&ada, &gateways, 3).await, []);
        setup.provider.refreshes().await == 1
    })
    .await;
    assert_eq!(setup.provider.refused_refreshes().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_issuer_outage_ends_the_session() {
    let setup = need!(Setup::start().await);
    let gateways = setup.start_gateways(2).await;
    let ada = setup.sign_in("ada").await;
    setup.provider.set_failing(true).await;
    setup.edit(&ada, |session| (session.refresh_after, session.valid_until) = (Some(0), 1)).await;
    for gateway in &gateways {
        assert_eq!(ada.me(&gateway.at).await.0, 401);
    }
    assert_eq!(setup.sessions().await.read(&ada.session()).await.unwrap(), None);
    setup.provider.set_failing(false).await;
    assert_eq!(setup.sign_in("ada").await.me(&gateways[1].at).await.0, 200);
}

/// Only `invalid_grant` ends a session. A wrong client secret or an error of the issuer does not.
#[tokio::test(flavor = "multi_thread")]
async fn rejected_client_credentials_end_no_session() {
    let setup = need!(Setup::start().await);
    let first = Gateway::start(&setup.first()).await;
    let ada = setup.sign_in("ada").await;
    let wrong =
        setup.program("gateway,service-api").env("PLAYHOUSE_IDENTITY_CLIENT_SECRET", "another-secret");
    let wrong = Gateway::start(&wrong).await;
    setup.make_refresh_due(&ada).await;
    assert_eq!(ada.me(&wrong.at).await.0, 200);
    setup.make_refresh_due(&ada).await;
    assert_eq!(ada.me(&first.at).await.0, 200);
    assert_eq!(setup.provider.refreshes().await, 1);
}

/// Key requests have a cooldown, so a new key may be unknown for a moment.
#[tokio::test(flavor = "multi_thread")]
async fn issuer_key_rotation_ends_no_session() {
    let setup = need!(Setup::start().await);
    let first = Gateway::start(&setup.first()).await;
    let ada = setup.sign_in("ada").await;
    for round in 1..=3 {
        setup.provider.rotate_keys().await;
        setup.make_refresh_due(&ada).await;
        assert_eq!(ada.me(&first.at).await.0, 200, "round {round}");
        assert_eq!(setup.provider.refreshes().await, round);
    }
}

/// The old refresh token is used up by then, so the new one must not be lost.
#[tokio::test(flavor = "multi_thread")]
async fn redis_outage_during_a_refresh_keeps_the_session() {
    let setup = need!(Setup::start().await);
    let proxy = FaultProxy::to(setup.fleet.redis.addr()).await;
    let first = setup.first().env("PLAYHOUSE_REDIS_URL", proxy.url(&setup.fleet.redis.url()));
    let gateways =
        [Gateway::start(&first).await, Gateway::start(&setup.program("gateway,service-api")).await];
    let ada = setup.sign_in("ada").await;
    setup.make_refresh_due(&ada).await;
    setup.provider.set_delay(Duration::from_secs(2)).await;
    let request = tokio::spawn({
        let (ada, at) = (ada.clone(), gateways[0].at.clone());
        async move { ada.me(&at).await }
    });
    eventually("the issuer has the request", PATIENCE, async || setup.provider.delayed_requests().await == 1)
        .await;
    proxy.cut().await;
    eventually("the issuer has responded", PATIENCE, async || setup.provider.refreshes().await == 1).await;
    setup.provider.set_delay(Duration::ZERO).await;
    proxy.pass().await;
    request.await.unwrap();
    gateways[0].wait_until_ready().await;
    assert_eq!(failed_requests(&ada, &gateways, 10).await, []);
    setup.make_refresh_due(&ada).await;
    assert_eq!(failed_requests(&ada, &gateways, 10).await, []);
    assert_eq!((setup.provider.refreshes().await, setup.provider.refused_refreshes().await), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_refresh_ends_the_session() {
    let setup = need!(Setup::start().await);
    let gateways = setup.start_gateways(3).await;
    let (ada, bob) = (setup.sign_in("ada").await, setup.sign_in("bob").await);
    let tokens = setup.session_tokens(&ada).await;
    // A thief used the refresh token first, so the issuer takes the gateway's use for the theft.
    let refresh = [("grant_type", "refresh_token"), ("refresh_token", tokens.refresh.as_str())];
    assert_eq!(setup.token(&refresh).await.0, 200);
    assert_eq!(failed_requests(&ada, &gateways, 3).await, [], "no refresh is due yet");
    setup.make_refresh_due(&ada).await;
    let refused = failed_requests(&ada, &gateways, 30).await;
    assert_eq!(refused.len(), 30);
    assert!(refused.iter().all(|(status, _)| *status == 401), "{refused:?}");
    assert_eq!(setup.provider.refused_refreshes().await, 1, "the refresh was tried again");
    assert_eq!(setup.sessions().await.read(&ada.session()).await.unwrap(), None);
    assert_eq!(failed_requests(&bob, &gateways, 3).await, []);
    assert_eq!(failed_requests(&setup.sign_in("ada").await, &gateways, 3).await, []);
}
