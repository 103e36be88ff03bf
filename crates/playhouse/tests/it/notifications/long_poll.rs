//! `/v1/events`: the stream of a player as a long poll.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use testkit::need;
use tokio::time::Instant;

use super::setup::{Player, Process, Setup};
use crate::*;

const QUEUE: &str = "[matchmaking.queues.duel]\n";
/// Shorter than the longest wait of a poll, and longer than an immediate response takes.
const SOON: Duration = Duration::from_secs(10);

/// A client that polls like the JavaScript client does.
struct Poller {
    player: Player,
    after: Option<String>,
    seen: Option<String>,
    titles: Vec<String>,
}

impl Poller {
    fn new(player: &Player) -> Self {
        Self { player: player.clone(), after: None, seen: None, titles: Vec::new() }
    }

    async fn poll(&mut self, at: &str, wait: u64) -> Value {
        let mut path = format!("/v1/events?wait={wait}");
        for (name, value) in [("after", &self.after), ("seen", &self.seen)] {
            path += &value.as_ref().map(|value| format!("&{name}={value}")).unwrap_or_default();
        }
        let (status, answer) = self.player.get(at, &path).await;
        assert_eq!(status, 200, "{answer}");
        self.after = Some(answer["last_event_id"].as_str().unwrap().to_owned());
        self.seen = Some(answer["seen"].as_str().unwrap().to_owned());
        let notifications = answer["notifications"].as_array().unwrap();
        self.titles.extend(
            notifications.iter().map(|notification| notification["title"].as_str().unwrap().to_owned()),
        );
        answer
    }

    /// Polls, lets `change` happen once the poll waits, and asserts that the poll answers soon after it.
    async fn poll_during(&mut self, process: &Process, change: impl Future<Output = ()>) -> Value {
        let started = Instant::now();
        let change = async {
            wait_for_poll(process).await;
            change.await;
        };
        let (answer, ()) = tokio::join!(self.poll(process.gateway(), 30), change);
        assert!(started.elapsed() < SOON, "{:?}: {answer}", started.elapsed());
        answer
    }
}

/// Waits until the process has a poll that waits.
async fn wait_for_poll(process: &Process) {
    testkit::eventually("a poll waits", PATIENCE, async || {
        process.metric("playhouse_gateway_streams").await == 1.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_poll_answers_as_soon_as_the_client_lacks_something() {
    let setup = need!(Setup::start().await);
    setup.configure(QUEUE);
    let apis = [setup.process("gateway,service-api").await, setup.process("gateway,service-api").await];
    let [one, two] = [apis[0].gateway(), apis[1].gateway()];
    let ada = setup.player(&apis[0], "ada").await;
    let mut poller = Poller::new(&ada);

    let first = poller.poll(one, 30).await;
    assert_eq!((&first["last_event_id"], &first["resumed"]), (&json!("0"), &json!(false)), "{first}");
    assert_eq!((&first["inbox"], &first["tickets"]), (&json!({ "unread": 0, "unseen": 0 }), &json!([])));
    // The client has everything now: the next poll waits, here for one second.
    let started = Instant::now();
    let nothing = poller.poll(two, 1).await;
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!((&nothing["resumed"], &nothing["notifications"]), (&json!(true), &json!([])), "{nothing}");
    assert_eq!(nothing["seen"], first["seen"], "two processes agree about the state");

    let answer = poller.poll_during(&apis[0], apis[1].service().notify(ada.user, "hello")).await;
    assert_eq!(
        (&answer["last_event_id"], &answer["notifications"][0]["title"]),
        (&json!("1"), &json!("hello"))
    );
    assert_eq!(answer["inbox"], json!({ "unread": 1, "unseen": 1 }), "the counts include it");

    let answer = poller
        .poll_during(&apis[0], async {
            let mark = json!({ "mark": "read", "up_to": 1 });
            assert_eq!(ada.post(two, "/v1/notifications/mark", &mark).await.0, 200);
        })
        .await;
    assert_eq!(answer["inbox"], json!({ "unread": 0, "unseen": 0 }), "{answer}");

    let answer = poller
        .poll_during(&apis[0], async {
            let (status, _) = ada.post(two, "/v1/matchmaking/tickets", &json!({ "queue": "duel" })).await;
            assert_eq!(status, 201);
        })
        .await;
    assert_eq!(answer["tickets"][0]["state"], "WAITING", "{answer}");
    let ticket = answer["tickets"][0]["ticket_id"].as_str().unwrap();
    let path = format!("/v1/matchmaking/tickets/{ticket}");
    let answer = poller
        .poll_during(&apis[1], async {
            assert_eq!(ada.request(Method::DELETE, one, &path).send().await.unwrap().status(), 204);
        })
        .await;
    assert_eq!(answer["tickets"], json!([]), "{answer}");

    // A change between two polls is not missed.
    apis[0].service().notify(ada.user, "between").await;
    let answer = poller.poll(two, 30).await;
    assert_eq!(answer["notifications"][0]["title"], "between", "{answer}");

    for (query, word) in
        [("after=x", "`after`"), ("after=-1", "`after`"), ("wait=31", "`wait`"), ("wait=x", "wait")]
    {
        let (status, problem) = ada.get(one, &format!("/v1/events?{query}")).await;
        assert_eq!(status, 400, "{query}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(word), "{query}: {problem}");
    }
    // A position of another inbox, or from before a restore.
    let (_, answer) = ada.get(one, "/v1/events?after=99&wait=30").await;
    assert_eq!((&answer["last_event_id"], &answer["resumed"]), (&json!("2"), &json!(false)), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn polls_at_changing_processes_lose_and_repeat_nothing() {
    let setup = need!(Setup::start().await);
    let apis = [setup.process("gateway,service-api").await, setup.process("gateway,service-api").await];
    let ada = setup.player(&apis[0], "ada").await;
    let expected: Vec<String> = (0..250).map(|n| format!("number {n}")).collect();
    let mut poller = Poller::new(&ada);
    poller.poll(apis[0].gateway(), 0).await;
    let notify = async {
        for title in &expected {
            apis[1].service().notify(ada.user, title).await;
        }
    };
    let poll = async {
        for at in apis.iter().cycle() {
            poller.poll(at.gateway(), 5).await;
            if poller.titles.len() >= expected.len() {
                break;
            }
        }
    };
    tokio::join!(notify, poll);
    assert_eq!(poller.titles, expected);

    // One response has a page. The next request continues after it at once.
    let mut late = Poller { after: Some("0".to_owned()), ..Poller::new(&ada) };
    let sizes: Vec<usize> = {
        let mut sizes = Vec::new();
        for _ in 0..3 {
            sizes.push(late.poll(apis[0].gateway(), 30).await["notifications"].as_array().unwrap().len());
        }
        sizes
    };
    assert_eq!(sizes, [100, 100, 50]);
    assert_eq!(late.titles, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_poll_answers_when_the_process_stops() {
    let setup = need!(Setup::start().await);
    let api = setup.process("gateway,service-api").await;
    let ada = setup.player(&api, "ada").await;
    let mut poller = Poller::new(&ada);
    poller.poll(api.gateway(), 0).await;
    let started = Instant::now();
    let stop = async {
        wait_for_poll(&api).await;
        api.running.sigterm();
    };
    let (answer, ()) = tokio::join!(poller.poll(api.gateway(), 30), stop);
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    assert_eq!((&answer["resumed"], &answer["notifications"]), (&json!(true), &json!([])), "{answer}");
    assert_eq!(api.running.wait(PATIENCE).await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_poll_counts_as_a_stream() {
    let setup = need!(Setup::start().await);
    let program = setup.program("gateway,service-api").args(["--set", "gateway.max_streams=1"]);
    let api = Process::start(&program).await;
    let (ada, at) = (setup.player(&api, "ada").await, api.gateway());
    let stream = ada.stream(at, None).await;
    let refused = ada.request(Method::GET, at, "/v1/events").send().await.unwrap();
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"), "{refused:?}");
    drop(stream);
    testkit::eventually("a poll is possible again", PATIENCE, async || {
        ada.get(at, "/v1/events").await.0 == 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_poll_answers_when_the_token_expires() {
    let setup = need!(Setup::start().await);
    setup.configure("[identity]\nclock_skew = \"0s\"\n");
    let api = setup.process("gateway,service-api").await;
    let ada = setup.player_for(&api, "ada", 5).await;
    let mut poller = Poller::new(&ada);
    poller.poll(api.gateway(), 0).await;
    let started = Instant::now();
    poller.poll(api.gateway(), 30).await;
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    testkit::eventually("the token is refused", PATIENCE, async || {
        ada.get(api.gateway(), "/v1/events").await.0 == 401
    })
    .await;
}
