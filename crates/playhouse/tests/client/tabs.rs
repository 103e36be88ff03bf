//! What only browsers have: tabs that share a queue, and the events of a network that goes and comes.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Browser, eventually, need};

use super::PATIENCE;
use super::host::Host;
use super::promises::{admit, signed_in_page};
use super::world::World;

/// How many actions each tab queues.
const ACTIONS: usize = 4;

/// How long a byte takes in each direction.
const SLOW: Duration = Duration::from_millis(200);

/// Creates a client that notes the key of each reservation that is answered.
const CONNECT: &str = "
    state.answered = [];
    state.client = connect({ deadline: 5000, fetch: async (url, init) => {
        const response = await fetch(url, init);
        if (url.endsWith('/reservations')) state.answered.push(init.headers['idempotency-key']);
        return response;
    } });";

/// Returns code that queues a reservation of the admitted player, and returns its key.
fn reserve(drop: &str, admission: &Value) -> String {
    format!(
        "return state.client.queue.add('drops.reserve', [{}, {{ quantity: 1, admission: {admission} }}]).key;",
        json!(drop)
    )
}

async fn wait_until_sent(host: &impl Host) {
    eventually("the queue is empty", PATIENCE, async || {
        let size = host.run("return state.client.queue.size;").await;
        if size == 0 { Ok(()) } else { Err(size) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chromium_two_tabs_send_each_queued_action_once() {
    let browser = need!(Browser::start().await);
    let world = World::dev().await;
    let host = signed_in_page(browser, &world).await;
    let drop = admit(&world, &host).await;
    let admission = host.run("state.client.close(); return state.admission;").await;
    let first = host.browser.tab().await;
    let second = host.browser.open_tab().await;
    host.browser.goto(format!("{}/docs", world.url())).await;
    for tab in [&first, &second] {
        host.browser.switch_to_tab(tab).await;
        host.run(CONNECT).await;
    }
    world.network.cut().await;
    let mut added = Vec::new();
    for _ in 0..ACTIONS {
        for tab in [&first, &second] {
            host.browser.switch_to_tab(tab).await;
            added.push(host.run(&reserve(&drop, &admission)).await);
        }
    }
    assert_eq!(world.reserved(&drop).await, 0);
    // Slow, so that both tabs send at the same time unless one waits for the other.
    world.network.delay(SLOW).await;
    for tab in [&first, &second] {
        host.browser.switch_to_tab(tab).await;
        host.run("state.flushing = state.client.queue.flush();").await;
    }
    let mut answered: Vec<Value> = Vec::new();
    for tab in [&first, &second] {
        host.browser.switch_to_tab(tab).await;
        wait_until_sent(&host).await;
        let found = host.run("await state.flushing; state.client.close(); return state.answered;").await;
        answered.extend(found.as_array().unwrap().iter().cloned());
    }
    assert_eq!(world.reserved(&drop).await, (2 * ACTIONS) as i64);
    assert_eq!(answered, added, "each was sent once, in the order in which they were added");
}

#[tokio::test(flavor = "multi_thread")]
async fn chromium_queue_is_sent_when_the_browser_comes_online() {
    let browser = need!(Browser::start().await);
    let world = World::dev().await;
    let host = signed_in_page(browser, &world).await;
    let drop = admit(&world, &host).await;
    // After a failure this client waits for days. Only the event of the browser is sooner.
    host.run("state.client.close(); state.client = connect({ random: () => 1e6 });").await;
    host.browser.set_offline(true).await;
    let admission = host.run("return state.admission;").await;
    host.run(&reserve(&drop, &admission)).await;
    host.run("await state.client.queue.flush();").await;
    assert_eq!(host.run("return [navigator.onLine, state.client.queue.size];").await, json!([false, 1]));
    assert_eq!(world.reserved(&drop).await, 0);
    host.browser.set_offline(false).await;
    wait_until_sent(&host).await;
    assert_eq!(world.reserved(&drop).await, 1);
    host.run("state.client.close();").await;
}
