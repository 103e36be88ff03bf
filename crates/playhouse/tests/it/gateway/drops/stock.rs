//! The stock: polls, long polls and streams.

use std::time::Instant;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn long_poll_returns_when_the_stock_changes() {
    let sale = Sale::open(3, json!({})).await;
    let ada = sale.player("ada").await;
    let token = ada.admission().await;
    let first = sale.stock(&ada).await;
    assert_eq!(
        (&first["available"], &first["reserved"], &first["sold"], &first["total"]),
        (&json!(3), &json!(0), &json!(0), &json!(3))
    );
    let version = first["version"].as_i64().unwrap();
    let poll = async |after: i64, wait: u64| {
        let response = ada.get(&sale.path(&format!("/stock?after={after}&wait={wait}"))).await;
        assert_eq!(response.status, 200, "{response:?}");
        response.json()
    };
    // A poll with an old version returns at once, with the newest version after the wait.
    let started = Instant::now();
    assert_eq!(poll(version - 1, 30).await, first);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let started = Instant::now();
    assert_eq!(poll(version, 1).await, first);
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());

    let reads = async || sale.metric("playhouse_drops_stock_feed_reads_total").await;
    let before = reads().await;
    let reserve = async {
        // The first subscription of a process reads the stock. After that the poll waits.
        eventually("the poll waits", PATIENCE, async || reads().await > before).await;
        ada.reserve("one", 2, &token).await
    };
    let (waited, reserved) = tokio::join!(poll(version, 30), reserve);
    assert_eq!(reserved.status, 201, "{reserved:?}");
    assert_eq!((&waited["available"], &waited["reserved"]), (&json!(1), &json!(2)), "{waited}");
    assert_refused(&ada.get(&sale.path("/stock?after=1&wait=31")).await, 400, "drops:invalid");
    assert_problem(&ada.get(&sale.path("/stock?after=x")).await, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_sends_all_counts_and_then_every_change() {
    let sale = Sale::open(3, json!({})).await;
    let ada = sale.player("ada").await;
    let token = ada.admission().await;
    let request = sale.gateway.get(&sale.path("/stream")).bearer_auth(&ada.token);
    let mut stream = request.send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    let mut until = async |part: &str| {
        while !text.contains(part) {
            let chunk = tokio::time::timeout(PATIENCE, stream.chunk()).await.unwrap().unwrap().unwrap();
            text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
        std::mem::take(&mut text)
    };
    let first = until("\"available\":3").await;
    assert!(first.contains("event: stock\ndata: {\"version\":"), "{first}");
    assert_eq!(ada.reserve("one", 1, &token).await.status, 201);
    let changed = until("\"available\":2,\"reserved\":1,\"sold\":0}\n\n").await;
    let version = |text: &str| {
        let (_, rest) = text.rsplit_once("id: ").unwrap();
        rest.split('\n').next().unwrap().parse::<i64>().unwrap()
    };
    assert!(version(&changed) > version(&first), "{first} {changed}");
    // All counts are repeated without a change.
    let repeated = until("\"available\":2,\"reserved\":1,\"sold\":0}\n\n").await;
    assert_eq!(version(&repeated), version(&changed));
}
