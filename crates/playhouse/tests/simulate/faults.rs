//! Three processes on MariaDB, Redis and NATS, which the simulator kills and restarts.

use testkit::{Nats, Redis, SqlServer, need};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn fleet_keeps_every_promise_while_its_processes_are_killed() {
    let servers = async { tokio::try_join!(SqlServer::private(), Redis::private(), Nats::private()) };
    let (sql, redis, nats) = need!(servers.await);
    let (database, folder) = (sql.database().await, Folder::fresh().unwrap());
    let config = folder.path().join("fleet.toml");
    let text = format!(
        "[db]\nurl = \"{}\"\nmigrate = true\n[redis]\nurl = \"{}\"\n[bus]\nurl = \"{}\"\n[locks]\nbuckets = 1000\n\
         [gateway.session]\nkeys = [\"0123456789abcdef0123456789abcdef\"]\n\
         [matchmaking.profiles.duel]\nplayers = 2\nassigner = \"any\"\n\
         [matchmaking.assigners.any]\naddresses = [\"{{match_id}}.test:7777\"]\n[matchmaking.queues.duel]\n",
        database.url(),
        redis.url(),
        nats.url(),
    );
    std::fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    let args = [
        "--processes",
        "3",
        "--config",
        config,
        "--faults",
        "--players",
        "200",
        "--seed",
        "5",
        "--with",
        "arrival.over=8s",
        "--with",
        "drop.stock=60",
        "--with",
        "drop.batch=15",
        "--with",
        "faults.every=3s",
        "--with",
        "faults.down_for=1s",
        "--with",
        "matchmaking.patience=60s",
    ];
    let (code, text, report) = simulate(&folder, &args).await;
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(report["outcomes"]["bought"], 60, "{text}");
    let kills = report["marks"].as_array().unwrap().iter();
    let kills = kills.filter(|mark| mark["what"].as_str().unwrap().ends_with("is killed")).count();
    assert!(kills >= 2, "{kills} kills: {text}");
}
