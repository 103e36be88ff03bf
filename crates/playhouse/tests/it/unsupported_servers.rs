//! Servers that lack a required feature: the start and `playhouse doctor` refuse them with the reason.

use testkit::{Redis, Rewriter, need};

use super::fleet::Fleet;
use super::*;

/// Asserts that a process does not start on this server and that `playhouse doctor` reports the same reasons.
async fn assert_refused(fleet: &Fleet, variable: &str, url: &str, reasons: &[&str]) {
    let (code, out, errors) = run(fleet.serve(&["--set", "db.migrate=true"]).env(variable, url)).await;
    assert_eq!((code, out.as_str()), (1, ""), "it started: {errors}");
    let (code, said, _) = run(fleet.run(&["doctor"]).env(variable, url)).await;
    assert_eq!(code, 1, "{said}");
    let failed: Vec<&str> = said.lines().filter(|line| line.contains("FAIL")).collect();
    for reason in reasons {
        assert!(errors.contains(reason), "the start does not report {reason:?}: {errors}");
        assert!(
            failed.iter().any(|line| line.contains(reason)),
            "the doctor does not report {reason:?}:\n{said}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cluster_is_refused() {
    let fleet = need!(Fleet::start().await);
    let cluster = need!(Redis::builder().cluster().start().await);
    assert_refused(
        &fleet,
        "PLAYHOUSE_REDIS_URL",
        &cluster.url(),
        &["is a Redis Cluster (cluster_enabled:1)"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_evicts_keys_is_refused() {
    let fleet = need!(Fleet::start().await);
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let evicting = Redis::builder().arg("--maxmemory").arg("100mb").arg("--maxmemory-policy").arg(policy);
        let evicting = need!(evicting.start().await);
        let reason = format!("evicts keys when memory is short (maxmemory-policy {policy})");
        assert_refused(&fleet, "PLAYHOUSE_REDIS_URL", &evicting.url(), &[&reason]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_refuses_scripts_is_refused_with_its_error() {
    let fleet = need!(Fleet::start().await);
    // One user may not run scripts, the other may not append to streams.
    let users = [
        "--user scriptless on nopass ~* &* +@all -@scripting",
        "--user streamless on nopass ~* &* +@all -xadd",
    ];
    let words = users.iter().flat_map(|user| user.split(' '));
    let redis = words.fold(Redis::builder(), |redis, word| redis.arg(word));
    let redis = need!(redis.start().await);
    let as_user = |user: &str| redis.url().replace("redis://", &format!("redis://{user}:x@"));
    let scriptless = as_user("scriptless");
    assert_refused(&fleet, "PLAYHOUSE_REDIS_URL", &scriptless, &["rejects the script", "has no permissions"])
        .await;
    let streamless = as_user("streamless");
    let reasons = ["rejects the script matchmaking/assign.lua", "can't run this command"];
    assert_refused(&fleet, "PLAYHOUSE_REDIS_URL", &streamless, &reasons).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn script_trials_leave_no_keys_behind() {
    let fleet = need!(Fleet::start().await);
    assert_eq!(run(fleet.run(&["migrate"])).await.0, 0);
    let (_, said, _) = run(fleet.run(&["doctor"])).await;
    assert!(said.contains("ok    runs all ") && said.contains("ok    SKIP LOCKED works"), "{said}");
    let keys = fleet.redis.namespace();
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut keys.connect().await).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tidb_is_refused() {
    let fleet = need!(Fleet::start().await);
    let tidb = Rewriter::to(fleet.sql.addr(), "MariaDB", "TiDB-v7").await;
    let url = tidb.url(fleet.database.url());
    assert_refused(&fleet, "PLAYHOUSE_DB_URL", &url, &["the server is TiDB", "ignores SKIP LOCKED"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_server_that_ignores_skip_locked_is_refused() {
    let fleet = need!(Fleet::start().await);
    assert_eq!(run(fleet.run(&["migrate"])).await.0, 0);
    assert_eq!(run(fleet.run(&["locks", "provision"])).await.0, 0);
    // The first start writes the row that the probe locks.
    let running = fleet.serve(&[]).start().unwrap();
    addresses(&running).await;
    running.sigterm();
    running.wait(PATIENCE).await;
    let ignoring = Rewriter::to(fleet.sql.addr(), " SKIP LOCKED", "            ").await;
    let url = ignoring.url(fleet.database.url());
    assert_refused(&fleet, "PLAYHOUSE_DB_URL", &url, &["with SKIP LOCKED the server waits for a row"]).await;
}
