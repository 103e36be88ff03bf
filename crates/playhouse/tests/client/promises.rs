//! What the client promises while the network and the gateway fail, in Node and in Chromium.

use std::time::Duration;

use serde_json::json;
use testkit::issuer::{Issuer, Signer};
use testkit::{Browser, ClientUris, JavaScript, OidcClients, OidcProvider, Rewriter, eventually, need};

use super::PATIENCE;
use super::host::{Host, NodeHost, PageHost};
use super::sign_in;
use super::world::World;

/// Signs the browser in at the builtin issuer.
pub(super) async fn sign_in_browser(browser: &Browser, world: &World) {
    browser.goto(format!("{}/login?return_to=/docs", world.url())).await;
    browser.click("button[value=ada]").await;
    browser.wait_for_url(|url| url.ends_with("/docs"), PATIENCE).await;
}

/// Returns a page whose player is signed in at the builtin issuer.
pub(super) async fn signed_in_page(browser: Browser, world: &World) -> PageHost {
    sign_in_browser(&browser, world).await;
    PageHost::start(browser, &world.url()).await
}

/// Returns a Node process whose player is signed in at the builtin issuer.
pub(super) async fn signed_in_node(tools: &JavaScript, world: &World) -> NodeHost {
    let tokens = sign_in::tokens(&world.url(), "ada").await;
    NodeHost::start(tools, &world.url(), &tokens.access_token).await
}

/// Opens a drop and admits the player. `state.drop` and `state.admission` are set. Returns the drop.
pub(super) async fn admit(world: &World, host: &impl Host) -> String {
    let drop = world.open_drop().await;
    let code = format!(
        "state.client = connect();
        state.drop = {};
        await state.client.drops.join(state.drop);
        for (;;) {{
            const place = await state.client.drops.place(state.drop);
            if (place.admission) {{
                state.admission = place.admission.token;
                return;
            }}
            await new Promise((resolve) => setTimeout(resolve, 200));
        }}",
        json!(drop)
    );
    host.run(&code).await;
    drop
}

/// Returns the ids of the reservations that a drop's ledger has, in order.
async fn reservations(world: &World, drop: &str) -> Vec<String> {
    let ledger = world.ledger(drop).await;
    let entries = ledger["entries"].as_array().unwrap_or_else(|| panic!("{ledger}"));
    let ids = entries.iter().filter_map(|entry| entry["reservation_id"].as_str().map(str::to_owned));
    // The newest entry is the first.
    let mut ids: Vec<String> = ids.collect();
    ids.reverse();
    ids
}

async fn response_lost_after_the_commit(world: &World, host: &impl Host) {
    let drop = admit(world, host).await;
    let reserve = async || {
        let code = "
            state.call = state.client.drops.reserve(state.drop, { quantity: 1, admission: state.admission });
            state.call.catch(() => {}).finally(() => (state.isAnswered = true));";
        host.run(code).await;
    };
    world.cut_after_commit(reserve, async || world.reserved(&drop).await == 1).await;
    assert_eq!(host.run("return state.isAnswered ?? false;").await, false, "the response was lost");
    world.network.pass().await;
    let reservation = host.run("return await state.call;").await;
    assert_eq!(reservation["state"], "HELD", "{reservation}");
    assert_eq!(world.reserved(&drop).await, 1);
    assert_eq!(reservations(world, &drop).await, [reservation["reservation_id"].as_str().unwrap()]);
    host.run("state.client.close();").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_response_lost_after_the_commit_has_one_effect() {
    let tools = need!(JavaScript::find());
    let world = World::dev().await;
    response_lost_after_the_commit(&world, &signed_in_node(&tools, &world).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chromium_response_lost_after_the_commit_has_one_effect() {
    let browser = need!(Browser::start().await);
    let world = World::dev().await;
    response_lost_after_the_commit(&world, &signed_in_page(browser, &world).await).await;
}

/// How often the gateway is killed, and how many notifications are sent before and after each time.
const ROUNDS: usize = 3;
const BEFORE: usize = 30;
const AFTER: usize = 10;

/// Starts the player's stream and records everything. Returns the user.
async fn start_live(host: &impl Host, options: &str) -> String {
    let code = format!(
        "state.client = connect();
        Object.assign(state, {{ titles: [], homes: 0, states: [] }});
        const live = state.client.live({options});
        live.on('notification', (notification) => state.titles.push(notification.title));
        live.on('home', () => (state.homes += 1));
        live.on('state', (liveState) => state.states.push(liveState));
        while (!['open', 'polling'].includes(live.state)) await new Promise((resolve) => setTimeout(resolve, 20));
        return live.home.account.data.user_id;"
    );
    host.run(&code).await.as_str().unwrap().to_owned()
}

/// Waits until the client has this many notifications.
async fn wait_for_count(host: &impl Host, expected: usize) {
    eventually("the notifications", PATIENCE, async || {
        let count = host.run("return state.titles.length;").await.as_u64().unwrap() as usize;
        if count >= expected { Ok(()) } else { Err(format!("{count} of {expected}")) }
    })
    .await;
}

async fn assert_titles(host: &impl Host, expected: &[String]) {
    wait_for_count(host, expected.len()).await;
    assert_eq!(
        host.run("return state.titles;").await,
        json!(expected),
        "in order, nothing lost, nothing repeated"
    );
}

async fn wait_for_state(host: &impl Host, expected: &str) {
    eventually(&format!("the client is {expected}"), PATIENCE, async || {
        let state = host.run("return state.client.live().state;").await;
        if state == expected { Ok(()) } else { Err(state) }
    })
    .await;
}

/// Sends notifications and kills the gateway while it delivers them, several times.
async fn kill_gateways(world: &mut World, host: &impl Host, user: &str) -> Vec<String> {
    let mut titles = Vec::new();
    for round in 0..ROUNDS {
        for n in 0..BEFORE {
            titles.push(format!("round {round}, number {n}"));
            world.notify(user, titles.last().unwrap()).await;
        }
        world.kill_gateway().await;
        for n in 0..AFTER {
            titles.push(format!("round {round}, while it is down, number {n}"));
            world.notify(user, titles.last().unwrap()).await;
        }
        wait_for_state(host, "offline").await;
        world.start_gateway().await;
        // The next gateway is killed while the client has its stream.
        wait_for_count(host, titles.len()).await;
    }
    titles
}

/// Signs the browser in at the issuer of a fleet.
async fn sign_in_at_provider(browser: &Browser, provider: &OidcProvider, world: &World) {
    provider.set_uris(&ClientUris::at(&world.url())).await;
    browser.goto(format!("{}/login?return_to=/docs", world.url())).await;
    browser.fill("[name=login]", "ada").await;
    browser.click("[name=go]").await;
    browser.wait_for_url(|url| url.ends_with("/docs"), PATIENCE).await;
}

async fn killed_gateway(world: &mut World, host: &impl Host) {
    let user = start_live(host, "").await;
    let titles = kill_gateways(world, host, &user).await;
    assert_titles(host, &titles).await;
    wait_for_state(host, "open").await;
    let homes = host.run("return state.homes;").await;
    assert!(homes.as_u64().unwrap() > ROUNDS as u64, "the home screen is restored each time: {homes}");
    host.run("state.client.close();").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_killed_gateway_loses_and_repeats_nothing() {
    let tools = need!(JavaScript::find());
    let signer = Signer::ec("one");
    let issuer = Issuer::start(&[&signer]).await;
    let mut world = need!(World::fleet(&issuer.url, "").await);
    let host = NodeHost::start(&tools, &world.url(), &signer.sign(&issuer.claims("ada"))).await;
    killed_gateway(&mut world, &host).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chromium_killed_gateway_loses_and_repeats_nothing() {
    let browser = need!(Browser::start().await);
    let clients = OidcClients::default();
    let provider = need!(OidcProvider::start(clients.clone()).await);
    let mut world = need!(World::fleet(&provider.issuer(), &clients.client_secret).await);
    sign_in_at_provider(&browser, &provider, &world).await;
    let host = PageHost::start(browser, &world.url()).await;
    killed_gateway(&mut world, &host).await;
}

/// Makes a hundred calls with a token that has expired, and with one that only the gateway refuses.
async fn hundred_calls_on_an_expired_token(world: &World, host: &impl Host) {
    let tokens = sign_in::tokens(&world.url(), "ada").await;
    let code = format!(
        "const seen = {{ refreshes: 0, refused: 0, tokens: [] }};
        const count = async (url, init) => {{
            if (url.endsWith('/issuer/token')) seen.refreshes += 1;
            const response = await fetch(url, init);
            if (response.status === 401) seen.refused += 1;
            return response;
        }};
        let refreshToken = {};
        const calls = async (accessToken) => {{
            const auth = playhouse.bearer({{
                accessToken,
                refreshToken,
                tokenEndpoint: `${{gateway}}/issuer/token`,
                onTokens: (tokens) => {{
                    seen.tokens.push(tokens.accessToken);
                    refreshToken = tokens.refreshToken;
                }},
            }});
            const client = connect({{ auth, fetch: count }});
            const users = await Promise.all(Array.from({{ length: 100 }}, () => client.me()));
            client.close();
            return new Set(users.map((user) => user.user_id)).size;
        }};
        const claims = (exp) => btoa(JSON.stringify({{ iat: exp - 300, exp }})).replaceAll('=', '');
        const now = Math.floor(Date.now() / 1000);
        const expired = [await calls(`e30.${{claims(now - 10)}}.c2ln`), {{ ...seen }}];
        Object.assign(seen, {{ refreshes: 0, refused: 0 }});
        const refused = [await calls(`e30.${{claims(now + 3600)}}.c2ln`), {{ ...seen }}];
        return {{ expired, refused, tokens: new Set(seen.tokens).size }};",
        json!(tokens.refresh_token)
    );
    let answer = host.run(&code).await;
    let [users, expired] = [&answer["expired"][0], &answer["expired"][1]];
    assert_eq!(
        (users, &expired["refreshes"], &expired["refused"]),
        (&json!(1), &json!(1), &json!(0)),
        "{answer}"
    );
    let [users, refused] = [&answer["refused"][0], &answer["refused"][1]];
    assert_eq!((users, &refused["refreshes"]), (&json!(1), &json!(1)), "{answer}");
    assert!(
        refused["refused"].as_u64() > Some(1),
        "the gateway refused the token of several calls: {answer}"
    );
    assert_eq!(answer["tokens"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn node_hundred_calls_on_an_expired_token_refresh_once() {
    let tools = need!(JavaScript::find());
    let world = World::dev().await;
    let host = NodeHost::start(&tools, &world.url(), "").await;
    hundred_calls_on_an_expired_token(&world, &host).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chromium_hundred_calls_on_an_expired_token_refresh_once() {
    let browser = need!(Browser::start().await);
    let world = World::dev().await;
    let host = PageHost::start(browser, &world.url()).await;
    hundred_calls_on_an_expired_token(&world, &host).await;
}

/// How long the player is offline with queued actions.
const OFFLINE: Duration = Duration::from_secs(60);

/// Queues three reservations. The response to the first one is lost. The page is offline, is closed, and is opened again.
async fn queue_survives_a_closed_page(world: &World, host: &mut impl Host) {
    const ADD: &str = "return state.client.queue.add('drops.reserve', [state.drop, { quantity: 1, admission: state.admission }]).key;";
    let drop = admit(world, host).await;
    let first = async || {
        host.run(ADD).await;
    };
    world.cut_after_commit(first, async || world.reserved(&drop).await == 1).await;
    host.run(ADD).await;
    host.run(ADD).await;
    // Not a wait for a state: the time that the player is offline, with attempts all along.
    tokio::time::sleep(OFFLINE).await;
    assert_eq!(host.run("return state.client.queue.size;").await, 3);
    host.close().await;
    world.network.pass().await;
    assert_eq!(world.reserved(&drop).await, 1, "nothing was sent meanwhile");
    host.open().await;
    let code = "state.client = connect();
        const sent = [];
        const failed = [];
        state.client.queue.on('sent', ({ result }) => sent.push(result.reservation_id));
        state.client.queue.on('failed', ({ error }) => failed.push(String(error)));
        while (state.client.queue.size) await new Promise((resolve) => setTimeout(resolve, 50));
        state.client.close();
        return { sent, failed };";
    let answer = host.run(code).await;
    assert_eq!(answer["failed"], json!([]));
    assert_eq!(world.reserved(&drop).await, 3, "each once: {answer}");
    assert_eq!(
        json!(reservations(world, &drop).await),
        answer["sent"],
        "in the order in which they were added"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn node_queue_survives_a_closed_page_and_applies_each_action_once() {
    let tools = need!(JavaScript::find());
    let world = World::dev().await;
    let mut host = signed_in_node(&tools, &world).await;
    queue_survives_a_closed_page(&world, &mut host).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chromium_queue_survives_a_closed_page_and_applies_each_action_once() {
    let browser = need!(Browser::start().await);
    let world = World::dev().await;
    let mut host = signed_in_page(browser, &world).await;
    queue_survives_a_closed_page(&world, &mut host).await;
}

/// Starts a proxy that changes the type of event streams, as one that does not know them would hold them back.
async fn proxy_without_streams(world: &World) -> Rewriter {
    // With the name of the header: the modules of the client, which a page loads through it, have the type too.
    let [from, to] = ["event-stream", "event-buffer"].map(|kind| format!("content-type: text/{kind}"));
    Rewriter::to(world.network.addr(), &from, &to).await
}

async fn network_without_event_streams(world: &mut World, host: &impl Host) {
    let user = start_live(host, "").await;
    let titles = kill_gateways(world, host, &user).await;
    assert_titles(host, &titles).await;
    wait_for_state(host, "polling").await;
    host.run("state.client.close();").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_network_without_event_streams_is_polled() {
    let tools = need!(JavaScript::find());
    let signer = Signer::ec("one");
    let issuer = Issuer::start(&[&signer]).await;
    let mut world = need!(World::fleet(&issuer.url, "").await);
    let proxy = proxy_without_streams(&world).await;
    let url = proxy.url(&world.url());
    let host = NodeHost::start(&tools, &url, &signer.sign(&issuer.claims("ada"))).await;
    network_without_event_streams(&mut world, &host).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chromium_network_without_event_streams_is_polled() {
    let browser = need!(Browser::start().await);
    let clients = OidcClients::default();
    let provider = need!(OidcProvider::start(clients.clone()).await);
    let mut world = need!(World::fleet(&provider.issuer(), &clients.client_secret).await);
    sign_in_at_provider(&browser, &provider, &world).await;
    let proxy = proxy_without_streams(&world).await;
    // Cookies are those of the host, whatever its port.
    let url = proxy.url(&world.url());
    let host = PageHost::start(browser, url.trim_end_matches('/')).await;
    network_without_event_streams(&mut world, &host).await;
}

/// The network loses all packets: no connection ends, and nothing arrives.
async fn silent_connection(world: &World, host: &impl Host) {
    let user = start_live(host, "").await;
    world.notify(&user, "before").await;
    assert_titles(host, &["before".to_owned()]).await;
    world.network.half_open().await;
    world.notify(&user, "meanwhile").await;
    eventually("the client notices", PATIENCE, async || {
        let state = host.run("return state.client.live().state;").await;
        if state == "open" { Err(state) } else { Ok(()) }
    })
    .await;
    world.network.pass().await;
    assert_titles(host, &["before".to_owned(), "meanwhile".to_owned()]).await;
    host.run("state.client.close();").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_silent_connection_is_replaced() {
    let tools = need!(JavaScript::find());
    let world = World::dev().await;
    silent_connection(&world, &signed_in_node(&tools, &world).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chromium_silent_connection_is_replaced() {
    let browser = need!(Browser::start().await);
    let world = World::dev().await;
    silent_connection(&world, &signed_in_page(browser, &world).await).await;
}

/// A process whose client is closed ends by itself.
#[tokio::test(flavor = "multi_thread")]
async fn closed_client_lets_the_process_end() {
    let tools = need!(JavaScript::find());
    let world = World::dev().await;
    let tokens = sign_in::tokens(&world.url(), "ada").await;
    let code = format!(
        "import {{ Playhouse, bearer }} from './src/index.js';
        const client = new Playhouse({{ baseUrl: {}, auth: bearer({{ accessToken: {} }}) }});
        const live = client.live();
        await new Promise((resolve) => live.on('home', resolve));
        client.queue.add('inbox.mark', [{{ mark: 'read', up_to: 1 }}]);
        await client.queue.flush();
        client.close();
        console.log('closed');",
        json!(world.url()),
        json!(tokens.access_token),
    );
    let program = tools.node().args(["--input-type=module", "--eval", &code]).folder(super::package_folder());
    let running = program.start().unwrap();
    running.wait_for_line("closed", PATIENCE).await;
    assert_eq!(running.wait(Duration::from_secs(10)).await.code(), Some(0));
}
