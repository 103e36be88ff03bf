//! The stock: polled, waited for, followed.

use std::time::Instant;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_answers_when_something_newer_is_known() {
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
        let answer = ada.get(&sale.path(&format!("/stock?after={after}&wait={wait}"))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    };
    // An older version than the newest is answered at once; nothing newer, after the wait.
    let began = Instant::now();
    assert_eq!(poll(version - 1, 30).await, first);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let began = Instant::now();
    assert_eq!(poll(version, 1).await, first);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());

    let reads = async || sale.metric("drops_stock_feed_reads_total").await;
    let before = reads().await;
    let reserve = async {
        // The first watch of a process reads the stock: from then on the poll waits.
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
async fn a_stream_begins_with_all_counts_and_goes_on_with_every_change() {
    let sale = Sale::open(3, json!({})).await;
    let ada = sale.player("ada").await;
    let token = ada.admission().await;
    let request = sale.door.get(&sale.path("/stream")).bearer_auth(&ada.token);
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
    // The whole of it is repeated without any change.
    let repeated = until("\"available\":2,\"reserved\":1,\"sold\":0}\n\n").await;
    assert_eq!(version(&repeated), version(&changed));
}
