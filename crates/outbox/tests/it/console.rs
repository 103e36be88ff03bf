//! The screens and the bulk actions of the outbox.

use std::collections::BTreeMap;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use jobs::Jobs;
use outbox::{OutboxAdmin, Wiring};
use runtime::lifecycle::Drain;
use screens::Subject;
use service::{Operator, Proof, Provided, ScreenRequest, Service as _};
use tower::ServiceExt as _;

use super::*;

on_both![
    failed_events_are_grouped_by_cause_and_retried_as_a_job,
    steps_show_the_life_of_an_event,
    steps_of_a_batched_event_are_found,
];

struct Console {
    provided: Provided,
    jobs: Jobs,
}

impl Console {
    async fn new(pair: &Pair, outbox: &Outbox) -> Self {
        pair.db.migrate(&[jobs::MIGRATIONS]).await.unwrap();
        let metrics = outbox::Metrics::new(&mut Registry::default(), "jobs");
        let (jobs, provided) = (Jobs::new(pair.db.clone(), &metrics, Clock::system()), Provided::default());
        provided.put("jobs", jobs.clone()).unwrap();
        provided.put("outbox", outbox.clone()).unwrap();
        provided.put("outbox", OutboxAdmin::new(outbox.clone(), jobs.clone())).unwrap();
        Self { provided, jobs }
    }

    async fn screen(&self, path: &str, query: &[(&str, &str)]) -> String {
        let screens = Wiring.screens();
        let (screen, parameters) =
            screens.iter().find_map(|screen| Some((screen, screen.matches(path)?))).unwrap();
        let query: BTreeMap<String, String> =
            query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let request = ScreenRequest { parameters, query };
        let view = screen.read(self.provided.clone(), request.clone()).await.unwrap();
        assert_eq!(
            view,
            screen.read(self.provided.clone(), request).await.unwrap(),
            "a view is deterministic"
        );
        format!("{view:?}")
    }

    /// Calls a route of the admin API.
    async fn post(&self, path: &str) -> (u16, Value) {
        let routes = Wiring.operator_routes().into_iter();
        let router =
            routes.fold(Router::new(), |router, route| router.route(route.row.path(), route.handler));
        let operator = Operator { name: "ada".to_owned(), proof: Proof::ConfiguredToken, read_only: false };
        let request = Request::post(path).extension(operator).body(Body::empty()).unwrap();
        let response = router.with_state(self.provided.clone()).oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        if let Some(problem) = response.extensions().get::<http_server::Problem>() {
            return (status, json!({ "detail": problem.text() }));
        }
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    /// Runs the job in this response until it has ended.
    async fn finish(&self, answer: &Value) -> jobs::JobView {
        let id = answer["job_id"].as_str().unwrap().parse().unwrap();
        let (jobs, provided, drain) = (self.jobs.clone(), self.provided.clone(), Drain::default());
        let running = tokio::spawn(async move {
            jobs.run(ProcessId::generate(), Wiring.jobs(), provided, drain).await.unwrap();
        });
        let job = testkit::eventually("the job has ended", PATIENCE, async || {
            let job = self.jobs.find(id).await.unwrap();
            if job.ended().is_some() { Ok(job) } else { Err(format!("{job:?}")) }
        })
        .await;
        running.abort();
        job
    }
}

/// An event that no bus stores.
fn too_large(key: &str) -> Event {
    Event { data: Json::from_value(&json!({ "n": "x".repeat(2 << 20) })).unwrap(), ..event(key, 0) }
}

async fn failed_events_are_grouped_by_cause_and_retried_as_a_job(pair: &Pair) {
    let outbox = pair.outbox();
    let console = Console::new(pair, &outbox).await;
    let empty = console.screen("/console/pipeline", &[]).await;
    assert!(empty.contains("No event has failed."), "{empty}");
    let blocking = too_large("a");
    pair.append(&outbox, &[blocking.clone(), event("a", 1), too_large("b"), event("c", 2)]).await;
    pair.relay(&outbox).tick().await.unwrap();

    let shown = console.screen("/console/pipeline", &[("state", "failed")]).await;
    let cause = outbox.queue().causes(100, 10).await.unwrap().remove(0);
    assert_eq!(cause.items, 2);
    assert!(
        shown.contains("POST /outbox/retry") && shown.contains(cause.cause.as_deref().unwrap()),
        "{shown}"
    );
    assert!(shown.contains("counted: 2"), "{shown}");
    for (kind, found) in [("playhouse.test.happened.v1", 2), ("playhouse.other.v1", 0)] {
        let (status, answer) = console.post(&format!("/outbox/retry?kind={kind}&dry_run=true")).await;
        assert_eq!((status, &answer["events"]), (200, &json!(found)));
    }
    let one = console.screen(&format!("/console/pipeline/{}", blocking.id), &[]).await;
    assert!(one.contains("FAILED") && one.contains("POST /outbox/{event}/skip"), "{one}");

    let (status, refused) = console.post("/outbox/skip?key=a&expected=7").await;
    assert_eq!(status, 409, "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("now matches 1, you saw 7"), "{refused}");
    assert_eq!(console.post("/outbox/skip").await.0, 400, "no filter");
    let (status, started) = console.post("/outbox/skip?key=a&expected=1").await;
    assert_eq!((status, &started["matching"]), (200, &json!(1)));
    let job = console.finish(&started).await;
    assert_eq!((job.done, job.state_word(), job.operator.as_str()), (1, "DONE", "ada"));
    pair.relay(&outbox).tick().await.unwrap();
    assert_eq!(states(&outbox).await, [State::Skipped, State::Done, State::Failed, State::Done]);

    let (_, started) = console.post("/outbox/republish?since=2026-01-01T00:00:00Z").await;
    assert_eq!(started["matching"], 2);
    assert_eq!(console.finish(&started).await.done, 2);
    assert_eq!(states(&outbox).await, [State::Skipped, State::Pending, State::Failed, State::Pending]);
}

async fn steps_show_the_life_of_an_event(pair: &Pair) {
    let outbox = pair.outbox();
    let console = Console::new(pair, &outbox).await;
    let (first, second) = (event("account-1", 1), event("account-1", 2));
    pair.append(&outbox, &[first.clone(), second]).await;
    pair.relay(&outbox).tick().await.unwrap();
    let steps = async |id: String| {
        let steps = Wiring.steps(&console.provided, &Subject::Id(id), 100).await.unwrap();
        let mut steps: Vec<String> = steps.into_iter().map(|step| step.what).collect();
        steps.sort();
        steps
    };
    let life = ["Appended playhouse.test.happened.v1 to the outbox", "Published playhouse.test.happened.v1"];
    assert_eq!(steps(first.id.to_string()).await, life);
    assert_eq!(steps("account-1".to_owned()).await.len(), 4);
    assert_eq!(steps("nothing".to_owned()).await.len(), 0);
    assert_eq!(outbox.find_event(*first.id.as_uuid()).await.unwrap(), Some(first));
}

async fn steps_of_a_batched_event_are_found(pair: &Pair) {
    let outbox = pair.outbox();
    let console = Console::new(pair, &outbox).await;
    // Events of a batch are the only ones of their keys.
    let named = Uuid::now_v7();
    let events = [1, 2, 3].map(|n| {
        let data = Json::from_value(&json!({ "n": n, "user_id": named })).unwrap();
        let event = Event { data, ..event("", n) };
        Event { key: Some(event.id.to_string()), ..event }
    });
    let row = Uuid::new_v4();
    let mut tx = pair.db.begin().await.unwrap();
    outbox.append_batch(&mut tx, row, &events);
    tx.commit().await.unwrap();
    let steps = async |id: Uuid| {
        let subject = Subject::Id(id.to_string());
        Wiring.steps(&console.provided, &subject, 100).await.unwrap()
    };
    let second = *events[1].id.as_uuid();
    let appended = "Appended playhouse.test.happened.v1 to the outbox, in one row with 2 others";
    let pending = steps(second).await;
    assert_eq!(pending.iter().map(|step| step.what.as_str()).collect::<Vec<_>>(), [appended]);

    pair.relay(&outbox).tick().await.unwrap();
    let mut published = steps(second).await;
    screens::Step::sort(&mut published);
    let found: Vec<_> = published.iter().map(|step| (step.store, step.what.as_str(), step.event)).collect();
    let expected =
        [("sql", appended, Some(second)), ("bus", "Published playhouse.test.happened.v1", Some(second))];
    assert_eq!(found, expected);
    assert_eq!(published[0].link.as_ref().unwrap().href, format!("/console/pipeline/{row}"));
    assert_eq!(steps(Uuid::now_v7()).await, []);
    assert_eq!(steps(named).await, [], "it is not the event");
    let of_row = &steps(row).await[0].follow;
    assert!(events.iter().all(|event| of_row.contains(&event.id.to_string())), "{of_row:?}");

    assert_eq!(outbox.find_event(second).await.unwrap(), None, "it has no row of its own");
    assert_eq!(outbox.find_batched_event(second).await.unwrap().as_ref(), Some(&events[1]));
    let since = Timestamp::from_millis(pair.db.now().await.unwrap().as_millis() - 60_000);
    let within = Duration::from_secs(3600);
    let found = outbox.find_batched_text("\"n\":3,", since, within).await.unwrap();
    assert_eq!(found.as_ref(), Some(&events[2]));
    assert_eq!(outbox.find_batched_text("\"n\":4,", since, within).await.unwrap(), None);
}
