//! `FetchMatches` that decides each proposal at once.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use matchmaking::model::TicketId;
use matchmaking::{Error, HostRules, MatchmakingAdmin};
use proto::openmatch::{FunctionConfig, MatchProfile};
use runtime::Drain;
use testkit::eventually;
use tokio::sync::Notify;

use crate::servers::{KINDS, Kind, function, proposal};
use crate::world::{World, config, fetch, id, names, read};
use crate::{PATIENCE, on_both_stores};

on_both_stores! {
    proposal_is_returned_unchanged_and_its_tickets_are_claimed,
    no_proposals_end_the_stream,
    config_and_profile_are_required,
    match_without_tickets_is_returned,
    match_id_that_is_used_twice_fails_the_call,
    error_of_the_match_function_reaches_the_caller,
    match_function_that_runs_too_long_is_cancelled,
    matches_are_returned_while_the_match_function_runs,
    cancelled_call_cancels_the_match_function,
    unread_matches_are_claimed_and_block_nobody,
    proposal_with_a_taken_or_unknown_ticket_is_dropped,
    directors_of_several_processes_never_get_the_same_ticket,
    claims_of_a_dead_director_expire,
    only_allowed_hosts_are_called,
    shutdown_ends_the_call_with_an_error,
    ; in_process:
    cancelled_call_cancels_the_match_function_and_releases_its_tickets,
}

async fn proposal_is_returned_unchanged_and_its_tickets_are_claimed(world: World) {
    for kind in KINDS {
        let [a, b] = world.tickets().await;
        let proposed = proposal("1", &[&a, &b]);
        let sent = proposed.clone();
        let function = function(kind, move |profile, proposals| {
            assert_eq!(profile, "duel");
            let sent = sent.clone();
            async move { proposals.send(Ok(sent)).await.unwrap() }
        })
        .await;
        let (matches, error) = read(fetch(&world.backend(config()), &function).await).await;
        assert_eq!((matches, error), (vec![proposed], None), "{kind:?}");
        assert!(!world.is_free(&a).await && !world.is_free(&b).await);
        let holder = world.store.status(&id(&a)).await.unwrap().holder.unwrap();
        assert_eq!(holder.profile, "duel");
        assert_eq!(holder.function, format!("127.0.0.1:{}", function.port));
        let admin = MatchmakingAdmin::new(world.store.clone(), Vec::new(), 1, world.clock.clone());
        let why = admin.show(&a.id).await.unwrap().why;
        assert!(why[0].contains("a Director holds it in a match of profile \"duel\""), "{why:?}");
    }
}

async fn no_proposals_end_the_stream(world: World) {
    for kind in KINDS {
        let function = function(kind, |_, _| async {}).await;
        assert_eq!(read(fetch(&world.backend(config()), &function).await).await, (vec![], None));
    }
}

async fn config_and_profile_are_required(world: World) {
    let backend = world.backend(config());
    let function = function(Kind::Grpc, |_, _| async {}).await;
    let invalid = async |config, profile| match backend.fetch_matches(config, profile, Drain::new()).await {
        Err(Error::Invalid(text)) => text,
        other => panic!("{:?}", other.err()),
    };
    assert_eq!(invalid(None, Some(MatchProfile::default())).await, ".config is required");
    assert_eq!(invalid(Some(function.clone()), None).await, ".profile is required");
    let nowhere = FunctionConfig { port: 0, ..function };
    assert_eq!(
        invalid(Some(nowhere), Some(MatchProfile::default())).await,
        ".config.port must be from 1 to 65535"
    );
}

async fn match_without_tickets_is_returned(world: World) {
    let function = function(Kind::Grpc, async |_, proposals| {
        proposals.send(Ok(proposal("empty", &[]))).await.unwrap();
    });
    let (matches, error) = read(fetch(&world.backend(config()), &function.await).await).await;
    assert_eq!((names(&matches), error), (vec!["empty"], None));
}

async fn match_id_that_is_used_twice_fails_the_call(world: World) {
    let [a, b] = world.tickets().await;
    let sent = [proposal("1", &[&a]), proposal("1", &[&b])];
    let function = function(Kind::Grpc, move |_, proposals| {
        let sent = sent.clone();
        async move {
            for proposal in sent {
                let _ = proposals.send(Ok(proposal)).await;
            }
        }
    });
    let (matches, error) = read(fetch(&world.backend(config()), &function.await).await).await;
    assert_eq!(names(&matches), ["1"]);
    let text = error.unwrap();
    assert!(text.contains("MatchMakingFunction returned same match_id twice: \"1\""), "{text}");
    assert!(world.is_free(&b).await);
}

async fn error_of_the_match_function_reaches_the_caller(world: World) {
    for kind in KINDS {
        let a = world.ticket().await;
        let sent = proposal("1", &[&a]);
        let function = function(kind, move |_, proposals| {
            let sent = sent.clone();
            async move {
                proposals.send(Ok(sent)).await.unwrap();
                proposals.send(Err("no such map".to_owned())).await.unwrap();
            }
        });
        let (matches, error) = read(fetch(&world.backend(config()), &function.await).await).await;
        assert_eq!(names(&matches), ["1"], "what was returned before stands");
        let text = error.unwrap();
        assert!(text.starts_with("error(s) in FetchMatches call. syncErr=[<nil>], mmfErr=["), "{text}");
        assert!(text.contains("no such map"), "{text}");
    }
    let gone = FunctionConfig { host: "127.0.0.1".to_owned(), port: 1, ..Default::default() };
    let (_, error) = read(fetch(&world.backend(config()), &gone).await).await;
    assert!(
        error.unwrap().contains("mmfErr=[rpc error: code = Unavailable"),
        "an unreachable match function"
    );
    assert_eq!(world.counter("function_calls_total{outcome=\"failed\"}"), 3);
}

async fn match_function_that_runs_too_long_is_cancelled(world: World) {
    let cancelled = Arc::new(Notify::new());
    let ended = cancelled.clone();
    let function = function(Kind::Grpc, move |_, proposals| {
        let ended = ended.clone();
        async move {
            proposals.closed().await;
            ended.notify_one();
        }
    });
    let mut config = config();
    config.proposal_window = Duration::from_millis(200);
    let (matches, error) = read(fetch(&world.backend(config), &function.await).await).await;
    assert!(matches.is_empty());
    let text = error.unwrap();
    assert!(text.contains("mmfErr=[match function ran longer than proposal window, canceling]"), "{text}");
    tokio::time::timeout(PATIENCE, cancelled.notified()).await.unwrap();
    assert_eq!(world.counter("function_calls_total{outcome=\"timed_out\"}"), 1);
}

async fn matches_are_returned_while_the_match_function_runs(world: World) {
    for kind in KINDS {
        let a = world.ticket().await;
        let (sent, seen) = (proposal("1", &[&a]), Arc::new(Notify::new()));
        let go_on = seen.clone();
        let function = function(kind, move |_, proposals| {
            let (sent, go_on) = (sent.clone(), go_on.clone());
            async move {
                proposals.send(Ok(sent)).await.unwrap();
                go_on.notified().await;
                proposals.send(Ok(proposal("2", &[]))).await.unwrap();
            }
        });
        let mut stream = fetch(&world.backend(config()), &function.await).await;
        assert_eq!(stream.next().await.unwrap().unwrap().match_id, "1");
        seen.notify_one();
        assert_eq!(stream.next().await.unwrap().unwrap().match_id, "2");
        assert!(stream.next().await.is_none());
    }
}

async fn cancelled_call_cancels_the_match_function(world: World) {
    for kind in KINDS {
        let (begun, cancelled) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (begin, end) = (begun.clone(), cancelled.clone());
        let function = function(kind, move |_, proposals| {
            let (begin, end) = (begin.clone(), end.clone());
            async move {
                begin.notify_one();
                proposals.closed().await;
                end.notify_one();
            }
        });
        let stream = fetch(&world.backend(config()), &function.await).await;
        tokio::time::timeout(PATIENCE, begun.notified()).await.unwrap();
        drop(stream);
        tokio::time::timeout(PATIENCE, cancelled.notified()).await.unwrap();
    }
}

async fn cancelled_call_cancels_the_match_function_and_releases_its_tickets(world: World) {
    let [a, b, c] = world.tickets().await;
    let (sent, cancelled) = ([proposal("1", &[&a]), proposal("2", &[&b, &c])], Arc::new(Notify::new()));
    let ended = cancelled.clone();
    let function = function(Kind::Grpc, move |_, proposals| {
        let (sent, ended) = (sent.clone(), ended.clone());
        async move {
            for proposal in sent {
                proposals.send(Ok(proposal)).await.unwrap();
            }
            proposals.closed().await;
            ended.notify_one();
        }
    });
    let mut stream = fetch(&world.backend(config()), &function.await).await;
    assert_eq!(stream.next().await.unwrap().unwrap().match_id, "1");
    eventually("the second match is claimed", PATIENCE, async || !world.is_free(&c).await).await;
    drop(stream);
    tokio::time::timeout(PATIENCE, cancelled.notified()).await.unwrap();
    eventually("its tickets are released", PATIENCE, async || {
        world.is_free(&b).await && world.is_free(&c).await
    })
    .await;
    assert!(!world.is_free(&a).await, "the first match was delivered");
    assert_eq!(world.counter("director_matches_total{outcome=\"undelivered\"}"), 1);
}

async fn unread_matches_are_claimed_and_block_nobody(world: World) {
    let [a, b] = world.tickets().await;
    let both = [proposal("slow", &[&a]), proposal("next", &[&b])];
    let functions = both.map(|sent| {
        function(Kind::Grpc, move |_, proposals| {
            let sent = sent.clone();
            async move { proposals.send(Ok(sent)).await.unwrap() }
        })
    });
    let [slow, next] = functions;
    let backend = world.backend(config());
    let unread = fetch(&backend, &slow.await).await;
    eventually("the unread match is claimed", PATIENCE, async || !world.is_free(&a).await).await;
    let (matches, error) = read(fetch(&backend, &next.await).await).await;
    assert_eq!((names(&matches), error), (vec!["next"], None));
    let (matches, _) = read(unread).await;
    assert_eq!(names(&matches), ["slow"]);
}

async fn proposal_with_a_taken_or_unknown_ticket_is_dropped(world: World) {
    let [a, b, c, d] = world.tickets().await;
    world.store.delete(&id(&d)).await.unwrap();
    let sent = [
        proposal("first", &[&a, &b]),
        proposal("overlaps", &[&b, &c]),
        proposal("cancelled", &[&c, &d]),
        proposal("good", &[&c]),
    ];
    let function = function(Kind::Grpc, move |_, proposals| {
        let sent = sent.clone();
        async move {
            for proposal in sent {
                proposals.send(Ok(proposal)).await.unwrap();
            }
        }
    });
    let (matches, error) = read(fetch(&world.backend(config()), &function.await).await).await;
    assert_eq!((names(&matches), error), (vec!["first", "good"], None));
    assert_eq!(world.counter("director_matches_total{outcome=\"refused\"}"), 2);
    assert_eq!(world.counter("director_matches_total{outcome=\"returned\"}"), 2);
}

async fn directors_of_several_processes_never_get_the_same_ticket(world: World) {
    const COUNT: usize = 200;
    let tickets: [_; COUNT] = world.tickets().await;
    let mut calls = Vec::new();
    for number in 0..4 {
        // Each proposes pairs of all tickets, in another order.
        let mut order: Vec<usize> = (0..COUNT).collect();
        order.rotate_left(number * 7 + number);
        if number % 2 == 1 {
            order.reverse();
        }
        let pairs = order.chunks(2).enumerate();
        let sent: Vec<_> = pairs
            .map(|(at, pair)| proposal(&format!("{number}-{at}"), &[&tickets[pair[0]], &tickets[pair[1]]]))
            .collect();
        let function = function(Kind::Grpc, move |_, proposals| {
            let sent = sent.clone();
            async move {
                for proposal in sent {
                    proposals.send(Ok(proposal)).await.unwrap();
                }
            }
        })
        .await;
        let backend = world.backend(config());
        calls.push(tokio::spawn(async move { read(fetch(&backend, &function).await).await }));
    }
    let mut taken: Vec<String> = Vec::new();
    for call in calls {
        let (matches, error) = call.await.unwrap();
        assert_eq!(error, None);
        taken.extend(matches.iter().flat_map(|match_| &match_.tickets).map(|ticket| ticket.id.clone()));
    }
    let count = taken.len();
    assert!(count > COUNT / 2, "{count}");
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), count, "a ticket is in two matches");
}

async fn claims_of_a_dead_director_expire(world: World) {
    let world = world.with_pending_timeout(Duration::from_secs(1));
    let a = world.ticket().await;
    let sent = proposal("1", &[&a]);
    let function = function(Kind::Grpc, move |_, proposals| {
        let sent = sent.clone();
        async move { proposals.send(Ok(sent)).await.unwrap() }
    })
    .await;
    let backend = world.backend(config());
    let (matches, _) = read(fetch(&backend, &function).await).await;
    assert_eq!(names(&matches), ["1"]);
    eventually("another Director gets the ticket", PATIENCE, async || {
        world.clock.advance(Duration::from_millis(200));
        let (matches, _) = read(fetch(&backend, &function).await).await;
        !matches.is_empty()
    })
    .await;
}

async fn only_allowed_hosts_are_called(world: World) {
    let mut strict = config();
    strict.hosts = HostRules { allowed: vec!["mmf.internal".to_owned()] };
    let call = async |host: &str, rules: &HostRules| {
        let config = matchmaking::BackendConfig { hosts: rules.clone(), ..config() };
        let function = FunctionConfig { host: host.to_owned(), port: 80, ..Default::default() };
        let backend = world.backend(config);
        match backend.fetch_matches(Some(function), Some(MatchProfile::default()), Drain::new()).await {
            Err(Error::Invalid(text)) => text,
            other => panic!("{:?}", other.err()),
        }
    };
    let refused = call("127.0.0.1", &strict.hosts).await;
    assert!(refused.contains("matchmaking.director.function_hosts"), "{refused}");
    let refused = call("169.254.169.254", &HostRules::default()).await;
    assert!(refused.contains("link-local"), "{refused}");
}

async fn shutdown_ends_the_call_with_an_error(world: World) {
    let function = function(Kind::Grpc, async |_, proposals| proposals.closed().await).await;
    let drain = Drain::new();
    let backend = world.backend(config());
    let profile = Some(MatchProfile::default());
    let mut stream = backend.fetch_matches(Some(function), profile, drain.clone()).await.unwrap();
    drain.request();
    assert!(matches!(stream.next().await, Some(Err(Error::Stopping))));
    assert!(stream.next().await.is_none());
    assert_eq!(world.store.list(1).await.unwrap().0, Vec::<TicketId>::new());
}
