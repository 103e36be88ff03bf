//! Access tokens that expire: refreshed once, whoever asks and whatever happens meanwhile.

use std::time::Instant;

use futures::future::join_all;
use testkit::{Proxy, eventually, need};

use super::flows::{Door, Player, Scene};
use crate::crashes::was_killed;
use crate::*;

/// Asks who this is at all processes in turn, so many times at once. Returns the answers that were not 200.
async fn ask(player: &Player, doors: &[Door], times: usize) -> Vec<(u16, Value)> {
    let asking = (0..times).map(|n| {
        let (player, at) = (player.clone(), doors[n % doors.len()].at.clone());
        tokio::spawn(async move { player.me(&at).await })
    });
    let answers = join_all(asking).await.into_iter().map(Result::unwrap);
    answers.filter(|(status, _)| *status != 200).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_requests_at_three_processes_refresh_once() {
    let scene = need!(Scene::with_tokens_for(Duration::from_secs(12)).await);
    let doors = scene.gateways(3).await;
    let ada = scene.sign_in("ada").await;
    assert_eq!(ask(&ada, &doors, 30).await, []);
    assert_eq!(scene.provider.refreshes().await, 0);

    // The first time it expires by itself.
    let sessions = scene.sessions().await;
    eventually("the token is about to expire", PATIENCE, async || {
        let due = sessions.read(&ada.session()).await.unwrap().unwrap().session.refresh_after.unwrap();
        due <= base::Clock::system().now().as_millis()
    })
    .await;
    for round in 1..=6 {
        let before = scene.held(&ada).await.refresh;
        assert_eq!(ask(&ada, &doors, 100).await, [], "round {round}");
        let refreshed = (scene.provider.refreshes().await, scene.provider.refused_refreshes().await);
        assert_eq!(refreshed, (round, 0), "round {round}");
        assert_ne!(scene.held(&ada).await.refresh, before, "the issuer rotates them");
        scene.is_due(&ada).await;
    }
}

/// Longer than the lease lasts unless it is renewed, so that another process would begin; and not so long that callers are
/// answered without.
#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_that_takes_long_is_asked_once() {
    const SLOW: Duration = Duration::from_secs(7);
    let scene = need!(Scene::start().await);
    let patient = |program: Program| program.env("PLAYHOUSE_IDENTITY_TIMEOUT", "30s");
    let programs =
        [scene.first(), scene.program("gateway,service-api"), scene.program("gateway,service-api")]
            .map(patient);
    let mut doors = Vec::new();
    for program in programs {
        doors.push(Door::open(&program).await);
    }
    let ada = scene.sign_in("ada").await;
    scene.is_due(&ada).await;
    scene.provider.slow(SLOW).await;
    let started = Instant::now();
    assert_eq!(ask(&ada, &doors, 100).await, []);
    assert!(started.elapsed() >= SLOW, "{:?}", started.elapsed());
    assert_eq!((scene.provider.refreshes().await, scene.provider.refused_refreshes().await), (1, 0));
    scene.provider.slow(Duration::ZERO).await;
    scene.is_due(&ada).await;
    assert_eq!(ask(&ada, &doors, 100).await, []);
    assert_eq!((scene.provider.refreshes().await, scene.provider.refused_refreshes().await), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_before_it_asked_the_issuer_costs_nobody_the_session() {
    let scene = need!(Scene::start().await);
    let first = Door::open(&scene.first()).await;
    let doomed =
        Door::open(&scene.program("gateway,service-api").env("TESTKIT_FAULT", "gateway.refresh")).await;
    let ada = scene.sign_in("ada").await;
    assert_eq!(ada.me(&doomed.at).await.0, 200);
    scene.is_due(&ada).await;
    let lost = ada.request(reqwest::Method::GET, &doomed.at, "/v1/me").send().await;
    assert!(lost.is_err(), "{lost:?}");
    was_killed(&doomed.running).await;

    // Those who ask wait until the dead one's lease is over.
    assert_eq!(ask(&ada, &[first], 10).await, []);
    assert_eq!((scene.provider.refreshes().await, scene.provider.refused_refreshes().await), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_issuer_is_away_sessions_go_on_for_a_while() {
    let scene = need!(Scene::start().await);
    let doors = scene.gateways(3).await;
    let ada = scene.sign_in("ada").await;

    // It says that it cannot.
    scene.provider.fail(true).await;
    scene.is_due(&ada).await;
    assert_eq!(ask(&ada, &doors, 100).await, []);

    // It says nothing. One waits for it, and whoever comes then does not.
    scene.provider.fail(false).await;
    scene.provider.slow(Duration::from_secs(3600)).await;
    scene.is_due(&ada).await;
    assert_eq!(ask(&ada, &doors, 30).await, []);
    let started = Instant::now();
    assert_eq!(ask(&ada, &doors, 30).await, []);
    // A request to the issuer would take five.
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());

    // Nobody is signed out by that, and it is refreshed when the issuer is back.
    assert_eq!(scene.provider.refreshes().await, 0);
    scene.provider.slow(Duration::ZERO).await;
    eventually("it is refreshed", PATIENCE, async || {
        assert_eq!(ask(&ada, &doors, 3).await, []);
        scene.provider.refreshes().await == 1
    })
    .await;
    assert_eq!(scene.provider.refused_refreshes().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_issuer_is_away_for_too_long_the_session_ends() {
    let scene = need!(Scene::start().await);
    let doors = scene.gateways(2).await;
    let ada = scene.sign_in("ada").await;
    scene.provider.fail(true).await;
    scene.edit(&ada, |session| (session.refresh_after, session.valid_until) = (Some(0), 1)).await;
    for door in &doors {
        assert_eq!(ada.me(&door.at).await.0, 401);
    }
    assert_eq!(scene.sessions().await.read(&ada.session()).await.unwrap(), None);
    scene.provider.fail(false).await;
    assert_eq!(scene.sign_in("ada").await.me(&doors[1].at).await.0, 200);
}

/// Only the word that the grant is no good ends a session: a mistake in our own settings or at the issuer signs nobody out.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_the_issuer_does_not_know_any_more_signs_nobody_out() {
    let scene = need!(Scene::start().await);
    let first = Door::open(&scene.first()).await;
    let ada = scene.sign_in("ada").await;
    let wrong =
        scene.program("gateway,service-api").env("PLAYHOUSE_IDENTITY_CLIENT_SECRET", "another-secret");
    let wrong = Door::open(&wrong).await;
    scene.is_due(&ada).await;
    assert_eq!(ada.me(&wrong.at).await.0, 200);
    scene.is_due(&ada).await;
    assert_eq!(ada.me(&first.at).await.0, 200);
    assert_eq!(scene.provider.refreshes().await, 1);
}

/// Keys are not asked for again and again, so for a moment a new one may not be known.
#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_that_changes_its_keys_signs_nobody_out() {
    let scene = need!(Scene::start().await);
    let first = Door::open(&scene.first()).await;
    let ada = scene.sign_in("ada").await;
    for round in 1..=3 {
        scene.provider.rotate_keys().await;
        scene.is_due(&ada).await;
        assert_eq!(ada.me(&first.at).await.0, 200, "round {round}");
        assert_eq!(scene.provider.refreshes().await, round);
    }
}

/// The old token is worthless by then, so the new one must not get lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_when_the_issuer_answers_costs_nobody_the_session() {
    let scene = need!(Scene::start().await);
    let proxy = Proxy::to(scene.fleet.redis.addr()).await;
    let first = scene.first().env("PLAYHOUSE_HOT_URL", proxy.url(&scene.fleet.redis.url()));
    let doors = [Door::open(&first).await, Door::open(&scene.program("gateway,service-api")).await];
    let ada = scene.sign_in("ada").await;
    scene.is_due(&ada).await;
    scene.provider.slow(Duration::from_secs(2)).await;
    let asking = tokio::spawn({
        let (ada, at) = (ada.clone(), doors[0].at.clone());
        async move { ada.me(&at).await }
    });
    eventually("the issuer is asked", PATIENCE, async || scene.provider.waiting().await == 1).await;
    proxy.cut().await;
    eventually("the issuer has answered", PATIENCE, async || scene.provider.refreshes().await == 1).await;
    scene.provider.slow(Duration::ZERO).await;
    proxy.pass().await;
    asking.await.unwrap();
    doors[0].is_ready().await;
    assert_eq!(ask(&ada, &doors, 10).await, []);
    scene.is_due(&ada).await;
    assert_eq!(ask(&ada, &doors, 10).await, []);
    assert_eq!((scene.provider.refreshes().await, scene.provider.refused_refreshes().await), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_issuer_refuses_the_session_is_gone() {
    let scene = need!(Scene::start().await);
    let doors = scene.gateways(3).await;
    let (ada, bob) = (scene.sign_in("ada").await, scene.sign_in("bob").await);
    let held = scene.held(&ada).await;
    // Somebody stole the token and used it first: to the issuer, whoever comes second is the thief.
    let refresh = [("grant_type", "refresh_token"), ("refresh_token", held.refresh.as_str())];
    assert_eq!(scene.token(&refresh).await.0, 200);
    assert_eq!(ask(&ada, &doors, 3).await, [], "not before it is due");
    scene.is_due(&ada).await;
    let refused = ask(&ada, &doors, 30).await;
    assert_eq!(refused.len(), 30);
    assert!(refused.iter().all(|(status, _)| *status == 401), "{refused:?}");
    assert_eq!(scene.provider.refused_refreshes().await, 1, "nobody asks twice");
    assert_eq!(scene.sessions().await.read(&ada.session()).await.unwrap(), None);
    assert_eq!(ask(&bob, &doors, 3).await, []);
    assert_eq!(ask(&scene.sign_in("ada").await, &doors, 3).await, []);
}
