//! Every change that the client repeats, with the response to its first attempt lost after the commit: it has one effect, and the call
//! succeeds. The reservation, which takes a key, is in `promises`.

use reqwest::Method;
use serde_json::{Value, json};
use testkit::{Browser, JavaScript, eventually, need};

use super::PATIENCE;
use super::host::{Host, PageHost};
use super::promises::{admit, sign_in_browser, signed_in_node};
use super::sign_in;
use super::world::World;

/// A player who reaches the gateway past the network that is cut.
struct Direct<'a> {
    world: &'a World,
    token: String,
    user_id: String,
}

impl<'a> Direct<'a> {
    async fn sign_in(world: &'a World, name: &str) -> Self {
        let token = sign_in::tokens(&world.url(), name).await.access_token;
        let mut player = Self { world, token, user_id: String::new() };
        player.user_id = text(&player.get("/v1/me").await["user_id"]);
        player
    }

    async fn get(&self, path: &str) -> Value {
        self.send(Method::GET, path, &Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        self.send(Method::POST, path, &body).await
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Value {
        let url = format!("http://{}{path}", self.world.address("gateway"));
        self.world.request(method, &url, &self.token, body).await
    }

    /// Returns the player's tickets.
    async fn tickets(&self) -> Vec<Value> {
        list(&self.get("/v1/matchmaking/tickets").await, "tickets")
    }

    /// Waits until a ticket of the player is in this state.
    async fn wait_for_ticket(&self, ticket: &str, state: &str) {
        eventually(&format!("the ticket is {state}"), PATIENCE, async || {
            let found = self.get(&format!("/v1/matchmaking/tickets/{ticket}")).await;
            if found["state"] == state { Ok(()) } else { Err(found) }
        })
        .await;
    }

    async fn party(&self) -> Value {
        self.get("/v1/parties").await["party"].clone()
    }

    async fn members(&self) -> Vec<String> {
        list(&self.party().await, "members").iter().map(|member| text(&member["user_id"])).collect()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value}")).to_owned()
}

fn list(value: &Value, name: &str) -> Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("{value}")).clone()
}

/// Begins a call, loses its response after `is_committed`, and returns what the call returns once the network works again.
async fn lose(world: &World, host: &impl Host, call: &str, is_committed: impl AsyncFn() -> bool) -> Value {
    let begin = async || {
        let code = format!(
            "state.isAnswered = false;
            state.call = state.client.{call};
            state.call.catch(() => {{}}).finally(() => (state.isAnswered = true));"
        );
        host.run(&code).await;
    };
    world.cut_after_commit(begin, is_committed).await;
    assert_eq!(host.run("return state.isAnswered;").await, false, "the response to {call} was lost");
    world.network.pass().await;
    host.run("return await state.call;").await
}

async fn every_lost_response(world: &World, host: &impl Host) {
    let (ada, bob) = (Direct::sign_in(world, "ada").await, Direct::sign_in(world, "grace").await);
    host.run("state.client = connect();").await;
    tickets(world, host, &ada, &bob).await;
    parties(world, host, &ada, &bob).await;
    sale(world, host, &ada).await;
    inbox(world, host, &ada).await;
    host.run("state.client.close();").await;
}

async fn tickets(world: &World, host: &impl Host, ada: &Direct<'_>, bob: &Direct<'_>) {
    let create = "tickets.create({ queue: 'duel' })";
    let waiting = lose(world, host, create, async || ada.tickets().await.len() == 1).await;
    let [ticket] = &ada.tickets().await[..] else { panic!("one ticket was created") };
    assert_eq!(ticket["ticket_id"], waiting["ticket_id"]);
    let (ticket, bobs) =
        (text(&ticket["ticket_id"]), bob.post("/v1/matchmaking/tickets", json!({ "queue": "duel" })).await);
    let bobs = text(&bobs["ticket_id"]);

    // The first player who accepts, and the last one: then the check is over when the call is repeated.
    let mut previous = ticket.clone();
    let mut bobs_previous = bobs;
    for is_last in [false, true] {
        ada.wait_for_ticket(&previous, "READY_CHECK").await;
        let (accepted, accepts) =
            (if is_last { 2 } else { 1 }, format!("/v1/matchmaking/tickets/{bobs_previous}/accept"));
        if is_last {
            bob.post(&accepts, Value::Null).await;
        }
        let path = format!("/v1/matchmaking/tickets/{previous}");
        let is_committed = async || {
            let found = ada.get(&path).await;
            found["ready_check"]["accepted"] == accepted || found["state"] == "ASSIGNED"
        };
        let answered = lose(world, host, &format!("tickets.accept({})", json!(previous)), is_committed).await;
        assert_eq!(answered["ticket_id"], json!(previous));
        if !is_last {
            bob.post(&accepts, Value::Null).await;
        }
        ada.wait_for_ticket(&previous, "ASSIGNED").await;
        bob.wait_for_ticket(&bobs_previous, "ASSIGNED").await;

        let again = format!("tickets.create({{ queue: 'duel', replaces: {} }})", json!(previous));
        let is_committed =
            async || ada.tickets().await.iter().any(|ticket| ticket["ticket_id"] != json!(previous));
        let next = lose(world, host, &again, is_committed).await;
        let found: Vec<Value> =
            ada.tickets().await.iter().map(|ticket| ticket["ticket_id"].clone()).collect();
        assert_eq!(found, [next["ticket_id"].clone()], "the ticket was replaced once");
        previous = text(&next["ticket_id"]);
        if !is_last {
            let body = json!({ "queue": "duel", "replaces": bobs_previous });
            bobs_previous = text(&bob.post("/v1/matchmaking/tickets", body).await["ticket_id"]);
        }
    }
    host.run(&format!("await state.client.tickets.cancel({});", json!(previous))).await;
}

async fn parties(world: &World, host: &impl Host, ada: &Direct<'_>, bob: &Direct<'_>) {
    let created = lose(world, host, "parties.create({})", async || !ada.party().await.is_null()).await;
    assert_eq!(ada.party().await["party_id"], created["party_id"], "one party");

    bob.post("/v1/parties/join", json!({ "code": created["code"] })).await;
    let hand_over = format!("parties.handOver({{ user_id: {} }})", json!(bob.user_id));
    let handed_over =
        lose(world, host, &hand_over, async || ada.party().await["leader"] == json!(bob.user_id)).await;
    assert_eq!(handed_over["leader"], json!(bob.user_id));
    assert_eq!(ada.members().await.len(), 2);

    host.run("await state.client.parties.leave();").await;
    let join = format!("parties.join({{ code: {} }})", created["code"]);
    let joined = lose(world, host, &join, async || bob.members().await.contains(&ada.user_id)).await;
    assert_eq!(joined["party_id"], created["party_id"]);
    assert_eq!(bob.members().await, [bob.user_id.clone(), ada.user_id.clone()], "each member once");

    bob.post("/v1/parties/leader", json!({ "user_id": ada.user_id })).await;
    let queued =
        lose(world, host, "parties.queue({ queue: 'duel' })", async || ada.tickets().await.len() == 1).await;
    for player in [ada, bob] {
        let tickets = player.tickets().await;
        let ids: Vec<&Value> = tickets.iter().map(|ticket| &ticket["ticket_id"]).collect();
        assert_eq!(ids, [&queued["ticket_id"]], "the party has one ticket");
    }
    host.run("await state.client.parties.leave();").await;
}

async fn sale(world: &World, host: &impl Host, ada: &Direct<'_>) {
    let drop = world.open_drop().await;
    let path = format!("/v1/drops/{drop}/place");
    let joined = async || ada.get(&path).await["state"] != "not_joined";
    let place = lose(world, host, &format!("drops.join({})", json!(drop)), joined).await;
    let entries = world.entries(&drop).await;
    assert_eq!(list(&entries, "entries").len(), 1, "{place} {entries}");

    let drop = admit(world, host).await;
    let reserve = "const body = { quantity: 1, admission: state.admission };
        return (state.reservation = (await state.client.drops.reserve(state.drop, body)).reservation_id);";
    let reservation = host.run(reserve).await;
    let orders = async || list(&ada.get("/v1/orders").await, "orders");
    let order =
        lose(world, host, "drops.pay(state.drop, state.reservation)", async || orders().await.len() == 1)
            .await;
    let found = orders().await;
    let ids: Vec<(&Value, &Value)> =
        found.iter().map(|order| (&order["order_id"], &order["reservation_id"])).collect();
    assert_eq!(ids, [(&order["order_id"], &reservation)], "one order of {drop}");
}

async fn inbox(world: &World, host: &impl Host, ada: &Direct<'_>) {
    for title in ["one", "two", "three"] {
        world.notify(&ada.user_id, title).await;
    }
    let unread = async || ada.get("/v1/notifications/counts").await["unread"].as_u64().unwrap();
    eventually("they are in the inbox", PATIENCE, async || {
        let count = unread().await;
        if count >= 3 { Ok(()) } else { Err(count) }
    })
    .await;
    let newest = ada.get("/v1/notifications?limit=2").await;
    let position = newest["notifications"][1]["position"].as_u64().unwrap();
    let mark = format!("inbox.mark({{ mark: 'read', up_to: {position} }})");
    let counts = lose(world, host, &mark, async || unread().await == 1).await;
    assert_eq!((&counts["unread"], unread().await), (&json!(1), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn node_each_lost_response_has_one_effect() {
    let tools = need!(JavaScript::find());
    let world = World::dev().await;
    world.ask_players().await;
    every_lost_response(&world, &signed_in_node(&tools, &world).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chromium_each_lost_response_has_one_effect() {
    let browser = need!(Browser::start().await);
    let world = World::dev().await;
    world.ask_players().await;
    sign_in_browser(&browser, &world).await;
    every_lost_response(&world, &PageHost::start(browser, &world.url()).await).await;
}
