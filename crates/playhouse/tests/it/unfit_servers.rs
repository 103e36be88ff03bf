//! Servers that answer like the ones we need and do not do what they do: refused at start and by the doctor, with the reason.

use testkit::{Redis, Rewriter, need};

use super::fleet::Fleet;
use super::*;

/// A process does not start on the servers of this environment, and the doctor says the same.
async fn refused(fleet: &Fleet, variable: &str, url: &str, reasons: &[&str]) {
    let (code, out, errors) = run(fleet.serve(&["--set", "db.migrate=true"]).env(variable, url)).await;
    assert_eq!((code, out.as_str()), (1, ""), "it started: {errors}");
    let (code, said, _) = run(fleet.run(&["doctor"]).env(variable, url)).await;
    assert_eq!(code, 1, "{said}");
    let failed: Vec<&str> = said.lines().filter(|line| line.contains("FAIL")).collect();
    for reason in reasons {
        assert!(errors.contains(reason), "the start says nothing of {reason:?}: {errors}");
        assert!(
            failed.iter().any(|line| line.contains(reason)),
            "the doctor says nothing of {reason:?}:\n{said}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cluster_is_refused() {
    let fleet = need!(Fleet::start().await);
    let cluster = need!(Redis::builder().cluster().start().await);
    refused(&fleet, "PLAYHOUSE_HOT_URL", &cluster.url(), &["is a Redis Cluster (cluster_enabled:1)"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_evicts_keys_is_refused() {
    let fleet = need!(Fleet::start().await);
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let evicting = Redis::builder().arg("--maxmemory").arg("100mb").arg("--maxmemory-policy").arg(policy);
        let evicting = need!(evicting.start().await);
        let reason = format!("evicts keys when memory is short (maxmemory-policy {policy})");
        refused(&fleet, "PLAYHOUSE_HOT_URL", &evicting.url(), &[&reason]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_refuses_scripts_is_refused_with_its_words() {
    let fleet = need!(Fleet::start().await);
    // One user may run no scripts, another may not append to streams.
    let users = [
        "--user scriptless on nopass ~* &* +@all -@scripting",
        "--user streamless on nopass ~* &* +@all -xadd",
    ];
    let words = users.iter().flat_map(|user| user.split(' '));
    let redis = words.fold(Redis::builder(), |redis, word| redis.arg(word));
    let redis = need!(redis.start().await);
    let as_user = |user: &str| redis.url().replace("redis://", &format!("redis://{user}:x@"));
    let scriptless = as_user("scriptless");
    refused(&fleet, "PLAYHOUSE_HOT_URL", &scriptless, &["does not run the script", "has no permissions"])
        .await;
    let streamless = as_user("streamless");
    let reasons = ["does not run the script matchmaking/assign.lua", "can't run this command"];
    refused(&fleet, "PLAYHOUSE_HOT_URL", &streamless, &reasons).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trials_of_scripts_leave_nothing_behind() {
    let fleet = need!(Fleet::start().await);
    assert_eq!(run(fleet.run(&["migrate"])).await.0, 0);
    let (_, said, _) = run(fleet.run(&["doctor"])).await;
    assert!(
        said.contains("ok    runs our ") && said.contains("ok    skips rows that others have locked"),
        "{said}"
    );
    let keys = fleet.redis.keyspace();
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut keys.connect().await).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tidb_is_refused() {
    let fleet = need!(Fleet::start().await);
    let tidb = Rewriter::to(fleet.sql.addr(), "MariaDB", "TiDB-v7").await;
    let url = tidb.url(fleet.database.url());
    refused(&fleet, "PLAYHOUSE_DB_URL", &url, &["it is TiDB", "ignores SKIP LOCKED"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_server_that_ignores_skip_locked_is_refused() {
    let fleet = need!(Fleet::start().await);
    assert_eq!(run(fleet.run(&["migrate"])).await.0, 0);
    assert_eq!(run(fleet.run(&["locks", "provision"])).await.0, 0);
    // A first start writes the row that the probe locks.
    let running = fleet.serve(&[]).start().unwrap();
    addresses(&running).await;
    running.sigterm();
    running.wait(PATIENCE).await;
    let deaf = Rewriter::to(fleet.sql.addr(), " SKIP LOCKED", "            ").await;
    let url = deaf.url(fleet.database.url());
    refused(&fleet, "PLAYHOUSE_DB_URL", &url, &["with SKIP LOCKED it waits for a row"]).await;
}
