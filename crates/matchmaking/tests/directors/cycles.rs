//! `FetchMatches` with windows and evaluators: the proposals of several calls are evaluated together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use matchmaking::BackendConfig;
use proto::openmatch::{FunctionConfig, Match};
use testkit::eventually;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::servers::{
    KINDS, Kind, evaluator, evaluator_with_timeouts, function, function_with_timeouts, proposal, scored,
    timeout,
};
use crate::world::{World, config, fetch, fetch_profile, names, read};
use crate::{PATIENCE, on_both_stores};

on_both_stores! {
    default_evaluator_chooses_among_the_calls_of_a_cycle,
    evaluator_is_called_once_per_cycle,
    evaluator_works_without_a_window,
    evaluator_chooses_while_proposals_arrive,
    match_id_used_by_two_functions_fails_both_calls,
    match_id_used_twice_by_one_function_fails_only_that_call,
    evaluator_that_returns_an_unknown_match_fails_the_calls,
    evaluator_that_returns_a_match_twice_fails_the_calls,
    error_of_the_evaluator_reaches_the_callers,
    evaluator_runs_although_a_match_function_failed,
    evaluator_input_ends_with_the_registration_window,
    slow_match_function_is_cancelled_and_the_others_are_evaluated,
    unread_call_does_not_block_the_next_cycle,
    unreachable_evaluator_fails_the_calls,
    services_learn_how_long_they_may_take,
    evaluator_that_takes_too_long_is_cancelled,
    call_that_is_cancelled_within_a_cycle_disturbs_no_other,
    cycle_with_too_many_proposals_fails,
    ; in_process:
    cancelled_call_releases_what_the_evaluator_chose,
}

const WINDOW: Duration = Duration::from_millis(300);

fn windows(evaluator: Option<&str>) -> BackendConfig {
    BackendConfig {
        registration_window: WINDOW,
        evaluator: evaluator.map(|address| address.parse().unwrap()),
        ..config()
    }
}

/// Serves a match function that proposes these matches to each call.
async fn proposing(proposals: impl Into<Vec<Match>>) -> FunctionConfig {
    let sent: Vec<Match> = proposals.into();
    function(Kind::Grpc, move |_, proposals| {
        let sent = sent.clone();
        async move {
            for proposal in sent {
                let _ = proposals.send(Ok(proposal)).await;
            }
        }
    })
    .await
}

/// Chooses every match at once.
async fn accept_all(mut matches: UnboundedReceiver<Match>, chosen: UnboundedSender<Result<String, String>>) {
    while let Some(match_) = matches.recv().await {
        let _ = chosen.send(Ok(match_.match_id));
    }
}

async fn default_evaluator_chooses_among_the_calls_of_a_cycle(world: World) {
    let [a, b, c] = world.tickets().await;
    let low = proposing([scored("low", 1.0, &[&a, &b])]).await;
    let high = proposing([scored("high", 2.0, &[&b, &c]), proposal("unscored", &[&a])]).await;
    let backend = world.backend(windows(None));
    let (low, high) = tokio::join!(async { read(fetch(&backend, &low).await).await }, async {
        read(fetch(&backend, &high).await).await
    });
    assert_eq!((names(&low.0), low.1), (vec![], None));
    assert_eq!((names(&high.0), high.1), (vec!["high", "unscored"], None));
    assert_eq!(world.counter("evaluator_calls_total{outcome=\"succeeded\"}"), 1);
}

async fn evaluator_is_called_once_per_cycle(world: World) {
    for kind in KINDS {
        let [a, b] = world.tickets().await;
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        let evaluator = evaluator(kind, move |matches, chosen| {
            count.fetch_add(1, Ordering::Relaxed);
            accept_all(matches, chosen)
        })
        .await;
        let (first, second) =
            (proposing([proposal("1", &[&a])]).await, proposing([proposal("2", &[&b])]).await);
        let backend = world.backend(windows(Some(&evaluator)));
        let (first, second) = tokio::join!(async { read(fetch(&backend, &first).await).await }, async {
            read(fetch(&backend, &second).await).await
        });
        assert_eq!((names(&first.0), first.1), (vec!["1"], None), "{kind:?}");
        assert_eq!((names(&second.0), second.1), (vec!["2"], None), "{kind:?}");
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}

/// Calls join a cycle only by chance, so each of them may be in one of its own.
async fn evaluator_works_without_a_window(world: World) {
    for kind in KINDS {
        let [a, b, c] = world.tickets().await;
        // It chooses by the id: the store alone would take what comes first.
        let evaluator = evaluator(kind, async |mut matches: UnboundedReceiver<Match>, chosen| {
            while let Some(match_) = matches.recv().await {
                if match_.match_id.starts_with("good") {
                    chosen.send(Ok(match_.match_id)).unwrap();
                }
            }
        })
        .await;
        let config = BackendConfig { registration_window: Duration::ZERO, ..windows(Some(&evaluator)) };
        let backend = world.backend(config);
        let first = proposing([proposal("bad", &[&a, &b]), proposal("good first", &[&b])]).await;
        let second = proposing([proposal("good second", &[&c]), proposal("worse", &[&a])]).await;
        let (first, second) = tokio::join!(async { read(fetch(&backend, &first).await).await }, async {
            read(fetch(&backend, &second).await).await
        });
        assert_eq!((names(&first.0), first.1), (vec!["good first"], None), "{kind:?}");
        assert_eq!((names(&second.0), second.1), (vec!["good second"], None), "{kind:?}");
        assert!(world.is_free(&a).await);
    }
}

async fn evaluator_chooses_while_proposals_arrive(world: World) {
    let [a, b] = world.tickets().await;
    let (sent, seen) = ([proposal("1", &[&a]), proposal("2", &[&b])], Arc::new(Notify::new()));
    let go_on = seen.clone();
    let function = function(Kind::Grpc, move |_, proposals| {
        let (sent, go_on) = (sent.clone(), go_on.clone());
        async move {
            let [first, second] = sent;
            proposals.send(Ok(first)).await.unwrap();
            go_on.notified().await;
            proposals.send(Ok(second)).await.unwrap();
        }
    })
    .await;
    let evaluator = evaluator(Kind::Grpc, accept_all).await;
    let mut stream = fetch(&world.backend(windows(Some(&evaluator))), &function).await;
    assert_eq!(stream.next().await.unwrap().unwrap().match_id, "1");
    seen.notify_one();
    assert_eq!(stream.next().await.unwrap().unwrap().match_id, "2");
    assert!(stream.next().await.is_none());
}

async fn match_id_used_by_two_functions_fails_both_calls(world: World) {
    let [a, b] = world.tickets().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let evaluator = evaluator(Kind::Grpc, move |matches, chosen| {
        count.fetch_add(1, Ordering::Relaxed);
        accept_all(matches, chosen)
    })
    .await;
    let (first, second) = (proposing([proposal("1", &[&a])]).await, proposing([proposal("1", &[&b])]).await);
    let backend = world.backend(windows(Some(&evaluator)));
    let mut delivered = fetch(&backend, &first).await;
    assert_eq!(delivered.next().await.unwrap().unwrap().match_id, "1");
    let (matches, error) = read(fetch(&backend, &second).await).await;
    let text = "multiple match functions used same match_id: \"1\"";
    assert!(matches.is_empty() && error.unwrap().contains(text));
    let (matches, error) = read(delivered).await;
    assert!(matches.is_empty() && error.unwrap().contains(text));
    assert!(world.is_free(&b).await);
    assert_eq!(calls.load(Ordering::Relaxed), 1, "both calls were in one cycle");
}

async fn call_that_is_cancelled_within_a_cycle_disturbs_no_other(world: World) {
    let [a, b] = world.tickets().await;
    let (proposed, chosen_from) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (seen, go_on) = (proposed.clone(), chosen_from.clone());
    // It chooses everything, but only when one of the calls has gone.
    let evaluator = evaluator(Kind::Grpc, move |mut matches: UnboundedReceiver<Match>, chosen| {
        let (seen, go_on) = (seen.clone(), go_on.clone());
        async move {
            let both = [matches.recv().await.unwrap(), matches.recv().await.unwrap()];
            seen.notify_one();
            go_on.notified().await;
            for match_ in both {
                let _ = chosen.send(Ok(match_.match_id));
            }
        }
    })
    .await;
    let (leaves, stays) =
        (proposing([proposal("leaves", &[&a])]).await, proposing([proposal("stays", &[&b])]).await);
    let backend = world.backend(windows(Some(&evaluator)));
    let leaving = fetch(&backend, &leaves).await;
    let staying = fetch(&backend, &stays).await;
    tokio::time::timeout(PATIENCE, proposed.notified()).await.unwrap();
    drop(leaving);
    eventually("the process knows", PATIENCE, async || {
        world.counter("function_calls_total{outcome=\"cancelled\"}") == 1
    })
    .await;
    chosen_from.notify_one();
    let (matches, error) = read(staying).await;
    assert_eq!((names(&matches), error), (vec!["stays"], None));
    assert!(world.is_free(&a).await, "nobody gets the match of the call that left");
}

async fn cycle_with_too_many_proposals_fails(world: World) {
    let [a, b, c] = world.tickets().await;
    let function = proposing([proposal("1", &[&a]), proposal("2", &[&b]), proposal("3", &[&c])]).await;
    let config = BackendConfig { max_proposals: 2, ..windows(None) };
    let (matches, error) = read(fetch(&world.backend(config), &function).await).await;
    let text = error.unwrap();
    assert!(matches.is_empty() && text.contains("matchmaking.director.max_proposals"), "{text}");
    assert!(world.is_free(&a).await);
}

async fn match_id_used_twice_by_one_function_fails_only_that_call(world: World) {
    let [a, b, c] = world.tickets().await;
    let evaluator = evaluator(Kind::Grpc, accept_all).await;
    let bad = proposing([proposal("x", &[&a]), proposal("x", &[&b])]).await;
    let good = proposing([proposal("1", &[&c])]).await;
    let mut config = windows(Some(&evaluator));
    config.registration_window = Duration::from_secs(3);
    let backend = world.backend(config);
    let started = Instant::now();
    let (bad, mut good) = (fetch(&backend, &bad).await, fetch(&backend, &good).await);
    let (_, error) = read(bad).await;
    assert!(error.unwrap().contains("MatchMakingFunction returned same match_id twice: \"x\""));
    assert_eq!(good.next().await.unwrap().unwrap().match_id, "1");
    assert!(started.elapsed() < Duration::from_secs(3), "before the registration window ends");
    assert!(good.next().await.is_none());
}

async fn evaluator_that_returns_an_unknown_match_fails_the_calls(world: World) {
    for kind in KINDS {
        let evaluator = evaluator(kind, async |_, chosen| chosen.send(Ok("1".to_owned())).unwrap()).await;
        let function = proposing([]).await;
        let (_, error) = read(fetch(&world.backend(windows(Some(&evaluator))), &function).await).await;
        let text =
            "evaluator returned match_id \"1\" which does not correspond to its any match in its input";
        assert!(error.unwrap().contains(text));
    }
}

async fn evaluator_that_returns_a_match_twice_fails_the_calls(world: World) {
    let a = world.ticket().await;
    let evaluator = evaluator(Kind::Grpc, async |mut matches: UnboundedReceiver<Match>, chosen| {
        let id = matches.recv().await.unwrap().match_id;
        chosen.send(Ok(id.clone())).unwrap();
        chosen.send(Ok(id)).unwrap();
    })
    .await;
    let function = proposing([proposal("1", &[&a])]).await;
    let (matches, error) = read(fetch(&world.backend(windows(Some(&evaluator))), &function).await).await;
    assert!(matches.len() <= 1);
    assert!(error.unwrap().contains("evaluator returned same match_id twice: \"1\""));
}

async fn error_of_the_evaluator_reaches_the_callers(world: World) {
    for kind in KINDS {
        let evaluator =
            evaluator(kind, async |_, chosen| chosen.send(Err("no idea".to_owned())).unwrap()).await;
        let function = proposing([]).await;
        let (_, error) = read(fetch(&world.backend(windows(Some(&evaluator))), &function).await).await;
        let text = error.unwrap();
        assert!(
            text.starts_with("error(s) in FetchMatches call. syncErr=[") && text.contains("no idea"),
            "{text}"
        );
    }
    assert_eq!(world.counter("evaluator_calls_total{outcome=\"failed\"}"), 2);
}

async fn evaluator_runs_although_a_match_function_failed(world: World) {
    let a = world.ticket().await;
    let evaluator = evaluator(Kind::Grpc, accept_all).await;
    let sent = proposal("1", &[&a]);
    let function = function(Kind::Grpc, move |_, proposals| {
        let sent = sent.clone();
        async move {
            proposals.send(Ok(sent)).await.unwrap();
            proposals.send(Err("no such map".to_owned())).await.unwrap();
        }
    })
    .await;
    let (matches, error) = read(fetch(&world.backend(windows(Some(&evaluator))), &function).await).await;
    assert_eq!(names(&matches), ["1"]);
    let text = error.unwrap();
    assert!(text.contains("syncErr=[<nil>]") && text.contains("no such map"), "{text}");
}

async fn evaluator_input_ends_with_the_registration_window(world: World) {
    let ended = Arc::new(std::sync::Mutex::new(None));
    let end = ended.clone();
    let evaluator = evaluator(Kind::Grpc, move |mut matches: UnboundedReceiver<Match>, chosen| {
        let end = end.clone();
        async move {
            while matches.recv().await.is_some() {}
            *end.lock().unwrap() = Some(Instant::now());
            // The call ends with the evaluator's stream, so not before this.
            drop(chosen);
        }
    })
    .await;
    let started = Instant::now();
    let function = proposing([]).await;
    assert_eq!(read(fetch(&world.backend(windows(Some(&evaluator))), &function).await).await, (vec![], None));
    let open = ended.lock().unwrap().unwrap().duration_since(started);
    assert!(open >= WINDOW && open < config().proposal_window, "{open:?}");
}

async fn slow_match_function_is_cancelled_and_the_others_are_evaluated(world: World) {
    let a = world.ticket().await;
    let slow = function(Kind::Grpc, async |_, proposals| proposals.closed().await).await;
    let quick = proposing([proposal("1", &[&a])]).await;
    let mut config = windows(None);
    config.proposal_window = Duration::from_millis(600);
    let backend = world.backend(config);
    let (slow, quick) = tokio::join!(async { read(fetch(&backend, &slow).await).await }, async {
        read(fetch(&backend, &quick).await).await
    });
    assert!(slow.1.unwrap().contains("mmfErr=[match function ran longer than proposal window, canceling]"));
    assert_eq!((names(&quick.0), quick.1), (vec!["1"], None));
}

async fn unread_call_does_not_block_the_next_cycle(world: World) {
    let [a, b] = world.tickets().await;
    let (slow, next) =
        (proposing([proposal("slow", &[&a])]).await, proposing([proposal("next", &[&b])]).await);
    let backend = world.backend(windows(None));
    let unread = fetch_profile(&backend, &slow, "slow").await;
    eventually("the unread match is claimed", PATIENCE, async || !world.is_free(&a).await).await;
    let (matches, error) = read(fetch_profile(&backend, &next, "next").await).await;
    assert_eq!((names(&matches), error), (vec!["next"], None));
    assert_eq!(names(&read(unread).await.0), ["slow"]);
    assert_eq!(world.counter("evaluator_calls_total{outcome=\"succeeded\"}"), 2);
}

async fn cancelled_call_releases_what_the_evaluator_chose(world: World) {
    let [a, b] = world.tickets().await;
    let evaluator = evaluator(Kind::Grpc, accept_all).await;
    let function = proposing([proposal("1", &[&a]), proposal("2", &[&b])]).await;
    let mut stream = fetch(&world.backend(windows(Some(&evaluator))), &function).await;
    assert_eq!(stream.next().await.unwrap().unwrap().match_id, "1");
    eventually("the second match is claimed", PATIENCE, async || !world.is_free(&b).await).await;
    drop(stream);
    eventually("its tickets are released", PATIENCE, async || world.is_free(&b).await).await;
    assert!(!world.is_free(&a).await, "the first match was delivered");
}

async fn services_learn_how_long_they_may_take(world: World) {
    let (window, patience) = (Duration::from_secs(7), Duration::from_secs(11));
    for kind in KINDS {
        let (function, mut of_function) = function_with_timeouts(kind, async |_, _| {}).await;
        let (evaluator, mut of_evaluator) = evaluator_with_timeouts(kind, accept_all).await;
        let config = BackendConfig { proposal_window: window, evaluator_timeout: patience, ..windows(None) };
        assert_eq!(read(fetch(&world.backend(config.clone()), &function).await).await, (vec![], None));
        let first = timeout(&mut of_function).await;
        let at_once = BackendConfig { registration_window: Duration::ZERO, ..config.clone() };
        assert_eq!(read(fetch(&world.backend(at_once), &function).await).await, (vec![], None));
        for told in [first, timeout(&mut of_function).await] {
            assert!(told > window - Duration::from_secs(3) && told <= window, "{kind:?}: {told:?}");
        }
        let config = BackendConfig { evaluator: Some(evaluator.parse().unwrap()), ..config };
        assert_eq!(read(fetch(&world.backend(config), &function).await).await, (vec![], None));
        let told = timeout(&mut of_evaluator).await;
        let most = window + patience + Duration::from_secs(1);
        assert!(told > most - Duration::from_secs(5) && told <= most, "{kind:?}: {told:?}");
    }
}

async fn evaluator_that_takes_too_long_is_cancelled(world: World) {
    let cancelled = Arc::new(Notify::new());
    let ended = cancelled.clone();
    let evaluator = evaluator(Kind::Grpc, move |_, chosen| {
        let ended = ended.clone();
        async move {
            chosen.closed().await;
            ended.notify_one();
        }
    });
    let mut config = windows(Some(&evaluator.await));
    config.evaluator_timeout = Duration::from_millis(200);
    let (_, error) = read(fetch(&world.backend(config), &proposing([]).await).await).await;
    let text = error.unwrap();
    assert!(text.contains("syncErr=[evaluator ran longer than 200ms, canceling]"), "{text}");
    tokio::time::timeout(PATIENCE, cancelled.notified()).await.unwrap();
}

async fn unreachable_evaluator_fails_the_calls(world: World) {
    for address in ["grpc://127.0.0.1:1", "http://127.0.0.1:1"] {
        let a = world.ticket().await;
        let function = proposing([proposal("1", &[&a])]).await;
        let (matches, error) = read(fetch(&world.backend(windows(Some(address))), &function).await).await;
        assert!(matches.is_empty());
        assert!(
            error.unwrap().contains("syncErr=[failed to get response from evaluator client"),
            "{address}"
        );
        assert!(world.is_free(&a).await);
    }
}
