use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::metrics::Metrics;

const CONFIG: Config = Config {
    start_timeout: Duration::from_secs(1),
    drain_delay: Duration::ZERO,
    grace: Duration::from_secs(10),
    restart: base::Backoff::new(Duration::from_millis(100), Duration::from_secs(5)),
};

type Started = Result<(), &'static str>;

/// Runs a process with the parts that `start` adds. Returns the sender of its signals.
fn run(
    process: Process,
    start: impl AsyncFnOnce(&mut Process) -> Started + 'static,
) -> (UnboundedSender<&'static str>, JoinHandle<Exit<&'static str>>) {
    let (sender, signals) = Signals::channel();
    let local = tokio::task::LocalSet::new();
    let handle = local.spawn_local(process.run(signals, start));
    tokio::task::spawn_local(local);
    (sender, handle)
}

fn process() -> (Process, Metrics) {
    let metrics = Metrics::new("0");
    (Process::new(CONFIG, metrics.clone()), metrics)
}

async fn until_ready(readiness: &Readiness) {
    while !readiness.report().is_ready() {
        tokio::task::yield_now().await;
    }
}

/// Runs a test that is not `Send` on one thread with paused time, which skips waits. A test that hangs fails at once after an hour
/// of paused time.
fn paused<F: Future<Output = ()> + 'static>(test: F) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(3600), test).await.expect("the test hangs");
    });
}

#[test]
fn parts_stop_in_reverse_order_of_stages() {
    paused(async {
        let (process, _) = process();
        let readiness = process.readiness().clone();
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = order.clone();
        let (signal, exit) = run(process, async move |process| {
            process.start(Stage::Listeners, "gateway", |drain, _| async move { drain.requested().await });
            let (in_loop, in_store) = (note.clone(), note.clone());
            process.close_at_end("db", async move { in_store.lock().unwrap().push("store") });
            process.supervise("relay", move |drain| {
                let order = in_loop.clone();
                async move {
                    drain.requested().await;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    order.lock().unwrap().push("loop");
                    Ok(())
                }
            });
            Ok(())
        });
        until_ready(&readiness).await;
        signal.send("SIGTERM").unwrap();
        assert!(matches!(exit.await.unwrap(), Exit::Clean));
        assert_eq!(*order.lock().unwrap(), ["loop", "store"]);
        assert_eq!(readiness.report().parts["process"], PartState::NotReady("draining".to_owned()));
    });
}

#[test]
fn loop_stops_after_the_loops_whose_work_it_finishes() {
    paused(async {
        let (process, _) = process();
        let readiness = process.readiness().clone();
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = order.clone();
        let (signal, exit) = run(process, async move |process| {
            // Those that stop later start earlier and stop faster.
            for (name, seconds) in [("intake", 0), ("relay", 1), ("engine", 2)] {
                let order = note.clone();
                process.supervise(name, move |drain| {
                    let order = order.clone();
                    async move {
                        drain.requested().await;
                        tokio::time::sleep(Duration::from_secs(seconds)).await;
                        order.lock().unwrap().push(name);
                        Ok(())
                    }
                });
            }
            process.stop_after("intake", &["relay"]);
            process.stop_after("relay", &["engine", "one that does not run here"]);
            Ok(())
        });
        until_ready(&readiness).await;
        signal.send("SIGTERM").unwrap();
        assert!(matches!(exit.await.unwrap(), Exit::Clean));
        assert_eq!(*order.lock().unwrap(), ["engine", "relay", "intake"]);
    });
}

#[test]
fn stuck_loop_leaves_time_for_later_loops() {
    paused(async {
        let (process, _) = process();
        let readiness = process.readiness().clone();
        let stopped = Arc::new(AtomicU32::new(0));
        let counted = stopped.clone();
        let (signal, exit) = run(process, async move |process| {
            process.supervise("engine", |_| std::future::pending());
            process.supervise("relay", move |drain| {
                let stopped = counted.clone();
                async move {
                    drain.requested().await;
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    stopped.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                }
            });
            process.stop_after("relay", &["engine"]);
            // Loops that wait for each other stop together.
            for name in ["a", "b"] {
                process.supervise(name, |drain| async move {
                    drain.requested().await;
                    Ok(())
                });
            }
            process.stop_after("a", &["b"]);
            process.stop_after("b", &["a"]);
            Ok(())
        });
        until_ready(&readiness).await;
        signal.send("SIGTERM").unwrap();
        let Exit::Forced(forced) = exit.await.unwrap() else { panic!("the engine stopped") };
        assert_eq!(forced, Forced::GraceOver(vec!["engine"]));
        assert_eq!(stopped.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn failed_start_stops_started_parts_and_returns_the_cause() {
    paused(async {
        let (process, _) = process();
        let (closed, was_closed) = oneshot::channel();
        let (_signal, exit) = run(process, async move |process| {
            process.close_at_end("db", async move { closed.send(()).unwrap() });
            Err("the bus is missing")
        });
        assert!(matches!(exit.await.unwrap(), Exit::StartFailed("the bus is missing")));
        assert_eq!(was_closed.await, Ok(()));
    });
}

#[test]
fn signal_ends_a_hanging_start() {
    paused(async {
        let (process, _) = process();
        let (signal, exit) = run(process, async |_| std::future::pending().await);
        signal.send("SIGINT").unwrap();
        assert!(matches!(exit.await.unwrap(), Exit::Clean));
    });
}

#[test]
fn loop_that_fails_panics_or_returns_is_restarted_with_backoff() {
    paused(async {
        let (process, metrics) = process();
        let readiness = process.readiness().clone();
        let runs = Arc::new(AtomicU32::new(0));
        let counted = runs.clone();
        let (healthy, is_healthy) = oneshot::channel();
        let healthy = Arc::new(Mutex::new(Some(healthy)));
        let started = tokio::time::Instant::now();
        let (signal, exit) = run(process, async move |process| {
            process.supervise("relay", move |drain| {
                let (run, healthy) = (counted.fetch_add(1, Ordering::SeqCst), healthy.clone());
                async move {
                    match run {
                        0 => Err("the broker is unreachable".into()),
                        1 => panic!("a bug"),
                        2 => Ok(()),
                        _ => {
                            healthy.lock().unwrap().take().unwrap().send(()).unwrap();
                            drain.requested().await;
                            Ok(())
                        }
                    }
                }
            });
            Ok(())
        });
        is_healthy.await.unwrap();
        // At least half of 100, 200 and 400 ms.
        assert!(started.elapsed() >= Duration::from_millis(350), "{:?}", started.elapsed());
        until_ready(&readiness).await;
        let text = metrics.encode();
        assert!(text.contains("playhouse_loop_restarts_total{loop=\"relay\"} 3"), "{text}");
        assert!(text.contains("playhouse_loop_running{loop=\"relay\"} 1"), "{text}");
        signal.send("SIGTERM").unwrap();
        assert!(matches!(exit.await.unwrap(), Exit::Clean));
        assert!(metrics.encode().contains("playhouse_loop_running{loop=\"relay\"} 0"));
    });
}

#[test]
fn parts_that_exceed_the_grace_period_are_aborted_and_named() {
    paused(async {
        let (process, _) = process();
        let readiness = process.readiness().clone();
        let (closed, was_closed) = oneshot::channel();
        let (signal, exit) = run(process, async move |process| {
            process.close_at_end("db", async move { closed.send(()).unwrap() });
            process.supervise("stuck", |_| std::future::pending());
            Ok(())
        });
        until_ready(&readiness).await;
        let started = tokio::time::Instant::now();
        signal.send("SIGTERM").unwrap();
        let Exit::Forced(forced) = exit.await.unwrap() else { panic!("expected to be forced") };
        assert!(forced.to_string().contains("stuck"), "{forced}");
        assert!(started.elapsed() <= CONFIG.grace, "{:?}", started.elapsed());
        assert!(was_closed.await.is_ok(), "the stores still have time to close");
    });
}

/// The shares apply to the time after the delay, so that an idle process is never aborted.
#[test]
fn long_drain_delay_aborts_nothing() {
    paused(async {
        let config = Config { drain_delay: Duration::from_millis(9_900), ..CONFIG };
        let process = Process::new(config, Metrics::new("0"));
        let readiness = process.readiness().clone();
        let (signal, exit) = run(process, async |process| {
            process.start(Stage::Listeners, "gateway", |drain, _| async move { drain.requested().await });
            process.supervise("relay", |drain| async move {
                drain.requested().await;
                Ok(())
            });
            Ok(())
        });
        until_ready(&readiness).await;
        signal.send("SIGTERM").unwrap();
        assert!(matches!(exit.await.unwrap(), Exit::Clean));
    });
}

#[test]
fn second_signal_stops_at_once() {
    paused(async {
        let (process, _) = process();
        let readiness = process.readiness().clone();
        let (signal, exit) = run(process, async |process| {
            process.supervise("stuck", |_| std::future::pending());
            Ok(())
        });
        until_ready(&readiness).await;
        let started = tokio::time::Instant::now();
        signal.send("SIGINT").unwrap();
        signal.send("SIGINT").unwrap();
        assert!(matches!(exit.await.unwrap(), Exit::Forced(Forced::SecondSignal)));
        assert!(started.elapsed() < Duration::from_secs(1));
    });
}

#[test]
fn part_that_ends_unexpectedly_stops_the_process() {
    paused(async {
        let (process, _) = process();
        let (_signal, exit) = run(process, async |process| {
            process.start(Stage::Listeners, "gateway", |_, _| async { panic!("accept failed") });
            Ok(())
        });
        assert!(matches!(exit.await.unwrap(), Exit::PartEnded("gateway")));
    });
}

fn needs(role: &'static str, takes_requests: bool, db: Impact, bus: Impact) -> RoleNeeds {
    let need = |part, impact| PartNeed { part, impact, effect: format!("without {part}") };
    RoleNeeds { role, takes_requests, needs: vec![need("db", db), need("bus", bus)] }
}

#[test]
fn roles_that_take_requests_decide_whether_the_process_is_ready() {
    let gateway = needs("gateway", true, Impact::NotReady, Impact::Degraded);
    let relay = needs("relay", false, Impact::NotReady, Impact::NotReady);
    let state = |roles: &[&RoleNeeds], down: &str| {
        let readiness = Readiness::default();
        readiness.declare(roles.iter().map(|role| (*role).clone()).collect());
        for name in ["db", "bus", "process"] {
            let part = readiness.part(name);
            assert!(name != "process" || !readiness.report().is_ready(), "still starting");
            part.ready();
        }
        assert!(readiness.report().is_ready() && !readiness.report().is_degraded());
        readiness.part(down).not_ready("unreachable");
        let report = readiness.report();
        let roles: Vec<bool> = report.roles.iter().map(RoleReport::is_ready).collect();
        (report.is_ready(), report.is_degraded(), roles)
    };
    assert_eq!(state(&[&gateway], "bus"), (true, true, vec![true]));
    assert_eq!(state(&[&gateway], "db"), (false, true, vec![false]));
    assert_eq!(
        state(&[&relay], "bus"),
        (false, true, vec![false]),
        "a process without listeners depends on its loops"
    );
    assert_eq!(state(&[&gateway, &relay], "bus"), (true, true, vec![true, false]));
    assert_eq!(state(&[&gateway, &relay], "process"), (false, false, vec![true, true]), "draining");
    let unaffected = needs("frontend", true, Impact::Unaffected, Impact::Unaffected);
    assert_eq!(state(&[&unaffected], "db"), (true, false, vec![true]));
}
